"""The last step before a container is created: PreStartContainer for each of its resources.

In: a pod and a container that is about to start. Out: the cached answers to Allocate, to be merged. Facts kept
(research 1.7, 1.8, 1.11): resources in random order; no call where the endpoint's options are unknown (kubelet
restarted and the plugin is not back) or not required; a stopped or forgotten endpoint blocks the start; without
devices in the cache a required PreStartContainer fails for ever, otherwise Allocate is made up for here, outside the
admission order.
"""

import random
from dataclasses import dataclass

from deviceplugin.wire import deviceplugin_pb2 as pb
from sandbox.kubelet.allocation import Allocator
from sandbox.kubelet.calls import CallLog, PluginError
from sandbox.kubelet.choosing import AllocationError
from sandbox.kubelet.devices import DeviceStore, HeldKey
from sandbox.kubelet.endpoints import Endpoints
from sandbox.kubelet.podspec import Container, Pod


class PreStartError(Exception):
    """The container cannot be configured; kubelet tries again later."""


@dataclass(frozen=True, slots=True)
class PreStart:
    """The device manager's read side."""

    store: DeviceStore
    endpoints: Endpoints
    allocator: Allocator
    calls: CallLog
    rng: random.Random
    timeout_s: float

    async def options_for(self, pod: Pod, container: Container) -> list[pb.ContainerAllocateResponse]:
        names = [name for name, count in container.limits.items() if count and self.store.known(name)]
        self.rng.shuffle(names)
        late = False
        for resource in names:
            key = HeldKey(pod.uid, container.name, resource)
            await self._call(key)
            late = late or key not in self.store.held
        if late:
            try:
                await self.allocator.allocate(pod, container)
            except AllocationError as error:
                raise PreStartError(str(error)) from error
        return [held.response for held in self.store.of_container(pod.uid, container.name).values()]

    async def _call(self, key: HeldKey) -> None:
        endpoint = self.endpoints.table.get(key.resource)
        if endpoint is None:
            raise PreStartError(f"endpoint not found in cache for a registered resource: {key.resource}")
        if endpoint.options is None or not endpoint.options.pre_start_required:
            return
        held = self.store.held.get(key)
        if held is None:
            raise PreStartError(
                f"no devices found allocated in local cache for pod {key.uid}, "
                f"container {key.container}, resource {key.resource}"
            )
        devices = sorted(held.ids)
        self.rng.shuffle(devices)
        try:
            stub = endpoint.stub()
            await self.calls.record(
                lambda request: stub.PreStartContainer(request, timeout=self.timeout_s),
                pb.PreStartContainerRequest(devices_ids=devices),
                method="PreStartContainer",
                resource=key.resource,
                uid=key.uid,
                container=key.container,
            )
        except PluginError as error:
            raise PreStartError(f"device plugin PreStartContainer rpc failed with err: {error}") from error
