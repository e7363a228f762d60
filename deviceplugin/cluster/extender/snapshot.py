"""The nodes as one pod sees them: without what it holds itself, and with what is reserved for nominated pods.

In: the cache and the pod. Out: states of the nodes that can be used, rejections of the others. kube-scheduler evicts
other pods for a nominated pod. What it will need counts as used for every pod that has no higher priority. Where it
does not fit yet, its victims still run, and no pod of lower priority gets what they leave. The cache is read while
nothing awaits, so one request sees one moment.
"""

import operator
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
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

_STEPS_OF_STATE = 300  # to calculate a node with what was added; measured


@dataclass(frozen=True, slots=True)
class _Kept:
    """A node in that state, less what these nominated pods will need."""

    state: NodeState
    pods: tuple[ClusterPod, ...]
    left: NodeState | Rejection

    def is_for(self, state: NodeState, pods: tuple[ClusterPod, ...]) -> bool:
        return self.state is state and len(self.pods) == len(pods) and all(map(operator.is_, self.pods, pods))


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
        self._kept: dict[str, _Kept] = {}

    def nodes(self, pod: ClusterPod, names: Iterable[str], budget: Budget | None = None) -> NodeCandidates:
        """Written for speed: there are hundreds of names, and nearly every node is as the cache has it.

        `budget` is for placing nominated pods; without steps left their nodes are not offered.
        """
        cache, wanted = self._cache, tuple(names)
        apart = {held.node for held in cache.holds(pod.uid)}.union(cache.nominated_nodes)
        known = [
            None if name in apart else state for name, state in zip(wanted, map(cache.usable.get, wanted), strict=True)
        ]
        found = NodeCandidates([state for state in known if state is not None])
        for name in [name for name, state in zip(wanted, known, strict=True) if state is None]:
            judged = self.node(pod, name, budget=budget) if name in apart else self._as_it_is(name)
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

    def node(
        self, pod: ClusterPod, name: str, *, without: Iterable[PodUid] = (), budget: Budget | None = None
    ) -> NodeState | Rejection:
        """One node, as if the pods of `without` were not there.

        What nominated pods leave of it is calculated once for each state: every request of every pod asks.
        """
        if (problem := self._cache.problem(name)) is not None:
            return problem
        absent, budget = {pod.uid, *without}, budget or Budget()
        info = self._cache.nodes[name]
        pods = tuple(each for each in self._cache.nominated(name) if self._is_ahead(each, pod, absent))
        if not pods or not absent.isdisjoint(info.holds):
            return self._less(info, absent, pods, budget)
        known = self._kept.get(name)
        if known is None or not known.is_for(info.state, pods):
            known = _Kept(info.state, pods, self._less(info, absent, pods, budget))
            if not budget.is_spent:
                self._kept[name] = known
        return known.left

    def _is_ahead(self, other: ClusterPod, pod: ClusterPod, absent: Container[PodUid]) -> bool:
        if other.uid in absent or other.priority < pod.priority or other.pod.deleting:
            return False
        return not any(self._cache.holds(other.uid))

    def _less(
        self, info: NodeInfo, absent: Collection[PodUid], pods: Iterable[ClusterPod], budget: Budget
    ) -> NodeState | Rejection:
        kept: list[Allocation] = []
        needs = NOTHING
        for other in pods:
            taken = self._placed(other, info.state_without(absent, also=kept), budget)
            if taken is None:
                return NOMINATED
            kept += taken
            needs += other.needs or NOTHING
        return info.state_without(absent, also=kept, needs=needs)

    def rejection_together(
        self, asked: PodRequest, state: NodeState, *, budget: Budget | None = None
    ) -> Rejection | None:
        """Why the containers of a pod do not fit together on a node that passed the prefilter."""
        found = self._scorer.rejection_together(asked, state, budget=budget)
        return None if found is None else rejection_of(found)

    def _placed(self, pod: ClusterPod, state: NodeState, budget: Budget) -> tuple[Allocation, ...] | None:
        """None where it does not fit yet, or no steps are left."""
        here = Budget(ON_ONE_NODE if budget.left else 0)
        try:
            asked = pod_request(pod.pod, self._settings.names)
            return place_pod(asked, state, policy=self._settings.gpu_policy, budget=here).allocations
        except VcudaError:
            return None
        finally:
            budget.may(here.spent + _STEPS_OF_STATE)
