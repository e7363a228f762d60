"""Which devices kubelet gives to one container for one resource, before it calls Allocate.

In: the store, the request, devices that finished init containers of the pod leave behind. Out: the chosen set, marked
taken in memory. Order: reuse first and without a call, then the NUMA filter, then the plugin's
preferred devices, then whatever a short answer left open, at random. Errors are kubelet's texts.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox.kubelet.devices import DeviceStore, HeldKey

Preferred = Callable[[frozenset[str], frozenset[str], int], Awaitable[frozenset[str] | None]]


class AllocationError(Exception):
    """The pod cannot be admitted; the text is kubelet's."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """Free devices by where they lie; without a hint or a topology all are `anywhere`."""

    aligned: frozenset[str]
    unaligned: frozenset[str]
    anywhere: frozenset[str]


@dataclass(slots=True)
class Chooser:
    """The choice for one (container, resource)."""

    store: DeviceStore
    key: HeldKey
    rng: random.Random
    preferred: Preferred
    numa: frozenset[int] | None = None

    async def choose(self, required: int, reusable: frozenset[str]) -> frozenset[str]:
        """The devices to pass to Allocate; empty means that nothing is to be done."""
        resource = self.key.resource
        missing = self._checked(required)
        if missing == 0:
            return frozenset()
        chosen: set[str] = set()
        if self._draw(chosen, reusable, missing):
            return frozenset(chosen)
        free = self.store.healthy[resource] - self.store.allocated.get(resource, set())
        short = missing - len(chosen)
        if len(free) < short:
            raise AllocationError(
                f"requested number of devices unavailable for {resource}. Requested: {short}, Available: {len(free)}"
            )
        affinity = self.sort_by_affinity(frozenset(free))
        if short < len(affinity.aligned):
            return await self._finish(chosen, missing, affinity.aligned, [affinity.aligned])
        if self._draw(chosen, affinity.aligned, missing):
            return frozenset(chosen)
        return await self._finish(chosen, missing, frozenset(free), [affinity.unaligned, affinity.anywhere])

    def _checked(self, required: int) -> int:
        """How many are still to be chosen, after kubelet's checks in their order."""
        resource = self.key.resource
        held = self.store.held.get(self.key)
        before = held.ids if held else frozenset()
        if held and len(before) != required:
            raise AllocationError(
                f'pod "{self.key.uid}" container "{self.key.container}" changed request for resource '
                f'"{resource}" from {len(before)} to {required}'
            )
        if resource not in self.store.healthy:
            raise AllocationError(f"cannot allocate unregistered device {resource}")
        if not self.store.healthy[resource]:
            raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not self.store.healthy[resource] >= before:
            raise AllocationError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )
        return required - len(before)

    def sort_by_affinity(self, free: frozenset[str]) -> Affinity:
        """The NUMA filter."""
        if self.numa is None or not self.store.has_topology(self.key.resource):
            return Affinity(frozenset(), frozenset(), free)
        nodes = {device: self.store.numa_of(self.key.resource, device) for device in free}
        aligned = frozenset(device for device in free if nodes[device] & self.numa)
        anywhere = frozenset(device for device in free if not nodes[device])
        return Affinity(aligned, free - aligned - anywhere, anywhere)

    async def _finish(
        self, chosen: set[str], needed: int, offered: frozenset[str], fallback: list[frozenset[str]]
    ) -> frozenset[str]:
        preferred = await self.preferred(offered | chosen, frozenset(chosen), needed)
        for source in [(preferred or frozenset()) & offered, *fallback]:
            if self._draw(chosen, source, needed):
                return frozenset(chosen)
        raise AllocationError(
            f"unexpectedly allocated less resources than required. Requested: {needed}, Got: {len(chosen)}"
        )

    def _draw(self, chosen: set[str], source: frozenset[str], needed: int) -> bool:
        """Takes from the source, in random order, until there are enough."""
        candidates = sorted(source - chosen)
        self.rng.shuffle(candidates)
        taken = candidates[: needed - len(chosen)]
        chosen.update(taken)
        self.store.take(self.key.resource, taken)
        return len(chosen) >= needed
