"""The least node on which a pod can run: a stand-in kubelet with both resources served by bare device plugins.

A `BarePlugin` serves the DevicePlugin service with an answer that names the devices in an environment variable, and
records PreStartContainer calls; it remembers nothing about pods and places nothing. It is there to try kubelets, and to
compare the agent with. `fail` makes a method answer with an error, `gates` make it wait, `info` is what it says to the
plugin watcher. In: options of kubelet, sizes. Out: kubelet and two plugins, registered and ready; all stop at the end.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc

from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc
from deviceplugin.wire import pluginregistration_pb2 as registry_pb
from deviceplugin.wire import pluginregistration_pb2_grpc as registry_rpc
from sandbox.kubelet import Kubelet, KubeletOptions

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
FAST = 50.0


@dataclass(eq=False, slots=True)
class BarePlugin:
    """One resource. `devices` maps ID to NUMA node (-1: none); `answer` makes the response to Allocate."""

    resource: str
    socket: Path
    devices: dict[str, int]
    pre_start: bool = True
    preferred: bool = True
    broken: frozenset[str] = frozenset()
    answer: Callable[[list[str]], pb.ContainerAllocateResponse] | None = None
    prefer: Callable[[pb.ContainerPreferredAllocationRequest], list[str]] | None = None
    fail: dict[str, str] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    info: registry_pb.PluginInfo | None = None
    streams: int = 0
    notified: list[registry_pb.RegistrationStatus] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _server: grpc.aio.Server | None = None

    async def serve(self) -> None:
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self._server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        registry_rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def register(self, kubelet_socket: Path, *, version: str = "v1beta1") -> None:
        request = pb.RegisterRequest(version=version, endpoint=self.socket.name, resource_name=self.resource)
        async with grpc.aio.insecure_channel(f"unix:{kubelet_socket}") as channel:
            await rpc.RegistrationStub(channel).Register(request, timeout=10)

    async def __aenter__(self) -> Self:
        await self.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Also of a test that fails: a server that nobody stops blocks gRPC's destructor, and with it the collector."""
        await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def change(self, *, devices: dict[str, int] | None = None, broken: frozenset[str] | None = None) -> None:
        """Changes what ListAndWatch reports."""
        async with self._changed:
            self.devices = self.devices if devices is None else devices
            self.broken = self.broken if broken is None else broken
            self._changed.notify_all()

    async def GetDevicePluginOptions(
        self, _request: pb.Empty, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.DevicePluginOptions:
        await self._misbehave("GetDevicePluginOptions", context)
        return pb.DevicePluginOptions(
            pre_start_required=self.pre_start, get_preferred_allocation_available=self.preferred
        )

    async def ListAndWatch(self, _request: pb.Empty, _context: object) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.streams += 1
        try:
            while True:
                async with self._changed:
                    message = self._snapshot()
                yield message
                await self._until_other_than(message)
        finally:
            self.streams -= 1

    async def _until_other_than(self, sent: pb.ListAndWatchResponse) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._snapshot() != sent)

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.PreferredAllocationResponse:
        await self._misbehave("GetPreferredAllocation", context)
        asked = request.container_requests[0]
        chosen = self.prefer(asked) if self.prefer else self._lowest(asked)
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    async def Allocate(
        self, request: pb.AllocateRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.AllocateResponse:
        await self._misbehave("Allocate", context)
        ids = sorted(request.container_requests[0].devices_ids)
        name = self.resource.rpartition("/")[2].replace("-", "_").upper()
        response = self.answer(ids) if self.answer else pb.ContainerAllocateResponse(envs={name: ",".join(ids)})
        return pb.AllocateResponse(container_responses=[response])

    async def PreStartContainer(
        self, _request: pb.PreStartContainerRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.PreStartContainerResponse:
        await self._misbehave("PreStartContainer", context)
        return pb.PreStartContainerResponse()

    async def GetInfo(
        self, _request: registry_pb.InfoRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> registry_pb.PluginInfo:
        await self._misbehave("GetInfo", context)
        return self.info or registry_pb.PluginInfo(
            type="DevicePlugin", name=self.resource, supported_versions=["v1beta1"]
        )

    async def NotifyRegistrationStatus(
        self, request: registry_pb.RegistrationStatus, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> registry_pb.RegistrationStatusResponse:
        self.notified.append(request)
        await self._misbehave("NotifyRegistrationStatus", context)
        return registry_pb.RegistrationStatusResponse()

    async def _misbehave(self, method: str, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        if method in self.gates:
            await self.gates[method].wait()
        if method in self.fail:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.fail[method])

    def _lowest(self, asked: pb.ContainerPreferredAllocationRequest) -> list[str]:
        must = list(asked.must_include_deviceIDs)
        rest = sorted(set(asked.available_deviceIDs) - set(must))
        return (must + rest)[: asked.allocation_size]

    def _snapshot(self) -> pb.ListAndWatchResponse:
        devices = []
        for device, node in self.devices.items():
            item = pb.Device(ID=device, health="Unhealthy" if device in self.broken else "Healthy")
            if node >= 0:
                item.topology.CopyFrom(pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)]))
            devices.append(item)
        return pb.ListAndWatchResponse(devices=devices)


@dataclass(frozen=True, slots=True)
class BareNode:
    """Kubelet and its two plugins."""

    kubelet: Kubelet
    core: BarePlugin
    memory: BarePlugin

    async def register(self) -> None:
        """Both plugins again, as after a restart of kubelet."""
        for plugin in (self.core, self.memory):
            await plugin.stop()
            await plugin.serve()
            await plugin.register(self.kubelet.options.kubelet_socket)
        await self.kubelet.wait_registered(CORE, MEMORY)


def fast(root: Path) -> KubeletOptions:
    """A kubelet with short periods, whose restart leaves plugins only a moment."""
    return KubeletOptions(root=root, speed=FAST, first_sync_s=0.1)


@asynccontextmanager
async def bare_node(options: KubeletOptions, *, cores: int = 200, blocks: int = 64) -> AsyncIterator[BareNode]:
    """Devices are c000... and m000..., without NUMA nodes."""
    directory = options.plugin_dir
    core = BarePlugin(CORE, directory / "vcore.sock", {f"c{number:03}": -1 for number in range(cores)})
    memory = BarePlugin(MEMORY, directory / "vmemory.sock", {f"m{number:03}": -1 for number in range(blocks)})
    async with Kubelet(options) as kubelet:
        node = BareNode(kubelet, core, memory)
        try:
            await node.register()
            yield node
        finally:
            await core.stop()
            await memory.stop()
