"""The unix sockets between the agent and kubelet: a gRPC server on one of them, and news of those in a directory.

In: services and a path; a directory and the socket names in it. Out: a server that can be started again on the same
path, and `SocketWatch.wait`, which wakes the registration loop when a socket is created, deleted or replaced.

grpc's `stop` unlinks the path even when a newer server has bound it (grpc#17122), so `stop` is awaited to its end
before anything is bound again. A server whose start is cancelled runs all the same, gRPC's destructor waits for ever
for one that was not stopped, and gRPC crashes in one that is dropped half started or half stopped: so it belongs to
`stop` before it starts, and a cancellation waits for the end of both. Kubelet dials the path back, so the socket
must serve before it is registered. `RegistryService` (pluginregistration v1) serves beside the plugin if kubelet's
plugin watcher finds the socket, or on a socket of its own: kubelet >= 1.12 watches `<root>/plugins_registry` and dials
every socket there, also after its own restart, which saves the second in which crash-looping pods are lost.

`wait` returns after an event of inotify (watchdog), which is immediate, or after a short poll. The poll is the
fallback, because inotify instances can be exhausted (fs.inotify.max_user_instances) and because a directory that is
created later has no watch yet.
"""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import grpc
import structlog
from watchdog.events import FileCreatedEvent, FileDeletedEvent, FileMovedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from deviceplugin.errors import ConfigError, KubeletError
from deviceplugin.latest import to_its_end
from deviceplugin.wire import pluginregistration_pb2 as pb
from deviceplugin.wire import pluginregistration_pb2_grpc

log = structlog.get_logger("vcuda.kubelet")
SocketIdentity = tuple[int, int, int]
_LONGEST_PATH = 107  # sizeof(sockaddr_un.sun_path) - 1 on Linux


def check_socket_path(path: Path) -> None:
    """ConfigError for a path that the kernel would refuse."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(
            f"socket path {path} has {len(os.fsencode(path))} bytes and Linux allows {_LONGEST_PATH}; "
            "choose a shorter directory"
        )


class RegistryService(pluginregistration_pb2_grpc.RegistrationServicer):
    """One for each socket. `on_asked` is called when kubelet asks who this is, `on_registered` when it has taken the
    plugin.

    `endpoint`: the socket of the plugin, where it is another one.
    """

    def __init__(
        self,
        name: str,
        *,
        kind: str = "DevicePlugin",
        versions: Sequence[str] = ("v1beta1",),
        endpoint: str = "",
        on_asked: Callable[[], None] = lambda: None,
        on_registered: Callable[[], None] = lambda: None,
    ) -> None:
        self._info = pb.PluginInfo(type=kind, name=name, endpoint=endpoint, supported_versions=versions)
        self._on_asked = on_asked
        self._on_registered = on_registered

    async def GetInfo(
        self, request: pb.InfoRequest, context: "grpc.aio.ServicerContext[pb.InfoRequest, pb.PluginInfo]"
    ) -> pb.PluginInfo:
        self._on_asked()
        return self._info

    async def NotifyRegistrationStatus(
        self,
        request: pb.RegistrationStatus,
        context: "grpc.aio.ServicerContext[pb.RegistrationStatus, pb.RegistrationStatusResponse]",
    ) -> pb.RegistrationStatusResponse:
        if request.plugin_registered:
            self._on_registered()
        else:
            log.warning("plugin_refused", name=self._info.name, error=request.error or "no reason given")
        return pb.RegistrationStatusResponse()


class Endpoint:
    """`registry` is given where kubelet's plugin watcher finds the socket; it serves beside the others then.

    `spare`: a second path, where kubelet must not take a socket for the one before it. `path` is the one of now.
    """

    def __init__(
        self,
        path: Path,
        *services: Callable[[grpc.aio.Server], None],
        registry: RegistryService | None = None,
        spare: Path | None = None,
    ) -> None:
        self.paths = (path,) if spare is None else (path, spare)
        for each in self.paths:
            check_socket_path(each)
        self._services = services
        self.path = path
        self.registry = registry
        self._server: grpc.aio.Server | None = None
        self._identity: SocketIdentity | None = None

    async def start(self) -> None:
        """Binds and serves; old sockets at its paths are removed, any other file there is an error."""
        try:
            if self.path.exists():  # its own, too: kubelet may have failed with it, as with a frozen process
                self.path = self.paths[-1] if self.path == self.paths[0] else self.paths[0]
            await self.stop()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for path in self.paths:
                _remove_socket(path)
        except OSError as error:
            raise KubeletError(f"socket {self.path} cannot be made: {error.strerror}; check the directory") from error
        server = grpc.aio.server(maximum_concurrent_rpcs=None)
        for add in self._services:
            add(server)
        if self.registry is not None:
            pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self.registry, server)
        self._server = server
        try:
            server.add_insecure_port(f"unix:{self.path}")
            await to_its_end(server.start())
            self._identity = identity_of(self.path)
        except (RuntimeError, OSError) as error:
            raise KubeletError(f"socket {self.path} cannot be bound; check the directory's owner and mode") from error

    async def stop(self, *, grace: float | None = None) -> None:
        """Ends every stream, waits for their handlers, removes the socket. `grace`: seconds for the calls under way."""
        server, self._server, self._identity = self._server, None, None
        if server is not None:
            await to_its_end(_stop(server, grace))

    def is_in_place(self) -> bool:
        return self._identity is not None and identity_of(self.path) == self._identity


async def _stop(server: grpc.aio.Server, grace: float | None) -> None:
    await server.stop(grace=grace)
    await server.wait_for_termination()


def identity_of(path: Path) -> SocketIdentity | None:
    """None if nothing is; the time of change is in it because file systems reuse inode numbers at once."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def is_served(path: Path) -> bool:
    """Whether a process listens there: the file of one that was killed stays."""
    with socket.socket(socket.AF_UNIX) as tried:
        tried.setblocking(False)
        try:
            tried.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a process with a full queue is alive
        return True


def _remove_socket(path: Path) -> None:
    """Nothing if nothing is. Raises KubeletError for another kind of file, and OSError."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise KubeletError(f"{path} exists and is not a socket; move it away")
        path.unlink()


POLL_S = 0.1
POLL_BEHIND_INOTIFY_S = 0.5
_POLL_AT_REST_S = 5.0  # inotify can lose events too, but hardly ever
_EVENTS = (FileCreatedEvent, FileDeletedEvent, FileMovedEvent)  # a program that reads the directory must not wake it


class SocketWatch(FileSystemEventHandler):
    """Belongs to the loop that runs `wait`; watchdog's thread only sets an event."""

    def __init__(self, directory: Path, names: Collection[str]) -> None:
        self._directory = directory
        self._names = frozenset(names)
        self._happened = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._observer: BaseObserver | None = None
        self._has_warned = False

    def start(self) -> None:
        """Watches the directory if possible; a failure is logged once, and the poll remains."""
        self._loop = asyncio.get_running_loop()
        if self._observer is not None or not self._directory.is_dir():
            return
        observer = Observer()
        try:
            observer.schedule(self, str(self._directory), event_filter=list(_EVENTS))
            observer.start()
        except OSError as error:
            if not self._has_warned:
                log.warning("inotify_unavailable", path=str(self._directory), error=str(error))
            self._has_warned = True
            return
        self._observer = observer

    def stop(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer = None

    def wake(self) -> None:
        """For what the directory does not show; on the loop of `wait`."""
        self._happened.set()

    async def wait(self, *, at_rest: bool) -> None:
        """Until an event or the next poll. `at_rest`: the caller waits for nothing but events."""
        self.start()
        behind = _POLL_AT_REST_S if at_rest else POLL_BEHIND_INOTIFY_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S if self._observer is None else behind):
                await self._happened.wait()
        self._happened.clear()

    def on_any_event(self, event: FileSystemEvent) -> None:
        touched = {Path(str(path)).name for path in (event.src_path, event.dest_path) if path}
        if self._loop is not None and touched & self._names:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._happened.set)
