"""Devices for one container at a time: choice, Allocate, record, checkpoint; and PreStartContainer before its start.

In: a pod and one of its containers. Out: entries in the store and one checkpoint write for the container, or an
AllocationError with kubelet's text; before the start the cached answers, to be merged. Facts kept:
- resources of a container in random order, one Allocate each; a failed call forgets its reservations;
- init containers' devices are reused later in the pod, sidecars keep theirs; a response is asked once and cached;
- nothing is freed before all sources of pods are ready (1.36: `UpdateAllocatedDevices`);
- no PreStartContainer if the endpoint's options are unknown (the plugin is not back) or do not require it;
- a stopped or forgotten endpoint blocks the start;
- without devices in the cache a required PreStartContainer always fails; if none is required, Allocate is called then,
  outside the admission order.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

from deviceplugin.wire import deviceplugin_pb2 as pb
from sandbox.kubelet.calls import CallLog, Message, PluginError
from sandbox.kubelet.choosing import AllocationError, Chooser, Preferred
from sandbox.kubelet.devices import DeviceStore, HeldKey
from sandbox.kubelet.endpoints import Endpoints
from sandbox.kubelet.podspec import Container, Pod, Role

Reusable = dict[str, frozenset[str]]


@dataclass(slots=True)
class Allocator:
    """The device manager's write side."""

    store: DeviceStore
    endpoints: Endpoints
    calls: CallLog
    rng: random.Random
    active: Callable[[], frozenset[str]]
    ready: Callable[[], bool]
    write_checkpoint: Callable[[], None]
    numa_alignment: bool
    _reusable: dict[str, Reusable] = field(default_factory=dict)

    async def allocate(self, pod: Pod, container: Container, *, skip: bool = False) -> None:
        """Admits one container; `skip`: kubelet just restarted and the runtime says that the container runs."""
        self._reusable = {pod.uid: self._reusable.get(pod.uid, {})}
        reusable = self._reusable[pod.uid]
        await self._resources(pod, container, reusable, skip=skip)
        for resource, held in self.store.of_container(pod.uid, container.name).items():
            before = reusable.get(resource, frozenset())
            reusable[resource] = before | held.ids if container.role is Role.INIT else before - held.ids

    async def _resources(self, pod: Pod, container: Container, reusable: Reusable, *, skip: bool) -> None:
        names = [name for name in container.limits if self.store.known(name)]
        self.rng.shuffle(names)
        numa = self._numa(pod, container, names) if self.numa_alignment else None
        dirty = False
        if names and self.ready():
            self.store.free_inactive(self.active() | {pod.uid})
        for resource in names:
            if skip:
                continue
            key = HeldKey(pod.uid, container.name, resource)
            chooser = Chooser(self.store, key, self.rng, self._preferred(key), numa)
            chosen = await chooser.choose(container.limits[resource], reusable.get(resource, frozenset()))
            if chosen:
                await self._call(key, chosen)
                dirty = True
        if dirty:
            self.write_checkpoint()

    async def _call(self, key: HeldKey, chosen: frozenset[str]) -> None:
        devices = sorted(chosen)
        self.rng.shuffle(devices)
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=devices)])
        try:
            response = await self._rpc("Allocate", key, request)
        except PluginError as error:
            self.store.recount()
            raise AllocationError(str(error)) from error
        if not response.container_responses:
            raise AllocationError("no containers return in allocation response &AllocateResponse{}")
        self.store.hold(key, chosen, response.container_responses[0])

    def _preferred(self, key: HeldKey) -> Preferred:
        async def ask(available: frozenset[str], must: frozenset[str], size: int) -> frozenset[str] | None:
            endpoint = self.endpoints.table.get(key.resource)
            if endpoint is None or endpoint.options is None:
                return None
            if not endpoint.options.get_preferred_allocation_available:
                return None
            request = pb.PreferredAllocationRequest(
                container_requests=[
                    pb.ContainerPreferredAllocationRequest(
                        available_deviceIDs=self._shuffled(available),
                        must_include_deviceIDs=self._shuffled(must),
                        allocation_size=size,
                    )
                ]
            )
            try:
                response = await self._rpc("GetPreferredAllocation", key, request)
            except PluginError as error:
                text = f"device plugin GetPreferredAllocation rpc failed with err: {error}"
                raise AllocationError(text) from error
            answers = response.container_responses
            return frozenset(answers[0].deviceIDs) if answers else None

        return ask

    async def _rpc(self, method: str, key: HeldKey, request: Message) -> Message:
        """No deadline, as kubelet: a plugin that hangs here freezes the node."""
        endpoint = self.endpoints.table.get(key.resource)
        if endpoint is None:
            raise PluginError(f"unknown Device Plugin {key.resource}")
        return await self.calls.record(
            getattr(endpoint.stub(), method),
            request,
            method=method,
            resource=key.resource,
            uid=key.uid,
            container=key.container,
        )

    def _numa(self, pod: Pod, container: Container, names: list[str]) -> frozenset[int] | None:
        """The smallest set of NUMA nodes whose free devices serve every resource that reports topology."""
        nodes = sorted(self.store.numa_nodes())
        with_topology = [name for name in names if self.store.has_topology(name)]
        for size in range(1, len(nodes) + 1):
            for mask in combinations(nodes, size):
                if all(self._fits(pod, container, name, frozenset(mask)) for name in with_topology):
                    return frozenset(mask)
        return None

    def _fits(self, pod: Pod, container: Container, name: str, mask: frozenset[int]) -> bool:
        reusable = self._reusable[pod.uid].get(name, frozenset())
        free = (self.store.healthy.get(name, frozenset()) - self.store.allocated.get(name, set())) | reusable
        return sum(1 for device in free if self.store.numa_of(name, device) & mask) >= container.limits[name]

    def _shuffled(self, devices: frozenset[str]) -> list[str]:
        out = sorted(devices)
        self.rng.shuffle(out)
        return out


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
