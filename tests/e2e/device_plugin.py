"""A small device plugin, to prove that the cluster serves device plugins at all.

In: a resource name, how many devices, kubelet's device-plugin folder. Out: a registered plugin that records its calls.
Not here: anything of vcuda: what fails with this plugin is the harness's fault, not the agent's.
Invariant: it answers every Allocate with one environment variable that names the devices given.
"""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from deviceplugin.wire import deviceplugin_pb2 as messages
from deviceplugin.wire import deviceplugin_pb2_grpc as services

GIVEN = "GIVEN_DEVICES"


@dataclass
class DevicePlugin(services.DevicePluginServicer):
    """Serves `count` healthy devices of one resource."""

    resource: str
    count: int
    ended: threading.Event = field(default_factory=threading.Event)
    allocated: list[tuple[str, ...]] = field(default_factory=list)
    prestarted: list[tuple[str, ...]] = field(default_factory=list)

    def GetDevicePluginOptions(  # noqa: N802
        self, request: messages.Empty, context: grpc.ServicerContext
    ) -> messages.DevicePluginOptions:
        return _options()

    def ListAndWatch(  # noqa: N802
        self, request: messages.Empty, context: grpc.ServicerContext
    ) -> Iterator[messages.ListAndWatchResponse]:
        devices = [messages.Device(ID=f"d{number}", health="Healthy") for number in range(self.count)]
        yield messages.ListAndWatchResponse(devices=devices)
        context.add_callback(self.ended.set)
        self.ended.wait()

    def Allocate(  # noqa: N802
        self, request: messages.AllocateRequest, context: grpc.ServicerContext
    ) -> messages.AllocateResponse:
        return messages.AllocateResponse(
            container_responses=[self._give(each.devices_ids) for each in request.container_requests]
        )

    def PreStartContainer(  # noqa: N802
        self, request: messages.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> messages.PreStartContainerResponse:
        self.prestarted.append(tuple(sorted(request.devices_ids)))
        return messages.PreStartContainerResponse()

    def _give(self, devices: Iterable[str]) -> messages.ContainerAllocateResponse:
        given = tuple(sorted(devices))
        self.allocated.append(given)
        return messages.ContainerAllocateResponse(envs={GIVEN: ",".join(given)})


@contextmanager
def registered(plugin: DevicePlugin, folder: Path) -> Iterator[DevicePlugin]:
    """The plugin, served beside kubelet's socket and made known to kubelet."""
    endpoint = plugin.resource.replace("/", "-") + ".sock"
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    services.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix://{folder / endpoint}")
    server.start()
    try:
        with grpc.insecure_channel(f"unix://{folder / 'kubelet.sock'}") as channel:
            request = messages.RegisterRequest(
                version="v1beta1", endpoint=endpoint, resource_name=plugin.resource, options=_options()
            )
            services.RegistrationStub(channel).Register(request, timeout=60)
        yield plugin
    finally:
        plugin.ended.set()
        server.stop(grace=2).wait()


def _options() -> messages.DevicePluginOptions:
    return messages.DevicePluginOptions(pre_start_required=True)
