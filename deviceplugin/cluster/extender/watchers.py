"""What follows the nodes and pods of the cache beside the verbs.

`WakeUp` makes kube-scheduler retry pods when GPUs become free.

In: nodes where something was freed. Out: a changed annotation on such a node, at most once a second, and only while a
pod waits for room. kube-scheduler sees the end of a pod earlier than this process and may ask while the pod still
counts here; nothing would make it ask again. Any change of a node does, and one is enough for all pods that wait.
Invariant: a node that the API server refuses to change, said once, is passed over for another one.

`WorkloadHistory` is what the fragmentation policy plans for: the pods that this cluster has had, once they are enough.

In: every pod when it is first seen, waiting or running. Out: a workload for the scorer, at the start and then every
10 minutes. The history is not stored: after a restart the pods that run then are seen again.

`OvercommitMonitor` finds GPUs of which bound pods hold more than the GPU has.

In: nodes that changed or got a pod, and the cache. Out: these GPUs, counted, and logged when the state begins and ends.
This scheduler never binds so. Another scheduler may, and so may a Binding of an earlier process that arrived after this
one had listed the pods. The node's agent gives the last pod other GPUs, or refuses it. A few nodes are checked at a
time, so a start with thousands of pods does not wait.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from deviceplugin.cluster.extender.cache.node_info import needs_of
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.errors import KubeError, KubeNotFoundError, VcudaError
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.fit import model_of
from deviceplugin.placement.fragmentation import ObservedWorkload, Workload
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.snapshot import occupied

log = structlog.get_logger("vcuda.cluster")
_MOST_TRIED = 5  # nodes in a row
_ABOUT_ONE_NODE = {403, 409, 413, 422}  # a policy, a conflict, a node that is full of annotations


class NodeApi(Protocol):
    """What `WakeUp` needs of the API server."""

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None: ...


class WakeUp:
    """`freed` is cheap and may be called often; `run` writes until it is cancelled."""

    def __init__(
        self,
        api: NodeApi,
        names: AnnotationNames,
        *,
        has_unplaced_pods: Callable[[], bool],
        wall: Callable[[], float],
        every: float = 1.0,
        delay: float = 0.02,
    ) -> None:
        self._api = api
        self._annotation = names.freed
        self._has_unplaced_pods = has_unplaced_pods
        self._wall = wall
        self._every = every
        self._delay = delay
        self._nodes: dict[str, None] = {}
        self._refusing: set[str] = set()
        self._has_freed = asyncio.Event()

    def freed(self, node: str) -> None:
        if self._has_unplaced_pods():
            self._nodes[node] = None
            self._has_freed.set()

    async def run(self) -> None:
        """Never raises when the API server fails: the next attempt repeats the message."""
        while True:
            await self._has_freed.wait()
            await asyncio.sleep(self._delay)
            if self._has_unplaced_pods():
                await self._annotate_one()
                await asyncio.sleep(self._every)
            else:
                self._nodes.clear()
            if not self._nodes:
                self._has_freed.clear()

    async def _annotate_one(self) -> None:
        """Writes to one node that still exists and may be changed, those that refused before at the end."""
        waiting, self._nodes = self._nodes, {}
        refused: dict[str, None] = {}
        latest_first = list(reversed(waiting))
        for node in sorted(latest_first, key=self._refusing.__contains__)[:_MOST_TRIED]:
            try:
                await self._api.annotate_node(node, {self._annotation: f"{self._wall():.3f}"})
            except KubeNotFoundError:
                continue
            except VcudaError as error:
                if isinstance(error, KubeError) and error.code in _ABOUT_ONE_NODE:
                    refused[node] = None
                    self._say_once(node, error)
                    continue
                self._nodes = {**waiting, **self._nodes}
                log.warning("wake_up_failed", node=node, error=error.message)
            else:
                self._refusing.discard(node)
            return
        self._nodes = {**waiting, **self._nodes} if len(waiting) > _MOST_TRIED else {**refused, **self._nodes}

    def _say_once(self, node: str, error: VcudaError) -> None:
        if node not in self._refusing:
            log.warning("wake_up_failed", node=node, error=error.message)
        self._refusing.add(node)


EVERY_S = 600.0


class WorkloadHistory:
    """The caller runs `refresh` about once a second."""

    def __init__(self, scorer: NodeScorer, *, clock: Callable[[], float], observed: ObservedWorkload) -> None:
        self._scorer = scorer
        self._clock = clock
        self._observed = observed
        self._current: Workload | None = None
        self._next = clock() + EVERY_S

    def record(self, pod: ClusterPod, names: ResourceNames) -> PodRequest | None:
        """Called once for each pod; what it asks for. A pod with a wrong request does not count."""
        try:
            asked = pod_request(pod.pod, names)
            self._observed.see(asked, needs_of(pod.needs))
        except VcudaError:
            return None
        return asked

    def refresh(self) -> None:
        if self._clock() >= self._next:
            self.renew()

    def renew(self) -> None:
        """Plans for what was seen so far."""
        self._next = self._clock() + EVERY_S
        found = self._observed.workload()
        if found is not None and found != self._current:
            self._current = found
            self._scorer.expect(found)


_AT_ONCE = 200


class OvercommitMonitor:
    """`check` looks at the nodes that the cache suspects, and at those that were over-committed."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache
        self._found: dict[str, frozenset[GpuUuid]] = {}

    @property
    def gpus(self) -> int:
        return sum(len(each) for each in self._found.values())

    def check(self) -> None:
        for node in tuple(self._cache.suspects)[:_AT_ONCE]:
            del self._cache.suspects[node]
            self._check_node(node)
        for node in tuple(self._found):
            self._check_node(node)

    def _check_node(self, node: str) -> None:
        before, now = self._found.pop(node, frozenset()), self._overcommitted(node)
        if now:
            self._found[node] = now
        for uuid in sorted(now - before):
            pods = sorted(str(held.pod) for held in self._holders(node, uuid))
            log.warning("gpu_overcommitted", node=node, gpu=uuid, pods=pods)
        for uuid in sorted(before - now):
            log.info("gpu_overcommit_ended", node=node, gpu=uuid)

    def _overcommitted(self, node: str) -> frozenset[GpuUuid]:
        node_info = self._cache.nodes.get(node)
        if node_info is None or node_info.inventory is None or not node_info.may_be_overcommitted:
            return frozenset()
        has = {gpu.uuid: model_of(gpu).whole for gpu in node_info.inventory.gpus}
        held = occupied(one for each in node_info.holds.values() if each.is_bound for one in each.allocations)
        return frozenset(uuid for uuid, use in held.items() if uuid in has and not has[uuid].covers(use))

    def _holders(self, node: str, uuid: GpuUuid) -> list[PodHold]:
        holds = self._cache.nodes[node].holds.values()
        return [held for held in holds if held.is_bound and uuid in held.uuids]
