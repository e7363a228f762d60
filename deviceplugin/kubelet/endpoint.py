"""One unix socket with one gRPC server on it, for one resource.

In: the service and a path. Out: a server that can be started again on the same path. grpc's `stop` unlinks the path
even when a newer server has bound it (grpc#17122), so `stop` is awaited to its end before anything is bound again.
Kubelet dials the path back, so the socket must serve before it is registered.
"""

import contextlib
import os
import stat
from pathlib import Path

import grpc

from deviceplugin.errors import ConfigError, KubeletError
from deviceplugin.kubelet.plugin import ResourcePlugin
from deviceplugin.kubelet.registry_service import RegistryService
from deviceplugin.wire import deviceplugin_pb2_grpc, pluginregistration_pb2_grpc

SocketIdentity = tuple[int, int, int]
_LONGEST_PATH = 107  # sizeof(sockaddr_un.sun_path) - 1 on Linux


def check_socket_path(path: Path) -> None:
    """ConfigError for a path that the kernel would refuse."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(
            f"socket path {path} has {len(os.fsencode(path))} bytes and Linux allows {_LONGEST_PATH}; "
            "choose a shorter directory"
        )


class Endpoint:
    """`registry` is given where kubelet's plugin watcher finds the socket; it serves beside the plugin then."""

    def __init__(self, plugin: ResourcePlugin, path: Path, registry: RegistryService | None = None) -> None:
        check_socket_path(path)
        self.plugin = plugin
        self.path = path
        self.registry = registry
        self._server: grpc.aio.Server | None = None
        self._identity: SocketIdentity | None = None

    async def start(self) -> None:
        """Binds and serves; an old socket of ours at the path is removed, anything else there is left alone."""
        await self.stop()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_stale()
        except OSError as error:
            raise KubeletError(f"socket {self.path} cannot be made: {error.strerror}; check the directory") from error
        server = grpc.aio.server(maximum_concurrent_rpcs=None)
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(self.plugin, server)
        if self.registry is not None:
            pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self.registry, server)
        try:
            server.add_insecure_port(f"unix:{self.path}")
            await server.start()
            self._identity = identity_of(self.path)
        except (RuntimeError, OSError) as error:
            raise KubeletError(f"socket {self.path} cannot be bound; check the directory's owner and mode") from error
        self._server = server

    async def stop(self) -> None:
        """Ends every stream, waits for their handlers, removes the socket."""
        server, self._server, self._identity = self._server, None, None
        if server is not None:
            await server.stop(grace=None)
            await server.wait_for_termination()

    def is_in_place(self) -> bool:
        """Whether the path is still the socket that we bound."""
        return self._identity is not None and identity_of(self.path) == self._identity

    def _remove_stale(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise KubeletError(f"{self.path} exists and is no socket; move it away")
            self.path.unlink()


def identity_of(path: Path) -> SocketIdentity | None:
    """None where nothing is; the time of change is in it because file systems reuse inode numbers at once."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
