"""The device IDs of both resources: their list and health, their changes, and which of them kubelet should take.

In: an inventory. Out: protobuf messages, built once for each change and sent to every stream (14,000 IDs take 50 ms to
build). A message is always the full list. A GPU that takes no new container now (unhealthy, in MIG mode, compute
prohibited) keeps its IDs as unhealthy, so that capacity stays and allocatable shrinks.

An ID only hints at a GPU: the ledger decides. `choose_ids` makes kubelet's own records show where a container is.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from heapq import nsmallest

import msgspec

from deviceplugin.errors import RequestError, UnknownDeviceError
from deviceplugin.model.allocation import Allocation
from deviceplugin.model.gpu import DeviceId, Gpu, GpuKey, GpuUuid, Inventory, device_ids, gpu_keys, key_of, of_gpu
from deviceplugin.model.units import Resource
from deviceplugin.wire import deviceplugin_pb2 as pb

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


class Catalog(msgspec.Struct, frozen=True):
    """Every ID of one inventory. `messages` are what the streams send, with each GPU's NUMA node if `numa`."""

    inventory: Inventory
    keys: Mapping[GpuUuid, GpuKey]
    issued: Mapping[Resource, frozenset[DeviceId]]
    messages: Mapping[Resource, pb.ListAndWatchResponse]
    numa: bool = False

    def aligned(self, ids: Iterable[str]) -> frozenset[GpuUuid]:
        """The GPUs of the NUMA nodes that kubelet chose with these IDs; empty without `numa`."""
        if not self.numa:
            return frozenset()
        keys = {key_of(text) for text in ids}
        nodes = {gpu.numa for gpu in self.inventory.gpus if self.keys[gpu.uuid] in keys}
        return frozenset(gpu.uuid for gpu in self.inventory.gpus if gpu.numa in nodes)

    def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """RequestError for no ID or a duplicate, UnknownDeviceError for an ID that is not issued."""
        if not ids:
            raise RequestError(f"kubelet asked for {resource.value} with no device ID; ask for at least one")
        asked = set(ids)
        if len(asked) != len(ids):
            raise RequestError(f"kubelet asked for {resource.value} with the same device ID twice; restart kubelet")
        if unknown := asked - self.issued[resource]:
            raise UnknownDeviceError(
                f"device ID {min(unknown)[:40]!r} is not one of this node's {resource.value} IDs; "
                "the GPU was removed, or another plugin serves the resource"
            )


def catalog(inventory: Inventory, *, numa: bool = False) -> Catalog:
    """IDs and messages for an inventory; `numa` adds TopologyInfo where a GPU's NUMA node is known."""
    keys = gpu_keys(gpu.uuid for gpu in inventory.gpus)
    ids = {
        resource: {gpu.uuid: device_ids(resource, gpu, keys[gpu.uuid]) for gpu in inventory.gpus}
        for resource in Resource
    }
    issued = {resource: frozenset(one for each in by_gpu.values() for one in each) for resource, by_gpu in ids.items()}
    messages = {
        resource: pb.ListAndWatchResponse(
            devices=[
                device
                for gpu in inventory.gpus
                for device in _devices(gpu, by_gpu[gpu.uuid], healthy=inventory.is_available(gpu), numa=numa)
            ]
        )
        for resource, by_gpu in ids.items()
    }
    return Catalog(inventory, keys, issued, messages, numa)


def _devices(gpu: Gpu, ids: Sequence[DeviceId], *, healthy: bool, numa: bool) -> list[pb.Device]:
    health = HEALTHY if healthy else UNHEALTHY
    if numa and gpu.numa is not None:
        topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=gpu.numa)])
        return [pb.Device(ID=one, health=health, topology=topology) for one in ids]
    return [pb.Device(ID=one, health=health) for one in ids]


class DeviceFeed:
    """The current `catalog`, which only `publish` changes, and the streams that wait for the next one.

    Belongs to one event loop.
    """

    def __init__(self, first: Catalog) -> None:
        self.catalog = first
        self._version = 0
        self._changed = asyncio.Event()

    def publish(self, fresh: Catalog) -> None:
        self.catalog = fresh
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()  # a set event would wake a stream again that waits for the next change

    async def messages(self, resource: Resource) -> AsyncIterator[pb.ListAndWatchResponse]:
        """The current list at once, then the list after each change; changes in between are skipped, not queued."""
        sent = -1
        while True:
            changed = self._changed
            if sent != self._version:
                sent = self._version
                yield self.catalog.messages[resource]
            else:
                await changed.wait()


def quotas(allocation: Allocation, resource: Resource, keys: Mapping[GpuUuid, GpuKey]) -> dict[GpuKey, int]:
    """How many IDs of each GPU: its share of the cores, or an even part of the blocks that were asked for."""
    if resource is Resource.CORE:
        return {keys[share.uuid]: share.cores for share in allocation.shares if share.uuid in keys}
    left = allocation.request.blocks
    out: dict[GpuKey, int] = {}
    for share in allocation.shares:
        part = min(left, allocation.request.blocks_per_gpu)
        left -= part
        if share.uuid in keys:
            out[keys[share.uuid]] = part
    return out


def choose_ids(
    available: Sequence[str], must_include: Sequence[str], size: int, wanted: Mapping[GpuKey, int]
) -> tuple[str, ...]:
    """`must_include` first, then each GPU's quota in slot order, then whatever is left, fullest offer first."""
    chosen = list(dict.fromkeys(must_include))[:size]
    held = Counter(key_of(text) for text in chosen)
    for key, quota in wanted.items():
        part = min(quota - held[key], size - len(chosen))
        if part > 0:
            chosen += nsmallest(part, of_gpu(available, key).difference(chosen))
    if len(chosen) < size:
        chosen += _fullest_first(set(available).difference(chosen), size - len(chosen))
    return tuple(chosen)


def _fullest_first(free: Iterable[str], count: int) -> list[str]:
    """For a hint that placement could not give, or that kubelet's offer does not cover."""
    by_key = _by_gpu(free)
    keys = sorted(by_key, key=lambda each: (-len(by_key[each]), each))
    return [text for key in keys for text in sorted(by_key[key])][:count]


def _by_gpu(ids: Iterable[str]) -> dict[GpuKey, list[str]]:
    out: dict[GpuKey, list[str]] = {}
    for text in ids:
        out.setdefault(key_of(text), []).append(text)
    return out
