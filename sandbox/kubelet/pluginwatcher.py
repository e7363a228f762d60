"""The plugin watcher on `plugins_registry/`: kubelet finds sockets itself and dials them.

In: socket files that appear, are replaced or vanish. Out: GetInfo, a connection, NotifyRegistrationStatus. Facts kept
(research 1.9): a socket is tried again only if registration failed or the file was made anew, never because its
connection was lost; names that begin with a dot are ignored; sockets are kept over kubelet's restart.
"""

import asyncio
import stat
from dataclasses import dataclass
from pathlib import Path

import grpc

from deviceplugin.wire import pluginregistration_pb2 as pb
from deviceplugin.wire import pluginregistration_pb2_grpc as rpc
from sandbox.kubelet.calls import CallLog, PluginError
from sandbox.kubelet.endpoints import Connection, Endpoints
from sandbox.kubelet.options import KubeletOptions
from sandbox.kubelet.pause import Pause
from sandbox.kubelet.registration import VERSION, is_extended_resource
from sandbox.kubelet.waiting import Clock

SCAN_S = 0.25
GET_INFO_S = 1.0
NOTIFY_S = 5.0
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 122.0


@dataclass(slots=True)
class Seen:
    """One socket file: which inode, the connection if registration worked, else when to try again."""

    inode: tuple[int, int, int]
    connection: Connection | None = None
    retry_s: float = FIRST_RETRY_S
    due: float = 0.0


class PluginWatcher:
    """Scans the directory; polls, because the stand-in must not depend on what it tests."""

    def __init__(
        self, options: KubeletOptions, endpoints: Endpoints, *, clock: Clock, calls: CallLog, pause: Pause
    ) -> None:
        self._options = options
        self._endpoints = endpoints
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
            if seen.connection is None and seen.due <= self._clock.now():
                await self._try(path, seen)

    async def _try(self, path: Path, seen: Seen) -> None:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=(("grpc.use_local_subchannel_pool", 1),)) as dial:
            stub = rpc.RegistrationStub(dial)
            try:
                seen.connection = await self._register(stub, path)
                status = pb.RegistrationStatus(plugin_registered=True)
            except (PluginError, ValueError) as error:
                status = pb.RegistrationStatus(plugin_registered=False, error=str(error))
                seen.due = self._clock.now() + seen.retry_s
                seen.retry_s = min(seen.retry_s * 2, LAST_RETRY_S)
            await self._notify(stub, status)

    async def _register(self, stub: rpc.RegistrationStub, path: Path) -> Connection:
        info = await self._calls.record(
            lambda request: stub.GetInfo(request, timeout=GET_INFO_S), pb.InfoRequest(), method="GetInfo", resource=""
        )
        if info.type != "DevicePlugin":
            raise ValueError(f"no handler registered for plugin type: {info.type} at socket {path}")
        if VERSION not in info.supported_versions:
            raise ValueError(f"device plugin API version {list(info.supported_versions)} is not supported by kubelet")
        if not is_extended_resource(info.name):
            raise ValueError(f'the ResourceName "{info.name}" is invalid')
        return await self._endpoints.connect(info.name, Path(info.endpoint) if info.endpoint else path)

    async def _notify(self, stub: rpc.RegistrationStub, status: pb.RegistrationStatus) -> None:
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
        if seen.connection is not None:
            await self._endpoints.disconnect(seen.connection)


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
