"""Keeps this node's ResourceSlice equal to what the driver offers.

In: the devices as they are now, the slices as the API server has them, and when kubelet knows the driver. Out: one
slice. Kubelet deletes all slices of its node when it starts, so a slice that vanishes is made again. It is published
only after kubelet has registered the driver: a pod that is bound earlier waits for a minute. Each write makes
kube-scheduler try every waiting pod of the cluster, so nothing is written that says the same, and one second lies
between two writes.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.errors import VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.collection import EventKind
from deviceplugin.kube.reflector import Reflector, StoreChange
from deviceplugin.kube.resource_slices import NodeSlice, offer, slice_spec
from deviceplugin.model.claims import PublishedDevice
from deviceplugin.model.cluster_node import ClusterNode

log = structlog.get_logger("vcuda.dra")


@dataclass(frozen=True, slots=True)
class SliceTiming:
    """Seconds: between two writes, between checks, and the bounds of the back-off."""

    apart: float = 1.0
    check: float = 300.0
    first_wait: float = 0.5
    most_wait: float = 30.0


DEFAULT_SLICE_TIMING = SliceTiming()


class SlicePublisher:
    """`run` until it is cancelled. `slices` is run by the caller and shows the driver's slices of this node alone."""

    def __init__(
        self,
        client: KubeClient,
        slices: Reflector[str, NodeSlice],
        *,
        driver: str,
        node: Callable[[], ClusterNode | None],
        devices: Callable[[], Sequence[PublishedDevice]],
        pace: SliceTiming = DEFAULT_SLICE_TIMING,
    ) -> None:
        self._client = client
        self._slices = slices
        self._driver = driver
        self._node = node
        self._devices = devices
        self._pace = pace
        self._registered = asyncio.Event()
        self._due = asyncio.Event()
        self._written: NodeSlice | None = None
        slices.subscribe(self._changed)

    def registered(self) -> None:
        """Kubelet knows the driver, and may have deleted the slice."""
        self._registered.set()
        self._due.set()

    def soon(self) -> None:
        """A device may have changed."""
        self._due.set()

    async def run(self) -> None:
        await self._registered.wait()
        await self._slices.synced.wait()
        backoff = Backoff(first=self._pace.first_wait, most=self._pace.most_wait)
        while True:
            self._due.clear()
            try:
                await self._sync()
            except VcudaError as error:
                wait = backoff.next()
                log.warning("slice_not_published", error=error.message, retry_in_s=round(wait, 2))
                await asyncio.sleep(wait)
                continue
            backoff.reset()
            await asyncio.sleep(self._pace.apart)
            await self._wait_due()

    async def _wait_due(self) -> None:
        try:
            async with asyncio.timeout(self._pace.check):
                await self._due.wait()
        except TimeoutError:
            pass  # others may have changed the slice in a way that no event told

    async def _sync(self) -> None:
        node = self._node()
        if node is None:
            self._due.set()
            return  # its watch has not come so far
        slices = self._known()
        kept = slices[-1] if slices else None
        spec = slice_spec(self._driver, node.name, self._devices(), 1 if kept is None else kept.generation + 1)
        if kept is None:
            self._written = await self._client.create_slice(node, spec)
            log.info("slice_created", slice=self._written.name)
        elif offer(kept.spec) != offer(spec):
            self._written = await self._client.replace_slice(kept, spec)
            log.info("slice_changed", slice=kept.name, generation=self._written.generation)
        for other in slices[:-1]:
            await self._client.delete_slice(other)

    def _known(self) -> list[NodeSlice]:
        """The newest last; what was written counts until the watch shows it."""
        found = dict(self._slices.items)
        if self._written is not None:
            found[self._written.name] = self._written
        return sorted(found.values(), key=lambda each: (each.generation, each.name))

    def _changed(self, change: StoreChange[NodeSlice]) -> None:
        written, item = self._written, change.item
        is_over = change.kind is EventKind.DELETED or (written is not None and item.generation >= written.generation)
        if written is not None and item.uid == written.uid and is_over:
            self._written = None
        self._due.set()
