"""Keeps both resources registered with kubelet, whatever kubelet or anybody else does to the sockets.

In: the two services. Out: open ListAndWatch streams. Two ways (research 1.9): through `plugins_registry`, where kubelet
finds our sockets itself, or through `kubelet.sock`, where we register and kubelet deletes our sockets when it restarts.
Rules kept here: nothing is registered while old streams live (kubernetes#121994: the end of an old stream would
disconnect the new one); no stream for two seconds means register again; one that vanished is bound again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import grpc
import structlog

from deviceplugin.errors import KubeletError
from deviceplugin.kubelet.endpoint import Endpoint, SocketIdentity, identity_of
from deviceplugin.kubelet.plugin import ResourcePlugin
from deviceplugin.kubelet.registration_timer import Pace
from deviceplugin.kubelet.registry_service import RegistryService
from deviceplugin.kubelet.socket_watch import SocketWatch
from deviceplugin.model.units import Resource, ResourceNames
from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc

log = structlog.get_logger(__name__)
Mode = Literal["auto", "registry", "socket"]
SOCKETS = {Resource.CORE: "vcore.sock", Resource.MEMORY: "vmemory.sock"}
_REGISTRY_UNWATCHED_S = 10.0


@dataclass(frozen=True)
class KubeletPaths:
    """Kubelet's directories: `<root>/device-plugins` by default, and `<root>/plugins_registry`."""

    device_plugins: Path
    registry: Path

    @cached_property
    def kubelet_socket(self) -> Path:
        return self.device_plugins / "kubelet.sock"


class KubeletLink:
    """Runs until it is cancelled. `on_registered` is called after each successful registration."""

    def __init__(
        self,
        plugins: Sequence[ResourcePlugin],
        paths: KubeletPaths,
        names: ResourceNames,
        *,
        mode: Mode = "auto",
        on_registered: Callable[[], None] = lambda: None,
    ) -> None:
        self._plugins = tuple(plugins)
        self._paths = paths
        self._names = names
        self._mode = mode
        self._on_registered = on_registered
        self._endpoints: list[Endpoint] = []

    @property
    def is_registered(self) -> bool:
        """Kubelet holds a stream of each resource."""
        return all(plugin.streams > 0 for plugin in self._plugins)

    @property
    def sockets(self) -> tuple[Path, ...]:
        """Those that should answer now."""
        return tuple(endpoint.path for endpoint in self._endpoints)

    async def run(self) -> None:
        try:
            if self._uses_registry():
                await self._run_registry()
            await self._run_socket()
        finally:
            for endpoint in self._endpoints:
                await endpoint.stop()

    def _uses_registry(self) -> bool:
        return self._mode == "registry" or (self._mode == "auto" and self._paths.registry.is_dir())

    async def _run_registry(self) -> None:
        """Returns only in auto mode, when kubelet does not watch its registry directory."""
        self._endpoints = [
            Endpoint(
                plugin,
                self._paths.registry / f"{self._names.domain}-{SOCKETS[plugin.resource]}",
                RegistryService(self._names.of(plugin.resource)),
            )
            for plugin in self._plugins
        ]
        watch = SocketWatch(self._paths.registry, {endpoint.path.name for endpoint in self._endpoints})
        pace = Pace()
        try:
            while not (self._mode == "auto" and self._is_unwatched(pace)):
                if self._needs_binding(pace):
                    await self._bind_all()
                    pace.succeeded()
                if self.is_registered and pace.streaming():
                    self._on_registered()
                await watch.wait()
        finally:
            watch.stop()
        log.warning(
            "kubelet does not watch its plugin registry, using kubelet.sock", registry=str(self._paths.registry)
        )
        for endpoint in self._endpoints:
            await endpoint.stop()

    def _needs_binding(self, pace: Pace) -> bool:
        if not all(endpoint.is_in_place() for endpoint in self._endpoints):
            return True
        return self._paths.kubelet_socket.exists() and not self.is_registered and pace.is_silent()

    def _is_unwatched(self, pace: Pace) -> bool:
        asked = any(endpoint.registry is not None and endpoint.registry.asked for endpoint in self._endpoints)
        return not asked and self._paths.kubelet_socket.exists() and pace.age() > _REGISTRY_UNWATCHED_S

    async def _run_socket(self) -> None:
        self._endpoints = [
            Endpoint(plugin, self._paths.device_plugins / SOCKETS[plugin.resource]) for plugin in self._plugins
        ]
        watch = SocketWatch(self._paths.device_plugins, {"kubelet.sock", *SOCKETS.values()})
        pace = Pace()
        registered_with: SocketIdentity | None = None
        try:
            while True:
                kubelet = identity_of(self._paths.kubelet_socket)
                if kubelet is not None and self._needs_registering(kubelet, registered_with, pace):
                    registered_with = kubelet if await self._try_to_register(pace) else None
                if self.is_registered:
                    pace.streaming()
                await watch.wait()
        finally:
            watch.stop()

    def _needs_registering(self, kubelet: SocketIdentity, registered_with: SocketIdentity | None, pace: Pace) -> bool:
        if registered_with is None:
            return pace.may_try()
        if kubelet != registered_with or not all(endpoint.is_in_place() for endpoint in self._endpoints):
            return True
        return not self.is_registered and pace.is_silent()

    async def _try_to_register(self, pace: Pace) -> bool:
        try:
            await self._bind_all()
            await asyncio.gather(*(self._register(endpoint) for endpoint in self._endpoints))
        except KubeletError as error:
            if pace.failed():
                log.warning("not registered with kubelet yet", cause=error.message)
            return False
        pace.succeeded()
        self._on_registered()
        log.info("registered with kubelet", socket=str(self._paths.kubelet_socket))
        return True

    async def _bind_all(self) -> None:
        for endpoint in self._endpoints:
            await endpoint.start()

    async def _register(self, endpoint: Endpoint) -> None:
        request = pb.RegisterRequest(
            version="v1beta1",
            endpoint=endpoint.path.name,
            resource_name=self._names.of(endpoint.plugin.resource),
            options=pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True),
        )
        async with grpc.aio.insecure_channel(f"unix:{self._paths.kubelet_socket}") as channel:
            try:
                await rpc.RegistrationStub(channel).Register(request, timeout=5.0)
            except grpc.aio.AioRpcError as error:
                raise KubeletError(
                    f"kubelet refused {request.resource_name} on {self._paths.kubelet_socket}: "
                    f"{error.code().name.lower()}, {error.details()}"
                ) from None
