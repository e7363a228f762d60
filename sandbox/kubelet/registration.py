"""The two ways in which plugins register: `device-plugins/kubelet.sock` and sockets in `plugins_registry/`.

In: `Register` from plugins; socket files that appear, are replaced or vanish. Out: connected endpoints, GetInfo,
NotifyRegistrationStatus, or the error texts of kubelet. Facts kept: when Register has returned, the plugin was dialled
back and its options are known; kubelet deletes the sockets in device-plugins at its start and keeps those in
plugins_registry; the watcher tries a socket again only if registration failed or the file was made again, never because
its connection was lost; the wait after a failure grows up to 122 s for a path, also when its file is made again; names
that begin with a dot are ignored.
"""

import asyncio
import contextlib
import stat
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc

from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc
from deviceplugin.wire import pluginregistration_pb2 as registry_pb
from deviceplugin.wire import pluginregistration_pb2_grpc as registry_rpc
from sandbox.kubelet.calls import CallLog, PluginError
from sandbox.kubelet.endpoints import DIAL_S, Endpoints
from sandbox.kubelet.options import KubeletOptions
from sandbox.kubelet.sockets import delete_sockets, new_server, serve
from sandbox.kubelet.waiting import Clock, Pause

SCAN_S = 1.0
GET_INFO_S = 1.0
NOTIFY_S = 5.0
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 122.0

VERSION = "v1beta1"
Inode = tuple[int, int, int]


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
                f'requested API version "{request.version}" is not supported by kubelet. '
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
            found = " ".join(versions)
            raise PluginError(f"manager version, {VERSION}, is not among plugin supported versions [{found}]")
        if not is_extended_resource(name):
            raise PluginError(f'invalid name of device plugin socket: the ResourceName "{name}" is invalid')

    async def register(self, name: str, endpoint: str) -> None:
        await self.endpoints.connect(name, Path(endpoint))

    async def deregister(self, name: str, endpoint: str) -> None:
        await self.endpoints.deregister(name)


@dataclass(frozen=True, slots=True)
class Registered:
    """Which socket file it was, and what its plugin called itself."""

    inode: Inode
    handler: PluginHandler
    name: str
    endpoint: str


@dataclass(slots=True)
class Operation:
    """Of one socket path: one at a time. Only a success forgets the wait after a failure, and not a new file."""

    is_pending: bool = False
    wait_s: float = 0.0
    due: float = 0.0

    def failed(self, now: float) -> None:
        self.is_pending = False
        self.wait_s = min(self.wait_s * 2, LAST_RETRY_S) or FIRST_RETRY_S
        self.due = now + self.wait_s


class PluginWatcher:
    """Scans the directory; it polls, so that it does not depend on what is tried on it. `handlers` by type.

    Sockets do not wait for each other. What fails is noted as `RegisterPlugin`, in the words of kubelet's log.
    """

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
        self._registered: dict[Path, Registered] = {}
        self._operations: dict[Path, Operation] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self._options.registry_dir.mkdir(parents=True, exist_ok=True)
        try:
            while True:
                await self._pause.passed()
                self._reconcile()
                await asyncio.sleep(SCAN_S)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _reconcile(self) -> None:
        """What was replaced is removed first, and registered at the next look."""
        present = _sockets(self._options.registry_dir)
        for path, registered in self._registered.items():
            if present.get(path) != registered.inode:
                self._start(path, partial(self._deregister, path, registered))
        for path, inode in present.items():
            if path not in self._registered:
                self._start(path, partial(self._register, path, inode))

    def _start(self, path: Path, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        operation = self._operations.setdefault(path, Operation())
        if not operation.is_pending and self._clock.now() >= operation.due:
            operation.is_pending = True
            task = asyncio.create_task(self._run(path, operation, work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, path: Path, operation: Operation, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except PluginError as error:
            self._calls.note("RegisterPlugin", "", f"RegisterPlugin error -- {error}")
            operation.failed(self._clock.now())
        else:
            del self._operations[path]

    async def _register(self, path: Path, inode: Inode) -> None:
        """As `GenerateRegisterPluginFunc`: the plugin is in use before it is told so, and no longer if it cannot be."""
        async with grpc.aio.insecure_channel(f"unix:{path}", options=(("grpc.use_local_subchannel_pool", 1),)) as dial:
            stub = registry_rpc.RegistrationStub(dial)
            info = await self._info(dial, stub, path)
            handler = self._handlers.get(info.type)
            if handler is None:
                await self._refuse(stub, f"no handler registered for plugin type: {info.type} at socket {path}")
            found = Registered(inode, handler, info.name, info.endpoint or str(path))
            try:
                handler.validate(found.name, found.endpoint, info.supported_versions)
            except PluginError as error:
                await self._refuse(stub, f"plugin validation failed with err: {error}")
            try:
                await handler.register(found.name, found.endpoint)
            except PluginError as error:
                await self._refuse(stub, f"plugin registration failed with err: {error}")
            try:
                await self._notify(stub, registry_pb.RegistrationStatus(plugin_registered=True))
            except PluginError as error:
                await handler.deregister(found.name, found.endpoint)
                raise PluginError(f"failed to send registration status at socket {path}, err: : {error}") from error
            self._registered[path] = found

    async def _info(
        self, dial: grpc.aio.Channel, stub: registry_rpc.RegistrationStub, path: Path
    ) -> registry_pb.PluginInfo:
        """The plugin is told nothing of a failure."""
        try:
            async with asyncio.timeout(DIAL_S):
                await dial.channel_ready()
        except TimeoutError:
            why = f"failed to dial socket {path}, err: context deadline exceeded"
            raise PluginError(f"dial failed at socket {path}, err: {why}") from None
        ask = partial(stub.GetInfo, timeout=GET_INFO_S)
        try:
            info: registry_pb.PluginInfo = await self._calls.record(
                ask, registry_pb.InfoRequest(), method="GetInfo", resource=""
            )
        except PluginError as error:
            raise PluginError(f"failed to get plugin info using RPC GetInfo at socket {path}, err: {error}") from error
        return info

    async def _refuse(self, stub: registry_rpc.RegistrationStub, why: str) -> NoReturn:
        with contextlib.suppress(PluginError):
            await self._notify(stub, registry_pb.RegistrationStatus(error=f"RegisterPlugin error -- {why}"))
        raise PluginError(why)

    async def _notify(self, stub: registry_rpc.RegistrationStub, status: registry_pb.RegistrationStatus) -> None:
        tell = partial(stub.NotifyRegistrationStatus, timeout=NOTIFY_S)
        await self._calls.record(tell, status, method="NotifyRegistrationStatus", resource="")

    async def _deregister(self, path: Path, registered: Registered) -> None:
        del self._registered[path]
        await registered.handler.deregister(registered.name, registered.endpoint)


def _sockets(directory: Path) -> dict[Path, Inode]:
    found: dict[Path, Inode] = {}
    for entry in sorted(directory.iterdir()):
        try:
            info = entry.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(info.st_mode) and not entry.name.startswith("."):
            found[entry] = (info.st_dev, info.st_ino, info.st_ctime_ns)
    return found
