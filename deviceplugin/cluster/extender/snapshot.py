"""The nodes as one pod sees them: without what it holds itself, and with what is reserved for nominated pods.

In: the cache and the pod. Out: states of the nodes that can be used, rejections of the others. kube-scheduler evicts
other pods for a nominated pod. What it will need counts as used for every pod that has no higher priority. Where it
does not fit yet, its victims still run, and no pod of lower priority gets what they leave. The cache is read while
nothing awaits, so one request sees one moment.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.rejection import NOMINATED, SEARCH_EXHAUSTED, TOGETHER, Rejection
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.errors import CapacityError, RequestError, SearchLimitError, VcudaError
from deviceplugin.model.allocation import Allocation, PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.model.units import NOTHING
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.pod import place_pod


@dataclass(slots=True)
class NodeCandidates:
    """Every requested node, in one of the two."""

    states: list[NodeState] = field(default_factory=list)
    rejected: dict[str, Rejection] = field(default_factory=dict)


class ClusterSnapshot:
    """Reads only."""

    def __init__(self, cache: SchedulerCache, settings: Settings) -> None:
        self._cache = cache
        self._settings = settings

    def nodes(self, pod: ClusterPod, names: Iterable[str]) -> NodeCandidates:
        """Written for speed: there are hundreds of names, and nearly every node is as the cache has it."""
        cache, wanted = self._cache, tuple(names)
        apart = {held.node for held in cache.holds(pod.uid)}.union(cache.nominated_nodes)
        known = [
            None if name in apart else state for name, state in zip(wanted, map(cache.usable.get, wanted), strict=True)
        ]
        found = NodeCandidates([state for state in known if state is not None])
        for name in [name for name, state in zip(wanted, known, strict=True) if state is None]:
            judged = self.node(pod, name) if name in apart else self._as_it_is(name)
            if isinstance(judged, Rejection):
                found.rejected[name] = judged
            else:
                found.states.append(judged)
        return found

    def usable_but(self, names: Container[str]) -> list[str]:
        """The nodes that take pods with GPUs, without these."""
        return [name for name, info in self._cache.nodes.items() if info.problem is None and name not in names]

    def _as_it_is(self, name: str) -> NodeState | Rejection:
        return self._cache.problem(name) or self._cache.nodes[name].state

    def node(self, pod: ClusterPod, name: str, *, without: Iterable[PodUid] = ()) -> NodeState | Rejection:
        """One node, as if the pods of `without` were not there."""
        if (problem := self._cache.problem(name)) is not None:
            return problem
        node_info = self._cache.nodes[name]
        absent = {pod.uid, *without}
        kept: list[Allocation] = []
        needs = NOTHING
        for other in self._cache.nominated(name):
            if other.uid in absent or other.priority < pod.priority or other.pod.deleting:
                continue
            if any(self._cache.holds(other.uid)):
                continue
            taken = self._allocations_of(other, node_info.state_without(absent, also=kept))
            if taken is None:
                return NOMINATED
            kept += taken
            needs += other.needs or NOTHING
        return node_info.state_without(absent, also=kept, needs=needs)

    def rejection_together(self, asked: PodRequest, state: NodeState) -> Rejection | None:
        """Why the containers of a pod do not fit together on a node that passed the prefilter.

        Of one container the prefilter is certain.
        """
        try:
            place_pod(asked, state, policy=self._settings.gpu_policy)
        except SearchLimitError:
            return SEARCH_EXHAUSTED
        except (CapacityError, RequestError):
            return TOGETHER
        return None

    def _allocations_of(self, pod: ClusterPod, state: NodeState) -> tuple[Allocation, ...] | None:
        try:
            asked = pod_request(pod.pod, self._settings.names)
            return place_pod(asked, state, policy=self._settings.gpu_policy).allocations
        except VcudaError:
            return None
