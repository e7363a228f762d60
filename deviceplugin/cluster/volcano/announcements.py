"""Writes to pods which GPUs they were promised, once Volcano has bound them.

In: pods that are bound where they were promised GPUs. Out: the annotations of a Binding of ours, so that the node's
agent, which waits for them, gives exactly these GPUs. Nothing waits for a write here. Why not before: Volcano copies
the annotations of its pod, as it knew it, into its Binding, and the API server would write these over newer ones; and
the admission policy lets nobody else bind with them. What the agent said meanwhile stays. Invariant: a pod without a
node is never written to. A write that fails is said once, and tried again after a wait of its own, which doubles.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.cluster.extender.bind.bind import binding_annotations
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.errors import KubeConflictError, KubeNotFoundError, VcudaError
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.units import ResourceNames

log = structlog.get_logger("vcuda.volcano")
_AT_ONCE = 16
_AGAIN_S = 1.0
_MOST_AGAIN_S = 60.0
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
        self._again_s = again_s
        self._wall_ns = wall_ns
        self._waits: dict[PodUid, Backoff] = {}
        self._due: asyncio.Queue[tuple[PodUid, str]] = asyncio.Queue()

    def announce(self, hold: PodHold) -> None:
        self._due.put_nowait((hold.pod.uid, hold.node))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_AT_ONCE):
                group.create_task(self._write_all(), name=f"annotations {number}")

    async def _write_all(self) -> None:
        while True:
            uid, node = await self._due.get()
            if not await self._write(uid, node):
                self._waits.pop(uid, None)

    async def _write(self, uid: PodUid, node: str) -> bool:
        """Whether it is to be tried again."""
        held = self._cache.on(node, uid)
        if held is None or not (held.announced and held.is_bound):
            return False  # it has ended, or the agent has said what it gave
        info = self._cache.nodes[node]
        wanted = binding_annotations(held, info.inventory, now_ns=self._wall_ns(), names=self._names, why=WHY)
        try:
            await self._api.annotate_pod(held.pod, wanted)
        except (KubeNotFoundError, KubeConflictError):
            return False  # the pod is gone; the watch will say so
        except VcudaError as error:
            if uid not in self._waits:
                log.warning("annotation_failed", pod=str(held.pod), error=error.message)
                self._waits[uid] = Backoff(first=self._again_s, most=_MOST_AGAIN_S)
            wait = self._waits[uid].next()
            asyncio.get_running_loop().call_later(wait, self._due.put_nowait, (uid, node))
            return True
        return False
