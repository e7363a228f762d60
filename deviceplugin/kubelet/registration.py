"""Keeps both resources registered with kubelet, also when kubelet restarts or a socket is deleted.

In: the two services. Out: open ListAndWatch streams. There are two ways. In `plugins_registry` kubelet finds the
sockets itself. Through `kubelet.sock` the agent registers, and kubelet deletes the plugins' sockets when it restarts.
Invariants: nothing is registered while old streams live (kubernetes#121994: the end of an old stream would disconnect
the new one); without a stream for two seconds the agent registers again; a deleted socket is bound again. A resource
whose stream is open and whose socket is in place is left alone then: without a stream kubelet refuses its pods.
In `plugins_registry` the agent can only make a socket. Kubelet dials what a killed agent left there for 10 s, and waits
up to 122 s before it does so again, both by path: so each resource has two paths there, and no socket takes the place
of another one. It lets go of a path that is gone by the name of the resource, whichever path that has now; so a socket
about which it has just asked is left to it for a while.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from pathlib import Path

import grpc
import msgspec
import structlog

from deviceplugin.errors import KubeletError
from deviceplugin.kubelet.grpc_endpoint import (
    Endpoint,
    RegistryService,
    SocketIdentity,
    SocketWatch,
    identity_of,
    is_served,
)
from deviceplugin.kubelet.plugin import ResourcePlugin
from deviceplugin.model.units import Resource, ResourceNames
from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc

log = structlog.get_logger("vcuda.kubelet")
SOCKETS = {Resource.CORE: "vcore.sock", Resource.MEMORY: "vmemory.sock"}
_REGISTRY_UNWATCHED_S = 10.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.02, 1.0
_SILENCE_S, _ASKED_SILENCE_S, _LONGEST_SILENCE_S = 2.0, 5.0, 32.0
_LOG_EVERY_S = 30.0


class KubeletPaths(msgspec.Struct, frozen=True, dict=True):
    """Kubelet's directories: `<root>/device-plugins` by default, and `<root>/plugins_registry`."""

    device_plugins: Path
    registry: Path

    @cached_property
    def kubelet_socket(self) -> Path:
        return self.device_plugins / "kubelet.sock"


class RegistrationTimer:
    """When to try kubelet again, without any I/O; `clock` is monotonic seconds.

    Retries double from 20 ms to a second, so that the agent meets a restarted kubelet at once. Silence (no open stream)
    is accepted for two seconds, or five since kubelet has asked who the plugin is, then twice as long each time up to
    32 s: two sides that cannot agree must not disconnect each other in a loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made = self._heard = clock()
        self._retry_s = _FIRST_RETRY_S
        self._next_try = clock()
        self._next_log = clock()
        self._silence_s = _SILENCE_S
        self._streams = False
        self.was_asked = False

    def age(self) -> float:
        return self._clock() - self._made

    def may_try(self) -> bool:
        return self._clock() >= self._next_try

    def failed(self) -> bool:
        """Backs off; True when this failure is worth a log line."""
        now = self._clock()
        self._next_try = now + self._retry_s
        self._retry_s = min(self._retry_s * 2, _LAST_RETRY_S)
        if now < self._next_log:
            return False
        self._next_log = now + _LOG_EVERY_S
        return True

    def succeeded(self) -> None:
        """Registered or bound: the streams should come now."""
        self._heard = self._next_log = self._clock()
        self._retry_s = _FIRST_RETRY_S

    def asked(self) -> None:
        """Kubelet is about to open the streams, as soon as it and this process have time for it."""
        self.was_asked = True
        self._heard, self._silence_s = self._clock(), max(self._silence_s, _ASKED_SILENCE_S)

    def met(self) -> None:
        """A kubelet that was not there before: it looks for plugins first a second after it listens."""
        self.succeeded()
        self._next_try = self._clock()
        self._silence_s = _ASKED_SILENCE_S

    def streaming(self) -> bool:
        """Streams are open; True when they were not before."""
        fresh, self._streams = not self._streams, True
        self._heard, self._silence_s = self._clock(), _SILENCE_S
        return fresh

    def is_silent(self) -> bool:
        self._streams = False
        if self._clock() - self._heard <= self._silence_s:
            return False
        self._silence_s = min(self._silence_s * 2, _LONGEST_SILENCE_S)
        return True


class PluginEndpoint(Endpoint):
    """The socket of one resource."""

    def __init__(
        self, plugin: ResourcePlugin, path: Path, registry: RegistryService | None = None, spare: Path | None = None
    ) -> None:
        add = partial(rpc.add_DevicePluginServicer_to_server, plugin)
        super().__init__(path, add, registry=registry, spare=spare)
        self.plugin = plugin

    @property
    def is_lost(self) -> bool:
        return self.plugin.streams == 0 or not self.is_in_place()


class KubeletLink:
    """Runs until it is cancelled. `on_registered` is called after each successful registration."""

    def __init__(
        self,
        plugins: Sequence[ResourcePlugin],
        paths: KubeletPaths,
        names: ResourceNames,
        *,
        on_registered: Callable[[], None] = lambda: None,
    ) -> None:
        self._plugins = tuple(plugins)
        self._paths = paths
        self._names = names
        self._on_registered = on_registered
        self._endpoints: list[PluginEndpoint] = []

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
            if self._paths.registry.is_dir():
                await self._run_registry()
            await self._run_socket()
        finally:
            for endpoint in self._endpoints:
                await endpoint.stop()

    def _watch(self, directory: Path, names: Collection[str]) -> SocketWatch:
        """Streams that end are news too: kubelet may have."""
        watch = SocketWatch(directory, names)
        for plugin in self._plugins:
            plugin.on_streams = watch.wake
        return watch

    async def _run_registry(self) -> None:
        """Returns only if kubelet does not watch its registry directory."""
        timer = RegistrationTimer()
        self._endpoints = [
            PluginEndpoint(
                plugin,
                self._paths.registry / f"{self._names.domain}-{SOCKETS[plugin.resource]}",
                RegistryService(self._names.of(plugin.resource), on_asked=timer.asked),
                self._paths.registry / f"{self._names.domain}-2-{SOCKETS[plugin.resource]}",
            )
            for plugin in self._plugins
        ]
        names = {path.name for endpoint in self._endpoints for path in endpoint.paths}
        watch = self._watch(self._paths.registry, names)
        kubelet = self._kubelet()
        try:
            while not self._is_unwatched(timer):
                if not self.is_registered:
                    before, kubelet = kubelet, self._kubelet()
                    if kubelet != before:
                        timer.met()
                if self._needs_binding(kubelet, timer):
                    await _bind(self._lost())
                    timer.succeeded()
                if self.is_registered and timer.streaming():
                    self._on_registered()
                await watch.wait(at_rest=self.is_registered)
        finally:
            watch.stop()
        log.warning("plugin_registry_unwatched", path=str(self._paths.registry), instead="kubelet.sock")
        for endpoint in self._endpoints:
            await endpoint.stop()

    def _kubelet(self) -> SocketIdentity | None:
        """None while none listens: a new socket at the time of its start would cost it two looks, and its pods."""
        return identity_of(self._paths.kubelet_socket) if is_served(self._paths.kubelet_socket) else None

    def _needs_binding(self, kubelet: SocketIdentity | None, timer: RegistrationTimer) -> bool:
        if not all(endpoint.is_in_place() for endpoint in self._endpoints):
            return True
        return kubelet is not None and not self.is_registered and timer.is_silent()

    def _is_unwatched(self, timer: RegistrationTimer) -> bool:
        return not timer.was_asked and self._paths.kubelet_socket.exists() and timer.age() > _REGISTRY_UNWATCHED_S

    async def _run_socket(self) -> None:
        self._endpoints = [
            PluginEndpoint(plugin, self._paths.device_plugins / SOCKETS[plugin.resource]) for plugin in self._plugins
        ]
        watch = self._watch(self._paths.device_plugins, {"kubelet.sock", *SOCKETS.values()})
        timer = RegistrationTimer()
        registered_with: SocketIdentity | None = None
        kubelet = identity_of(self._paths.kubelet_socket)
        try:
            while True:
                before, kubelet = kubelet, identity_of(self._paths.kubelet_socket)
                if kubelet != before:
                    timer.met()
                if kubelet is not None and self._needs_registering(kubelet, registered_with, timer):
                    # A new kubelet knows none of them; the same one may have lost one stream.
                    lost = self._lost() if kubelet == registered_with else self._endpoints
                    registered_with = kubelet if await self._try_to_register(lost, timer) else None
                if self.is_registered:
                    timer.streaming()
                await watch.wait(at_rest=self.is_registered)
        finally:
            watch.stop()

    def _needs_registering(
        self, kubelet: SocketIdentity, registered_with: SocketIdentity | None, timer: RegistrationTimer
    ) -> bool:
        if registered_with is None:
            return timer.may_try()
        if kubelet != registered_with or not all(endpoint.is_in_place() for endpoint in self._endpoints):
            return True
        return not self.is_registered and timer.is_silent()

    async def _try_to_register(self, endpoints: Sequence[PluginEndpoint], timer: RegistrationTimer) -> bool:
        try:
            await _bind(endpoints)
            await asyncio.gather(*(self._register(endpoint) for endpoint in endpoints))
        except KubeletError as error:
            if timer.failed():
                log.warning("registration_failed", error=error.message)
            return False
        timer.succeeded()
        self._on_registered()
        log.info("registered", path=str(self._paths.kubelet_socket))
        return True

    def _lost(self) -> Sequence[PluginEndpoint]:
        return [endpoint for endpoint in self._endpoints if endpoint.is_lost]

    async def _register(self, endpoint: PluginEndpoint) -> None:
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


async def _bind(endpoints: Sequence[PluginEndpoint]) -> None:
    for endpoint in endpoints:
        await endpoint.start()
