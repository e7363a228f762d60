"""gpu-manager's display.GPUDisplay on a unix socket: the same three views over gRPC.

In: a `Rendering`. Out: a server on `--display-socket`, readable by root and its group. What
`PrintUsages` answers is in `views`.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import structlog

from deviceplugin.errors import ConfigError
from deviceplugin.gpu_manager.views import usages
from deviceplugin.observe.graph import draw
from deviceplugin.observe.node_view import AgentState, NodePicture, Rendering
from deviceplugin.wire import display_pb2 as pb
from deviceplugin.wire import display_pb2_grpc as rpc

log = structlog.get_logger("vcuda.observe")
_Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")
_MODE = 0o660
_GRACE_S = 0.5
_LONGEST = 107  # sun_path without its final zero


class DisplayServer:
    """Serves from `start` until `stop`."""

    def __init__(self, rendering: Rendering, *, version: str) -> None:
        self._service = _Display(rendering, version)
        self._server: grpc.aio.Server | None = None

    async def start(self, path: Path) -> None:
        """Raises ConfigError if it cannot listen."""
        _free_path(path)
        server = grpc.aio.server()
        rpc.add_GPUDisplayServicer_to_server(self._service, server)
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError:
            raise ConfigError(f"--display-socket: {path} cannot be used for a socket; give a writable path") from None
        self._server = server  # before it starts: one whose start is cancelled runs all the same
        await asyncio.shield(server.start())
        _restrict(path)

    async def stop(self) -> None:
        """Ends open calls and removes the socket."""
        if self._server is not None:
            await self._server.stop(_GRACE_S)
            self._server = None


def _restrict(path: Path) -> None:
    path.chmod(_MODE)


def _free_path(path: Path) -> None:
    """Prepares the path of `--display-socket`: a socket without a server is removed."""
    length = len(os.fsencode(path))
    if length > _LONGEST:
        raise ConfigError(
            f"--display-socket: the path has {length} bytes and a unix socket takes {_LONGEST}; give a shorter one"
        )
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ConfigError(
                f"--display-socket: the directory {path.parent} does not exist; create it first"
            ) from None
        return
    except OSError as error:
        raise ConfigError(f"--display-socket: {path} cannot be used: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--display-socket: {path} exists and is not a socket; remove it or give another path")
    if _answers(path):
        raise ConfigError(f"--display-socket: another process serves {path}; stop it or give another path")
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0.5)
        try:
            caller.connect(str(path))
        except OSError:
            return False
        return True


class _Display(rpc.GPUDisplayServicer):
    """The three calls."""

    def __init__(self, rendering: Rendering, version: str) -> None:
        self._rendering = rendering
        self._version = version

    async def PrintGraph(self, request: pb.GraphRequest, context: _Context) -> pb.GraphResponse:
        return await self._shown("graph over gRPC", lambda picture, _: pb.GraphResponse(graph=draw(picture)), context)

    async def PrintUsages(self, request: pb.UsageRequest, context: _Context) -> pb.UsageResponse:
        return await self._shown("usage over gRPC", lambda picture, _: usages(picture), context)

    async def Version(self, request: pb.VersionRequest, context: _Context) -> pb.VersionResponse:
        return pb.VersionResponse(version=self._version)

    async def _shown(self, name: str, render: Callable[[NodePicture, AgentState], T], context: _Context) -> T:
        """grpc would send the text of an exception to the caller; here it goes to the log."""
        try:
            found = await self._rendering.get(name, render)
        except Exception:
            log.exception("view_failed", view=name)
            found = None
        if found is None:
            await context.abort(grpc.StatusCode.INTERNAL, "vcuda internal error; see the agent log on this node")
        return found
