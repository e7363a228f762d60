"""Writes to pods which GPUs are reserved for them, because Volcano's Binding cannot carry it.

In: reservations as they are made. Out: the annotations of a Binding of ours, so that the node's agent gives exactly
these GPUs. Nothing waits for a write. A reservation that was taken back meanwhile is not written, and what is written
already is not written again: a gang that does not fit is tried every second, and gets the same GPUs each time. If the
agent is faster, it chooses itself, and its own annotation stays. Invariant: a pod is written by one task at a time.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from deviceplugin.cluster.extender.bind.bind import binding_annotations
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.errors import KubeConflictError, KubeNotFoundError, VcudaError
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.units import ResourceNames

log = structlog.get_logger("vcuda.volcano")
_AT_ONCE = 16
_AGAIN_S = 1.0
_MOST_KNOWN = 20_000
WHY = "Volcano chose the node"


class AnnotateApi(Protocol):
    """What `Announcements` needs of the API server."""

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None: ...


class Announcements:
    """`announce` is cheap; `run` writes until it is cancelled."""

    def __init__(
        self,
        cache: SchedulerCache,
        api: AnnotateApi,
        *,
        names: ResourceNames,
        again_s: float = _AGAIN_S,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._cache = cache
        self._api = api
        self._names = names
        self._allocation = annotation_names(names.domain).allocation
        self._again_s = again_s
        self._wall_ns = wall_ns
        self._due: OrderedDict[PodUid, str] = OrderedDict()
        self._written: OrderedDict[PodUid, tuple[str, str]] = OrderedDict()
        self._busy: set[PodUid] = set()
        self._has_due = asyncio.Event()

    def announce(self, hold: PodHold) -> None:
        self._due[hold.pod.uid] = hold.node
        self._has_due.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_AT_ONCE):
                group.create_task(self._write_all(), name=f"annotations {number}")

    async def _write_all(self) -> None:
        while True:
            await self._has_due.wait()
            uid = next((each for each in self._due if each not in self._busy), None)
            if uid is None:
                self._has_due.clear()
                continue
            node = self._due.pop(uid)
            self._busy.add(uid)
            try:
                await self._write(uid, node)
            finally:
                self._busy.discard(uid)
                self._has_due.set()

    async def _write(self, uid: PodUid, node: str) -> None:
        held = self._cache.on(node, uid)
        if held is None or not held.announced:
            return  # given back, or the agent has said what it gave
        info = self._cache.nodes[node]
        wanted = binding_annotations(held, info.inventory, now_ns=self._wall_ns(), names=self._names, why=WHY)
        sign = (node, wanted[self._allocation])
        if self._written.get(uid) == sign:
            return
        try:
            await self._api.annotate_pod(held.pod, wanted)
        except (KubeNotFoundError, KubeConflictError):
            return  # the pod is gone; the watch will say so
        except VcudaError as error:
            log.warning("annotation_failed", pod=str(held.pod), error=error.message, retry_in_s=self._again_s)
            asyncio.get_running_loop().call_later(self._again_s, self._retry, uid, node)
            return
        self._written[uid] = sign
        if len(self._written) > _MOST_KNOWN:
            self._written.popitem(last=False)

    def _retry(self, uid: PodUid, node: str) -> None:
        if uid not in self._due:
            self._due[uid] = node
            self._has_due.set()
