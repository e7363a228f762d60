"""The nodes as one pod sees them: without what it holds itself, and with what is reserved for nominated pods.

In: the cache and the pod. Out: states of the nodes that can be used, rejections of the others. kube-scheduler evicts
other pods for a nominated pod. What it will need counts as used for every pod that comes after it: by priority, and
among nominated pods of one priority by age. Where it does not fit yet, its victims still run, and no later pod gets
what they leave. The cache is read while nothing awaits, so one request sees one moment.

Invariant: who asks does not pay for nominated pods of others. One turn begins to place no more of them than
`Budget.may_for_others` lets it, and the next one goes on there, until the node or what one of these pods asks changes.
"""

import math
from collections.abc import Collection, Container, Iterable, Sequence
from functools import cached_property
from itertools import chain

import msgspec

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.rejection import NOMINATED, NOT_PLACED_YET, Rejection, rejection_of
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.errors import VcudaError
from deviceplugin.model.allocation import Allocation, PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.model.units import NOTHING, Compute, ResourceNames
from deviceplugin.placement.budget import Budget
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.pod import place_pod
from deviceplugin.placement.prefilter import Prefilter

_STEPS_OF_NOMINATED = 8_000  # where that does not suffice, later pods wait as if it had no room yet
_MOST_HOLDERS = 64


class Asking(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A pod whose request could be read, ready to be compared with many nodes."""

    pod: ClusterPod
    request: PodRequest

    @cached_property
    def prefilter(self) -> Prefilter:
        return Prefilter(self.request)


class _NominatedPod(msgspec.Struct):
    """A nominated pod, what it asks and will take of the node, and what it leaves to those after it."""

    pod: ClusterPod
    request: PodRequest | None
    taken: tuple[Allocation, ...]
    left: NodeState | Rejection

    @property
    def needs(self) -> Compute:
        return self.pod.needs or NOTHING


class _Reserved(msgspec.Struct):
    """The nominated pods of one node in their order, as many as were placed; `first` is the node before them."""

    absent: frozenset[PodUid]
    first: NodeState
    placed: list[_NominatedPod] = msgspec.field(default_factory=list)

    def keep(self, ahead: Sequence[ClusterPod], names: ResourceNames) -> None:
        """Only those that are still the first of these, and ask what they asked."""
        for at, (known, pod) in enumerate(zip(self.placed, ahead, strict=False)):  # not all are placed yet
            if known.pod is pod:
                continue
            if (known.pod.uid, known.needs) != (pod.uid, pod.needs or NOTHING) or known.request != _asked(pod, names):
                del self.placed[at:]
                return
            known.pod = pod

    def left_by(self, count: int) -> NodeState | Rejection | None:
        """What the first of them leave; None if not all are placed. Where one has no room, none after it is."""
        if count == 0:
            return self.first
        if self.placed and isinstance(self.placed[-1].left, Rejection) and len(self.placed) <= count:
            return self.placed[-1].left
        return self.placed[count - 1].left if len(self.placed) >= count else None

    def taken_by(self, count: int) -> tuple[list[Allocation], Compute]:
        """What the first of them take."""
        taken = list(chain.from_iterable(each.taken for each in self.placed[:count]))
        return taken, sum((each.needs for each in self.placed[:count]), NOTHING)


class NodeCandidates(msgspec.Struct):
    """Every requested node, in one of the two."""

    states: list[NodeState] = msgspec.field(default_factory=list)
    rejected: dict[str, Rejection] = msgspec.field(default_factory=dict)

    @property
    def is_unfinished(self) -> bool:
        return NOT_PLACED_YET in self.rejected.values()


class ClusterSnapshot:
    """Reads only. Who has it needs neither cache, settings nor scorer beside it."""

    def __init__(self, cache: SchedulerCache, settings: PlacementSettings, scorer: NodeScorer) -> None:
        self.cache = cache
        self.settings = settings
        self.scorer = scorer
        self._kept: dict[str, tuple[NodeState, dict[frozenset[PodUid], _Reserved]]] = {}

    def nodes(self, pod: ClusterPod, names: Iterable[str], budget: Budget | None = None) -> NodeCandidates:
        """Written for speed: there are hundreds of names, and nearly every node is as the cache has it.

        A node whose nominated pods could not all be placed in this turn is rejected with `NOT_PLACED_YET`.
        """
        cache, wanted = self.cache, tuple(names)
        apart = {held.node for held in cache.holds(pod.uid)}.union(cache.nominated_nodes)
        known = list(map(cache.usable.get, wanted))
        if apart:
            known = [None if name in apart else state for name, state in zip(wanted, known, strict=True)]
        found = NodeCandidates(list(filter(None, known)))
        if len(found.states) == len(wanted):
            return found
        for name in [name for name, state in zip(wanted, known, strict=True) if state is None]:
            judged = self.node(pod, name, budget) if name in apart else self._as_it_is(name)
            if isinstance(judged, Rejection):
                found.rejected[name] = judged
            else:
                found.states.append(judged)
        return found

    def usable_but(self, names: Container[str]) -> list[str]:
        """The nodes that take pods with GPUs, without these."""
        return [name for name, info in self.cache.nodes.items() if info.problem is None and name not in names]

    def _as_it_is(self, name: str) -> NodeState | Rejection:
        return self.cache.problem(name) or self.cache.nodes[name].state

    def node(self, pod: ClusterPod, name: str, budget: Budget | None = None) -> NodeState | Rejection:
        """One node."""
        if (problem := self.cache.problem(name)) is not None:
            return problem
        info, ahead = self.cache.nodes[name], self._ahead(pod, name)
        if not ahead:
            return info.state_without({pod.uid})
        return self._left(info, self._reserved(info, pod.uid), ahead, budget or Budget())

    def refusal(
        self, asking: Asking, name: str, budget: Budget, *, without: Collection[PodUid] = ()
    ) -> Rejection | None:
        """Why the pod does not fit on a node, as if some pods of the node were not there; None if it does."""
        info = self.cache.nodes.get(name)
        steps = info.steps_without(len(without)) if info is not None and without else 0
        budget.may(asking.prefilter.steps + steps)
        state = self._evicting(asking.pod, name, without, budget) if without else self.node(asking.pod, name, budget)
        if isinstance(state, Rejection):
            return state
        if (verdict := asking.prefilter(state)) is not None:
            return rejection_of(verdict)
        return self.rejection_together(asking.request, state, budget=budget)

    def _evicting(
        self, pod: ClusterPod, name: str, victims: Collection[PodUid], budget: Budget
    ) -> NodeState | Rejection:
        """Nominated pods are placed once, whatever the victims are."""
        if (problem := self.cache.problem(name)) is not None:
            return problem
        info, ahead, own = self.cache.nodes[name], self._ahead(pod, name), frozenset((pod.uid,))
        reserved = self._reserved(info, pod.uid)
        left = self._left(info, reserved, ahead, budget)
        if isinstance(left, Rejection):
            return left
        taken, needs = reserved.taken_by(len(ahead))
        return info.state_without(own.union(victims), also=taken, needs=needs)

    def _ahead(self, pod: ClusterPod, name: str) -> Sequence[ClusterPod]:
        """Nominated pods that have the node before this one, in their order."""
        if name not in self.cache.nominated_nodes:
            return ()
        own = _order(pod) if pod.nominated_node == name else (-pod.priority, math.inf, "")
        others = (each for each in self.cache.nominated(name) if each.uid != pod.uid and _order(each) < own)
        return sorted(
            (each for each in others if not each.pod.deleting and not any(self.cache.holds(each.uid))), key=_order
        )

    def _reserved(self, info: NodeInfo, uid: PodUid) -> _Reserved:
        """Kept for each state of a node, because every request of every pod asks."""
        kept = self._kept.get(info.name)
        if kept is None or kept[0] is not info.state:
            kept = self._kept[info.name] = (info.state, {})
        known, absent = kept[1], frozenset((uid,)).intersection(info.holds)
        if absent not in known:
            if len(known) >= _MOST_HOLDERS:  # each pod that holds a part of the node asks for a node of its own
                known.clear()
            known[absent] = _Reserved(absent, info.state_without(absent))
        return known[absent]

    def _left(
        self, info: NodeInfo, reserved: _Reserved, ahead: Sequence[ClusterPod], budget: Budget
    ) -> NodeState | Rejection:
        """Goes on to place nominated pods, as far as the budget lets it."""
        reserved.keep(ahead, self.settings.names)
        while (left := reserved.left_by(len(ahead))) is None:
            if not budget.may_for_others:
                return NOT_PLACED_YET
            self._place_next(info, reserved, ahead[len(reserved.placed)], budget)
        return left

    def _place_next(self, info: NodeInfo, reserved: _Reserved, pod: ClusterPod, budget: Budget) -> None:
        """Where it has no room yet, on the GPUs that pods leave which are being deleted: they may be its victims."""
        count, asked = len(reserved.placed), _asked(pod, self.settings.names)
        taken, needs = reserved.taken_by(count)
        leaving = reserved.absent.union(uid for uid, held in info.holds.items() if held.deleting)
        before = reserved.left_by(count)
        assert isinstance(before, NodeState)
        placed = self._place(asked, before, budget)
        if placed is None and leaving != reserved.absent:
            placed = self._place(asked, info.state_without(leaving, also=taken, needs=needs), budget)
        budget.others += info.steps_without(len(leaving)) + count
        if placed is None:
            reserved.placed.append(_NominatedPod(pod, asked, (), NOMINATED))
            return
        all_taken, all_needs = [*taken, *placed], needs + (pod.needs or NOTHING)
        left = info.state_without(reserved.absent, also=all_taken, needs=all_needs)
        reserved.placed.append(_NominatedPod(pod, asked, placed, left))

    def _place(self, asked: PodRequest | None, state: NodeState, budget: Budget) -> tuple[Allocation, ...] | None:
        if asked is None:
            return None
        here = Budget(_STEPS_OF_NOMINATED)
        try:
            return place_pod(asked, state, policy=self.settings.gpu_policy, budget=here).allocations
        except VcudaError:
            return None
        finally:
            budget.others += here.spent

    def rejection_together(
        self, asked: PodRequest, state: NodeState, *, budget: Budget | None = None
    ) -> Rejection | None:
        """Why the containers of a pod do not fit together on a node that passed the prefilter."""
        found = self.scorer.rejection_together(asked, state, budget=budget)
        return None if found is None else rejection_of(found)


def _asked(pod: ClusterPod, names: ResourceNames) -> PodRequest | None:
    """None if it cannot be read."""
    try:
        return pod_request(pod.pod, names)
    except VcudaError:
        return None


def _order(pod: ClusterPod) -> tuple[float, float, str]:
    return (-pod.priority, pod.pod.created, pod.uid)
