"""Serving gRPC on a unix socket the way a process that may be killed does.

In: a gRPC server, the path that clients dial. Out: a served path whose file stays behind when the server stops, as a
killed kubelet's does. Reason: gRPC's server unlinks its own path when it stops, so it binds a hidden one, and
clients see a hard link, whose appearance is the same IN_CREATE that a bind makes.
"""

import contextlib
import stat
from collections.abc import Callable
from pathlib import Path

import grpc

MAX_PATH_BYTES = 107


def new_server() -> grpc.aio.Server:
    return grpc.aio.server(options=(("grpc.so_reuseport", 0),))


async def serve(server: grpc.aio.Server, *, hidden: Path, path: Path, ready: Callable[[], None] | None = None) -> None:
    """Starts the server; `path` appears only when it answers."""
    if len(str(path).encode()) > MAX_PATH_BYTES or len(str(hidden).encode()) > MAX_PATH_BYTES:
        raise ValueError(
            f"a unix socket path has at most {MAX_PATH_BYTES} bytes, {path} is longer: use a shorter --root"
        )
    hidden.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{hidden}")
    await server.start()
    path.unlink(missing_ok=True)
    path.hardlink_to(hidden)
    if ready is not None:
        ready()


def delete_sockets(directory: Path) -> None:
    """What kubelet's registration server does to its directory at start; plugins must bind again."""
    for entry in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a plugin that has seen kubelet end removes its own
            if stat.S_ISSOCK(entry.lstat().st_mode):
                entry.unlink()
