"""The plugins of DRA drivers that have registered, and which of them kubelet calls.

In: registrations from the plugin watcher. Out: the plugin to call for a driver, or kubelet's sentence. Facts kept, of
cm/dra/plugin/dra_plugin_manager.go: a plugin is listed and dialled before it is told so; of the plugins of a driver the
most recent one that is connected is called, else the latest; one is removed by its endpoint; its stream of health is
opened at once, and again 5 s after it ends. A driver that speaks only v1beta1 is taken; calls to it fail here.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from deviceplugin.wire import dra_health_pb2 as health_pb
from deviceplugin.wire import dra_health_pb2_grpc as health_rpc
from deviceplugin.wire import dra_pb2_grpc as rpc
from sandbox.kubelet.calls import CallLog, PluginError, go_text, quoted
from sandbox.kubelet.waiting import Clock

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH_AGAIN_S = 5.0


@dataclass(eq=False, slots=True)
class DraPlugin:
    """One plugin of a driver; `health` is what it said last, by device."""

    driver: str
    endpoint: str
    channel: grpc.aio.Channel
    is_connected: bool = False
    health: dict[str, int] = field(default_factory=dict)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    @property
    def stub(self) -> rpc.DRAPluginStub:
        return rpc.DRAPluginStub(self.channel)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.channel.close()


class DraPlugins:
    """All of this kubelet, in the order in which they came."""

    def __init__(self, clock: Clock, calls: CallLog, changed: Callable[[], None]) -> None:
        self._clock = clock
        self._calls = calls
        self._changed = changed
        self._plugins: dict[str, list[DraPlugin]] = {}

    def of(self, driver: str) -> Sequence[DraPlugin]:
        return tuple(self._plugins.get(driver, ()))

    def connected(self, driver: str) -> frozenset[str]:
        """The endpoints of those of its plugins that have a connection."""
        return frozenset(plugin.endpoint for plugin in self.of(driver) if plugin.is_connected)

    def get(self, driver: str) -> DraPlugin:
        """The one to call; raises PluginError if there is none."""
        found = self._plugins.get(driver)
        if not found:
            raise PluginError(f"DRA driver {driver} is not registered")
        return next((plugin for plugin in reversed(found) if plugin.is_connected), found[-1])

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        if not versions:
            why = "empty list of supported gRPC services (aka supported versions)"
        elif not set(versions) & set(SERVICES):
            why = (
                f"none of services supported by the plugin ({quoted(versions)}) "
                f"are supported by the kubelet ({quoted(SERVICES)})"
            )
        else:
            return
        raise PluginError(f"invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: {why}")

    async def register(self, name: str, endpoint: str) -> None:
        if any(plugin.endpoint == endpoint for plugin in self.of(name)):
            raise PluginError(f"endpoint {endpoint} already registered for DRA driver plugin {name}")
        channel = grpc.aio.insecure_channel(f"unix:{endpoint}", options=(("grpc.use_local_subchannel_pool", 1),))
        plugin = DraPlugin(name, endpoint, channel)
        work: tuple[Coroutine[Any, Any, None], ...] = (self._follow(plugin), self._hear(plugin))
        plugin.tasks.extend(map(asyncio.create_task, work))
        self._plugins.setdefault(name, []).append(plugin)
        self._changed()

    async def deregister(self, name: str, endpoint: str) -> None:
        for plugin in self.of(name):
            if plugin.endpoint == endpoint:
                self._plugins[name].remove(plugin)
                await plugin.close()
        self._changed()

    async def close(self) -> None:
        """Kubelet goes away."""
        plugins = [plugin for each in self._plugins.values() for plugin in each]
        self._plugins.clear()
        await asyncio.gather(*(plugin.close() for plugin in plugins))

    async def _follow(self, plugin: DraPlugin) -> None:
        """Asks for a connection whenever there is none."""
        while True:
            state = plugin.channel.get_state(try_to_connect=True)
            plugin.is_connected = state is grpc.ChannelConnectivity.READY
            self._changed()
            await plugin.channel.wait_for_state_change(state)

    async def _hear(self, plugin: DraPlugin) -> None:
        stub = health_rpc.DRAResourceHealthStub(plugin.channel)
        while True:
            try:
                async for message in stub.NodeWatchResources(health_pb.NodeWatchResourcesRequest()):
                    plugin.health = {each.device.device_name: each.health for each in message.devices}
                    self._changed()
            except grpc.aio.AioRpcError as error:
                self._calls.note("NodeWatchResources", plugin.driver, go_text(error))
            await self._clock.sleep(HEALTH_AGAIN_S)
