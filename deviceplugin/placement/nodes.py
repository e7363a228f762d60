"""Chooses the node of a pod, and on it the GPUs.

In: what a pod asks, the nodes that are open to it, and the policies. Out: a `NodeChoice`, with a rejection for each
node that was not taken. The prefilter asks every node; those that may carry the pod are ordered by the policy, and
`place_pod` runs from the top until one node carries it: this expensive step runs once, as a rule.

    binpack        the node that is fullest with the pod on it
    spread         the node that is emptiest with the pod on it
    fragmentation  the node where least becomes useless to the tasks that come

Ties go to the node with the least GPU left (spread: the most), then to the first by name; the order in which nodes are
given never counts.

Invariant: what is cached changes no answer. Scores are cached by shape of the pod and equivalence class of the node, so
a node that has not changed is not calculated again. A pod that names GPUs by UUID is calculated each time.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

from deviceplugin.errors import CapacityError, SearchLimitError
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.placement.capacity_after import Capacities, CapacityAfter, capacities_of
from deviceplugin.placement.fit import GpuAmount, Sharing, demand_of
from deviceplugin.placement.fragmentation import Fragmentation, UsableCapacity
from deviceplugin.placement.node_score import (
    LAST,
    CapacityChange,
    NodeChoice,
    Score,
    Totals,
    goes_by_totals,
    score,
    score_of_totals,
    totals_of,
)
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.pod import PodChoice, place_pod
from deviceplugin.placement.prefilter import Prefilter
from deviceplugin.placement.rejection import NodeRejection
from deviceplugin.placement.workload import ASSUMED, NO_NEEDS, Workload

_MOST_KEPT = 300_000
_MOST_SHAPES = 10_000
_NAMES_GPUS = -1
"""The shape of every pod that names GPUs by UUID: nothing is cached for it, as nodes of one class differ for it."""
_Outcome = NodeRejection | Score
_Reached = NodeRejection | Capacities | None
"""Why a node's GPUs do not carry a pod, or what it leaves of them; None where only all containers at once may fit."""


@dataclass(slots=True)
class _ScoringContext:
    """Everything that the score of a node depends on, besides the node.

    `share`: cores and blocks, where they alone say what is left of a node's totals, whichever its GPUs are.
    """

    pod: PodRequest
    prefilter: Prefilter
    needs: Spare
    node_policy: NodePolicy
    gpu_policy: GpuPolicy
    share: GpuAmount | None
    _after: CapacityAfter | None = None

    def against(self, state: NodeState, eq_class: "_EquivalenceClass") -> NodeRejection | None:
        # The first node of a class has its summary already; a filter by UUID sees the node itself.
        return self.prefilter(state if self.names_gpus else eq_class.first)

    def after(self, gpus: Capacities) -> Capacities | None:
        """What is left of a node's GPUs; made when first needed, because for most shares totals are enough."""
        if self._after is None:
            self._after = CapacityAfter(self.pod, self.gpu_policy)
        return self._after(gpus)

    @property
    def plans(self) -> bool:
        """Whether a node's CPU and memory matter for its score."""
        return not goes_by_totals(self.node_policy)

    @property
    def names_gpus(self) -> bool:
        wanted = self.pod.preferences.gpus
        return bool(wanted.uuids or wanted.not_uuids)

    @property
    def shape(self) -> tuple[object, ...]:
        needs = self.needs if self.plans else None
        return (self.pod.shape, needs, self.node_policy, self.gpu_policy)


class _SpareScores:
    """Outcomes by shape for the nodes of one class that have equal CPU and memory.

    `value` is the fragmentation of such a node by the workload number `renewal`.
    """

    __slots__ = ("__weakref__", "outcomes", "renewal", "value")

    def __init__(self) -> None:
        self.outcomes: dict[int, _Outcome] = {}
        self.renewal = -1
        self.value = 0


@dataclass(slots=True, weakref_slot=True, eq=False)
class _EquivalenceClass:
    """Nodes between whose GPUs neither prefilter nor score sees a difference.

    `reached`: what a pod leaves of the GPUs, whatever CPU and memory are; `left`: the same as the workload number
    `renewal` measures it. `any_spare`: outcomes for which CPU and memory do not count; `by_spare`: the others, dropped
    with the last node that has just that much.
    """

    first: NodeState
    gpus: Capacities
    totals: Totals
    reached: dict[int, _Reached] = field(default_factory=dict)
    left: dict[int, UsableCapacity] = field(default_factory=dict)
    renewal: int = -1
    any_spare: _SpareScores = field(default_factory=_SpareScores)
    by_spare: WeakValueDictionary[Spare, _SpareScores] = field(default_factory=WeakValueDictionary)

    @property
    def kept(self) -> int:
        """How many outcomes."""
        return len(self.reached) + sum(len(each.outcomes) for each in (self.any_spare, *self.by_spare.values()))

    def with_spare(self, spare: Spare | None) -> _SpareScores:
        if spare is None:
            return self.any_spare
        found = self.by_spare.get(spare)
        if found is None:
            found = self.by_spare[spare] = _SpareScores()
        return found


class _CachedNode(NamedTuple):
    """A node as it was last seen."""

    state: NodeState
    eq_class: _EquivalenceClass
    by_spare: _SpareScores


class NodeScorer:
    """Caches scores; belongs to one thread. `typical` is the workload that the fragmentation policy plans for.

    `leaves_out`: reject nodes with too little CPU or memory; without it the caller has left them out. `renewals` counts
    changes of the workload.
    """

    def __init__(self, typical: Workload = ASSUMED, *, leaves_out: bool = True) -> None:
        self._measure = Fragmentation(typical)
        self._leaves_out = leaves_out
        self.renewals = 0
        self._next: Fragmentation | None = None
        self._unprepared: list[_CachedNode] = []
        self._nodes: dict[str, _CachedNode] = {}
        # Weak: eight GPUs are hardly ever used in the same way twice, so the class of a past state serves nobody.
        self._classes: WeakValueDictionary[tuple[object, ...], _EquivalenceClass] = WeakValueDictionary()
        self._shapes: dict[tuple[object, ...], int] = {}
        self._kept = 0

    def expect(self, typical: Workload) -> None:
        """Plan for this workload from now on."""
        self._measure, self._next = Fragmentation(typical), None
        self.renewals += 1

    def expect_soon(self, typical: Workload) -> None:
        """Plan for this workload once `prepare` has measured every node; until then answers are as before."""
        self._next, self._unprepared = Fragmentation(typical), list(self._nodes.values())

    def prepare(self, most: int) -> bool:
        """Measures at most so many further nodes; False where nothing is left to do.

        A `choose` that had to measure all of them at once would keep kube-scheduler waiting.
        """
        if self._next is None:
            return False
        for _ in range(min(most, len(self._unprepared))):
            cached = self._unprepared.pop()
            self._next.usable(cached.eq_class.gpus, cached.state.spare)
        if not self._unprepared:
            self._measure, self._next = self._next, None
            self.renewals += 1
        return self._next is not None

    def see(self, states: Iterable[NodeState]) -> None:
        """Classifies nodes that are new or have changed, so that the next `choose` need not."""
        for state in states:
            cached = self._nodes.get(state.name)
            if cached is None or cached.state is not state:
                self._remember(state)

    def forget(self, node: str) -> None:
        """The node has left the cluster."""
        self._nodes.pop(node, None)

    def choose(
        self,
        pod: PodRequest,
        states: Iterable[NodeState],
        *,
        node_policy: NodePolicy = NodePolicy.BINPACK,
        gpu_policy: GpuPolicy = GpuPolicy.BINPACK,
        needs: Spare = NO_NEEDS,
        prefer: Collection[GpuUuid] = (),
    ) -> NodeChoice:
        """The pod's own preferences win over both policies; `needs` counts only on nodes that have a `spare`."""
        own = pod.preferences
        gpus = own.gpu or gpu_policy
        nodes = own.node or node_policy
        context = _ScoringContext(pod, Prefilter(pod), needs, nodes, gpus, _share(pod, nodes))
        ranked, refused = self._score_all(context, states)
        for name in _best_first(ranked):
            placed = _placed(context, self._nodes[name][0], prefer)
            if not isinstance(placed, NodeRejection):
                return NodeChoice(name, placed, ranked, refused)
            refused[name] = placed
        return NodeChoice(None, None, ranked, refused)

    def _score_all(
        self, context: _ScoringContext, states: Iterable[NodeState]
    ) -> tuple[dict[str, Score], dict[str, NodeRejection]]:
        """Of every node; written for speed, because there are thousands and nearly all are unchanged."""
        shape, nodes, plans = self._shape(context), self._nodes, context.plans
        leaves_out, needs = self._leaves_out, context.needs
        on_gpus = _NAMES_GPUS if shape == _NAMES_GPUS else self._number((context.pod.shape, context.gpu_policy))
        ranked: dict[str, Score] = {}
        refused: dict[str, NodeRejection] = {}
        for state in states:
            cached = nodes.get(state.name)
            if cached is None or cached[0] is not state:
                cached = self._remember(state)
            if leaves_out and state.spare is not None and not state.spare.covers(needs):
                refused[state.name] = NodeRejection.SPARE
                continue
            # By position, which is faster than by name: this line runs for every node.
            outcomes = (cached[2] if plans else cached[1].any_spare).outcomes
            outcome = outcomes.get(shape)
            if outcome is None:
                outcome = self._score_one(context, cached, on_gpus)
                if shape != _NAMES_GPUS:
                    outcomes[shape] = outcome
                    self._kept += 1
            if isinstance(outcome, tuple):
                ranked[state.name] = outcome
            else:
                refused[state.name] = outcome
        return ranked, refused

    def _shape(self, context: _ScoringContext) -> int:
        """A number for the shape, which is hashed faster than the shape."""
        if context.names_gpus:
            return _NAMES_GPUS
        if self._kept >= _MOST_KEPT or len(self._shapes) >= _MOST_SHAPES:
            self._trim()
        return self._number(self._key(context))

    def _number(self, key: tuple[object, ...]) -> int:
        return self._shapes.setdefault(key, len(self._shapes))

    def _key(self, context: _ScoringContext) -> tuple[object, ...]:
        """Scores by an earlier workload are not looked up again."""
        return (*context.shape, self.renewals if context.plans else 0)

    def _remember(self, state: NodeState) -> _CachedNode:
        key = _class_key(state)
        eq_class = self._classes.get(key)
        if eq_class is None:
            gpus = capacities_of(state)
            eq_class = self._classes[key] = _EquivalenceClass(state, gpus, totals_of(gpus))
        cached = self._nodes[state.name] = _CachedNode(state, eq_class, eq_class.with_spare(state.spare))
        return cached

    def _trim(self) -> None:
        """Counts again what is cached: most of it has gone with past states of nodes. Drops all if it is still much."""
        self._kept = sum(eq_class.kept for eq_class in self._classes.values())
        if self._kept >= _MOST_KEPT // 2 or len(self._shapes) >= _MOST_SHAPES:
            self._clear()

    def _clear(self) -> None:
        self._nodes.clear()
        self._classes.clear()
        self._shapes.clear()
        self._kept = 0

    def _score_one(self, context: _ScoringContext, cached: _CachedNode, on_gpus: int) -> _Outcome:
        state, eq_class, _ = cached
        if context.plans and state.spare is not None and on_gpus != _NAMES_GPUS:
            return self._score_by_fragmentation(context, cached, on_gpus)
        if (against := context.against(state, eq_class)) is not None:
            return against
        if (share := context.share) is not None:  # the prefilter is exact for it, so nothing needs to be placed
            free = eq_class.totals
            left = Totals(free.gpus, free.cores - share.cores, free.blocks - share.blocks, free.size)
            return score_of_totals(context.node_policy, left)
        after = context.after(eq_class.gpus)
        if after is None:
            return LAST
        return score(
            context.node_policy, CapacityChange(eq_class.gpus, after, state.spare, context.needs), self._measure
        )

    def _score_by_fragmentation(self, context: _ScoringContext, cached: _CachedNode, on_gpus: int) -> _Outcome:
        """By the fragmentation policy, for a node whose CPU and memory are known.

        Nodes of one class differ in CPU and memory, so what GPUs alone say is cached apart and asked again for each.
        """
        state, eq_class, by_spare = cached
        spare, needs = state.spare, context.needs
        assert spare is not None
        if eq_class.renewal != self.renewals:
            eq_class.left.clear()
            eq_class.renewal = self.renewals
        left = eq_class.left.get(on_gpus)
        if left is None:
            reached = self._reached(context, eq_class, on_gpus)
            if not isinstance(reached, tuple):
                return LAST if reached is None else reached
            left = eq_class.left[on_gpus] = self._measure.usable_capacity(reached)
        if by_spare.renewal != self.renewals:
            by_spare.value = self._measure.usable_capacity(eq_class.gpus).value(spare.cpu_milli, spare.memory_mib)
            by_spare.renewal = self.renewals
        value = left.value(spare.cpu_milli - needs.cpu_milli, spare.memory_mib - needs.memory_mib)
        return (value - by_spare.value, left.free)

    def _reached(self, context: _ScoringContext, eq_class: _EquivalenceClass, on_gpus: int) -> _Reached:
        if on_gpus not in eq_class.reached:
            against = context.prefilter(eq_class.first)
            eq_class.reached[on_gpus] = context.after(eq_class.gpus) if against is None else against
            self._kept += 1
        return eq_class.reached[on_gpus]


def _share(pod: PodRequest, policy: NodePolicy) -> GpuAmount | None:
    if len(pod.containers) != 1 or not goes_by_totals(policy):
        return None
    demand = demand_of(pod.containers[0].request)
    return demand.total if demand.sharing is Sharing.SHARE else None


def _best_first(ranked: Mapping[str, Score]) -> Iterable[str]:
    """All are sorted only where the best does not carry the pod, which is rare."""
    if not ranked:
        return
    best = min(zip(ranked.values(), ranked, strict=True))[1]
    yield best
    rest = sorted((found, name) for name, found in ranked.items() if name != best)
    yield from (name for _, name in rest)


def _placed(context: _ScoringContext, state: NodeState, prefer: Collection[GpuUuid]) -> PodChoice | NodeRejection:
    try:
        return place_pod(context.pod, state, policy=context.gpu_policy, prefer=prefer)
    except SearchLimitError:
        return NodeRejection.SEARCH_EXHAUSTED
    except CapacityError:
        return NodeRejection.TOGETHER


def _class_key(state: NodeState) -> tuple[object, ...]:
    """All that prefilter and score look at; neither knows names, links or processes."""
    gpus = sorted(
        (
            view.gpu.model,
            view.gpu.blocks,
            view.free_cores,
            view.free_blocks,
            -1 if view.gpu.numa is None else view.gpu.numa,
            view.gpu.compute_mode.value,
            view.gpu.mig_enabled,
            view.health.healthy,
            view.gpu.uuid in state.cordoned,
        )
        for view in state.snapshot.gpus
    )
    return (state.share_mode, tuple(gpus))
