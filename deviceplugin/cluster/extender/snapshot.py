"""The nodes as one pod sees them: without what it holds itself, and with what is reserved for nominated pods.

In: the cache and the pod. Out: states of the nodes that can be used, rejections of the others. kube-scheduler evicts
other pods for a nominated pod. What it will need counts as used for every pod that has no higher priority. Where it
does not fit yet, its victims still run, and no pod of lower priority gets what they leave. The cache is read while
nothing awaits, so one request sees one moment.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.rejection import NOMINATED, Rejection, rejection_of
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.errors import VcudaError
from deviceplugin.model.allocation import Allocation, PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.model.units import NOTHING
from deviceplugin.placement.budget import ON_ONE_NODE, Budget
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.pod import place_pod
from deviceplugin.placement.snapshot import Snapshot

_MOST_NOMINATED = 4096


@dataclass(frozen=True, slots=True)
class _NominatedChoice:
    """Which GPUs a nominated pod would have of a node in that state; None where it does not fit yet."""

    pod: ClusterPod
    snapshot: Snapshot
    allocations: tuple[Allocation, ...] | None


@dataclass(slots=True)
class NodeCandidates:
    """Every requested node, in one of the two."""

    states: list[NodeState] = field(default_factory=list)
    rejected: dict[str, Rejection] = field(default_factory=dict)


class ClusterSnapshot:
    """Reads only."""

    def __init__(self, cache: SchedulerCache, settings: Settings, scorer: NodeScorer) -> None:
        self._cache = cache
        self._settings = settings
        self._scorer = scorer
        self._nominated: OrderedDict[PodUid, _NominatedChoice] = OrderedDict()

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

    def rejection_together(
        self, asked: PodRequest, state: NodeState, *, budget: Budget | None = None
    ) -> Rejection | None:
        """Why the containers of a pod do not fit together on a node that passed the prefilter."""
        found = self._scorer.rejection_together(asked, state, budget=budget)
        return None if found is None else rejection_of(found)

    def _allocations_of(self, pod: ClusterPod, state: NodeState) -> tuple[Allocation, ...] | None:
        """Placed once for each state of the node: every request of every pod asks for it."""
        known = self._nominated.get(pod.uid)
        if known is None or known.pod is not pod or known.snapshot != state.snapshot:
            known = self._nominated[pod.uid] = _NominatedChoice(pod, state.snapshot, self._placed(pod, state))
            if len(self._nominated) > _MOST_NOMINATED:
                self._nominated.popitem(last=False)
        return known.allocations

    def _placed(self, pod: ClusterPod, state: NodeState) -> tuple[Allocation, ...] | None:
        try:
            asked = pod_request(pod.pod, self._settings.names)
            budget = Budget(ON_ONE_NODE)
            return place_pod(asked, state, policy=self._settings.gpu_policy, budget=budget).allocations
        except VcudaError:
            return None
