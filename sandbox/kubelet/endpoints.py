"""Kubelet's end of each plugin: one connection and one open ListAndWatch stream for each registered resource.

In: resource name and socket from either way of registration. Out: device updates to the store, the endpoint that
admission and container start call. Not here: how a plugin is found. Also kept: the race of kubelet up to 1.36.2, in
which the end of an old connection disconnects whatever has registered for the resource since.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc
from sandbox.kubelet.calls import CallLog, PluginError, go_text
from sandbox.kubelet.devices import DeviceStore
from sandbox.kubelet.options import KubeletOptions
from sandbox.kubelet.waiting import Clock

DIAL_S = 10.0


@dataclass(eq=False, slots=True)
class Connection:
    """One dialled plugin."""

    resource: str
    socket: Path
    channel: grpc.aio.Channel
    stub: rpc.DevicePluginStub
    stream: Any = None
    runner: "asyncio.Task[None] | None" = None

    async def close(self) -> None:
        await self.channel.close()


@dataclass(eq=False, slots=True)
class Endpoint:
    """What admission sees of a plugin; without a connection it came from the checkpoint and is stopped."""

    resource: str
    connection: Connection | None
    options: Any = None
    stopped_at: float | None = None

    def stub(self) -> rpc.DevicePluginStub:
        if self.stopped_at is not None or self.connection is None:
            raise PluginError(f"endpoint {self.resource} has been stopped")
        return self.connection.stub


@dataclass(slots=True)
class Endpoints:
    """All plugins of this kubelet."""

    options: KubeletOptions
    clock: Clock
    store: DeviceStore
    calls: CallLog
    changed: Callable[[], None]
    table: dict[str, Endpoint] = field(default_factory=dict)
    _connections: dict[str, Connection] = field(default_factory=dict)
    _running: set["asyncio.Task[None]"] = field(default_factory=set)

    def restore_stopped(self, resource: str) -> None:
        """A resource that only the checkpoint knows: registered, nothing healthy, no options."""
        self.store.update(resource, ())
        self.table[resource] = Endpoint(resource, None, stopped_at=self.clock.now())

    async def connect(self, resource: str, socket: Path) -> Connection:
        """Dials back and asks for options, inside the plugin's Register; raises PluginError if that fails."""
        channel = grpc.aio.insecure_channel(f"unix:{socket}", options=(("grpc.use_local_subchannel_pool", 1),))
        connection = Connection(resource, socket, channel, rpc.DevicePluginStub(channel))
        self._connections[resource] = connection
        try:
            options = await self._dial(connection)
        except (PluginError, asyncio.CancelledError):
            self._connections.pop(resource, None)
            await connection.close()
            raise
        self.table[resource] = Endpoint(resource, connection, options)
        connection.runner = asyncio.create_task(self._run(connection))
        self._running.add(connection.runner)
        connection.runner.add_done_callback(self._running.discard)
        return connection

    async def _dial(self, connection: Connection) -> pb.DevicePluginOptions:
        """The dial has a limit, the question for the options has none."""
        try:
            async with asyncio.timeout(DIAL_S):
                await connection.channel.channel_ready()
        except TimeoutError:
            raise PluginError("failed to dial device plugin: context deadline exceeded") from None
        ask, resource = connection.stub.GetDevicePluginOptions, connection.resource
        try:
            options: pb.DevicePluginOptions = await self.calls.record(
                ask, pb.Empty(), method="GetDevicePluginOptions", resource=resource
            )
        except PluginError as error:
            raise PluginError(f"failed to get device plugin options: {error}") from error
        return options

    async def _run(self, connection: Connection) -> None:
        """Holds the stream open until it ends, then disconnects the resource's current client: perhaps a newer one."""
        try:
            connection.stream = connection.stub.ListAndWatch(pb.Empty())
            async for message in connection.stream:
                self.store.update(connection.resource, message.devices)
                self.changed()
        except grpc.aio.AioRpcError as error:
            self.calls.note("ListAndWatch", connection.resource, go_text(error))
        victim = self._connections.get(connection.resource)
        if victim is None or (victim is not connection and not self.options.registration_race):
            await connection.close()
            return
        await self.disconnect(victim)

    async def deregister(self, resource: str) -> None:
        """By the name alone, as `DeRegisterPlugin` of v1beta1/handler.go: another socket's plugin may have it now."""
        if (current := self._connections.get(resource)) is not None:
            await self.disconnect(current)

    async def disconnect(self, connection: Connection) -> None:
        """Marks the resource's devices unhealthy and starts its grace period."""
        if self._connections.get(connection.resource) is connection:
            del self._connections[connection.resource]
        endpoint = self.table.get(connection.resource)
        if endpoint is not None:
            self.store.mark_unhealthy(connection.resource)
            endpoint.stopped_at = self.clock.now()
        await connection.close()
        self.changed()

    def expire(self) -> None:
        """What reading the capacity does: resources whose grace period is over disappear."""
        for resource in list(self.store.healthy):
            endpoint = self.table.get(resource)
            stopped = endpoint.stopped_at if endpoint else None
            if endpoint is None or (stopped is not None and self.clock.now() - stopped > self.options.grace_period_s):
                self.table.pop(resource, None)
                self.store.forget(resource)
                self.changed()

    async def close(self) -> None:
        """Kubelet goes away: every stream dies, nothing is marked."""
        running = list(self._running)
        for task in running:
            task.cancel()
        for connection in list(self._connections.values()):
            await connection.close()
        await asyncio.gather(*running, return_exceptions=True)
