"""The two ways in which plugins register: `device-plugins/kubelet.sock` and sockets in `plugins_registry/`.

In: `Register` from plugins; socket files that appear, are replaced or vanish. Out: connected endpoints, GetInfo,
NotifyRegistrationStatus, or the error texts of kubelet. Facts kept: when Register has returned, the plugin was dialled
back and its options are known; kubelet deletes the sockets in device-plugins at its start and keeps those in
plugins_registry; the watcher tries a socket again only if registration failed or the file was made again, never because
its connection was lost; it ignores names that begin with a dot.
"""

import asyncio
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc
from deviceplugin.wire import pluginregistration_pb2 as registry_pb
from deviceplugin.wire import pluginregistration_pb2_grpc as registry_rpc
from sandbox.kubelet.calls import CallLog, PluginError
from sandbox.kubelet.endpoints import Endpoints
from sandbox.kubelet.options import KubeletOptions
from sandbox.kubelet.sockets import delete_sockets, new_server, serve
from sandbox.kubelet.waiting import Clock, Pause

SCAN_S = 0.25
GET_INFO_S = 1.0
NOTIFY_S = 5.0
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 122.0

VERSION = "v1beta1"


class RegistrationServer:
    """One life of kubelet.sock."""

    def __init__(self, options: KubeletOptions, endpoints: Endpoints, pause: Pause) -> None:
        self._options = options
        self._endpoints = endpoints
        self._pause = pause
        self._server = new_server()

    async def start(self) -> None:
        self._options.plugin_dir.mkdir(parents=True, exist_ok=True)
        delete_sockets(self._options.plugin_dir)
        rpc.add_RegistrationServicer_to_server(self, self._server)
        await serve(
            self._server, hidden=self._options.root / ".run" / "kubelet.sock", path=self._options.kubelet_socket
        )

    async def stop(self) -> None:
        """Dies as a killed process: the socket file stays."""
        await self._server.stop(None)

    async def Register(self, request: pb.RegisterRequest, context: "grpc.aio.ServicerContext[Any, Any]") -> pb.Empty:
        """The RPC."""
        await self._pause.passed()
        if request.version != VERSION:
            await context.abort(
                grpc.StatusCode.UNKNOWN,
                f"requested API version {request.version!r} is not supported by kubelet. "
                f'Supported version is ["{VERSION}"]',
            )
        if not is_extended_resource(request.resource_name):
            await context.abort(grpc.StatusCode.UNKNOWN, f'the ResourceName "{request.resource_name}" is invalid')
        try:
            await self._endpoints.connect(request.resource_name, self._options.plugin_dir / request.endpoint)
        except PluginError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.Empty()


def is_extended_resource(name: str) -> bool:
    """A domain that is not Kubernetes' own, a slash, a name."""
    domain, slash, rest = name.partition("/")
    return bool(slash and domain and rest) and not domain.endswith("kubernetes.io") and not name.startswith("requests.")


class PluginHandler(Protocol):
    """What the watcher does with the plugins of one type; raises PluginError."""

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None: ...

    async def register(self, name: str, endpoint: str) -> None: ...

    async def deregister(self, name: str, endpoint: str) -> None: ...


@dataclass(frozen=True, slots=True)
class DevicePlugins:
    """The handler of device plugins, as devicemanager/plugin/v1beta1/handler.go."""

    endpoints: Endpoints

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        if VERSION not in versions:
            raise PluginError(f"device plugin API version {list(versions)} is not supported by kubelet")
        if not is_extended_resource(name):
            raise PluginError(f'the ResourceName "{name}" is invalid')

    async def register(self, name: str, endpoint: str) -> None:
        await self.endpoints.connect(name, Path(endpoint))

    async def deregister(self, name: str, endpoint: str) -> None:
        await self.endpoints.deregister(name)


@dataclass(frozen=True, slots=True)
class Registered:
    """What a socket's plugin called itself."""

    handler: PluginHandler
    name: str
    endpoint: str


@dataclass(slots=True)
class Seen:
    """One socket file: which inode, what registered if it worked, else when to try again."""

    inode: tuple[int, int, int]
    registered: Registered | None = None
    retry_s: float = FIRST_RETRY_S
    due: float = 0.0


class PluginWatcher:
    """Scans the directory; it polls, so that it does not depend on what is tried on it. `handlers` by type."""

    def __init__(
        self,
        options: KubeletOptions,
        handlers: Mapping[str, PluginHandler],
        *,
        clock: Clock,
        calls: CallLog,
        pause: Pause,
    ) -> None:
        self._options = options
        self._handlers = handlers
        self._clock = clock
        self._calls = calls
        self._pause = pause
        self._seen: dict[Path, Seen] = {}

    async def run(self) -> None:
        self._options.registry_dir.mkdir(parents=True, exist_ok=True)
        while True:
            await self._pause.passed()
            await self._scan()
            await asyncio.sleep(SCAN_S)

    async def _scan(self) -> None:
        present = _sockets(self._options.registry_dir)
        for path in [path for path, seen in self._seen.items() if present.get(path) != seen.inode]:
            await self._deregister(self._seen.pop(path))
        for path, inode in present.items():
            seen = self._seen.setdefault(path, Seen(inode))
            if seen.registered is None and seen.due <= self._clock.now():
                await self._try(path, seen)

    async def _try(self, path: Path, seen: Seen) -> None:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=(("grpc.use_local_subchannel_pool", 1),)) as dial:
            stub = registry_rpc.RegistrationStub(dial)
            try:
                seen.registered = await self._register(stub, path)
                status = registry_pb.RegistrationStatus(plugin_registered=True)
            except (PluginError, ValueError) as error:
                status = registry_pb.RegistrationStatus(plugin_registered=False, error=str(error))
                seen.due = self._clock.now() + seen.retry_s
                seen.retry_s = min(seen.retry_s * 2, LAST_RETRY_S)
            await self._notify(stub, status)

    async def _register(self, stub: registry_rpc.RegistrationStub, path: Path) -> Registered:
        """The plugin is in use before it is told so."""
        info = await self._calls.record(
            lambda request: stub.GetInfo(request, timeout=GET_INFO_S),
            registry_pb.InfoRequest(),
            method="GetInfo",
            resource="",
        )
        handler = self._handlers.get(info.type)
        if handler is None:
            raise ValueError(f"no handler registered for plugin type: {info.type} at socket {path}")
        found = Registered(handler, info.name, info.endpoint or str(path))
        handler.validate(found.name, found.endpoint, info.supported_versions)
        await handler.register(found.name, found.endpoint)
        return found

    async def _notify(self, stub: registry_rpc.RegistrationStub, status: registry_pb.RegistrationStatus) -> None:
        try:
            await self._calls.record(
                lambda request: stub.NotifyRegistrationStatus(request, timeout=NOTIFY_S),
                status,
                method="NotifyRegistrationStatus",
                resource="",
            )
        except PluginError:
            return  # recorded; kubelet logs it and goes on

    async def _deregister(self, seen: Seen) -> None:
        if seen.registered is not None:
            await seen.registered.handler.deregister(seen.registered.name, seen.registered.endpoint)


def _sockets(directory: Path) -> dict[Path, tuple[int, int, int]]:
    found: dict[Path, tuple[int, int, int]] = {}
    for entry in sorted(directory.iterdir()):
        try:
            info = entry.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(info.st_mode) and not entry.name.startswith("."):
            found[entry] = (info.st_dev, info.st_ino, info.st_ctime_ns)
    return found
