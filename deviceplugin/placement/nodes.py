"""Chooses the node of a pod, and on it the GPUs.

In: what a pod asks, the nodes that are open to it, and the policies. Out: a `NodeChoice`, with a rejection for each
node that was not taken. The prefilter asks every node; those that may carry the pod are ordered by the policy, and
`place_pod` runs from the top until one node carries it: this expensive step runs once, as a rule.

What each policy prefers, and which of equal nodes, is in `node_score` and `fragmentation`. Nodes that are still equal
go by name; the order in which nodes are given never counts.

Invariant: what is cached changes no answer. Outcomes are cached by shape of the pod and equivalence class of the node,
so GPUs that have not changed are not calculated again. A pod that names GPUs by UUID is calculated each time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

from deviceplugin.errors import CapacityError, SearchLimitError
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.placement.capacity_after import Capacities, CapacityAfter, capacities_of
from deviceplugin.placement.fit import GpuAmount, Sharing, demand_of
from deviceplugin.placement.fragmentation import Fragmentation, UsableCapacity
from deviceplugin.placement.node_score import (
    LAST,
    NodeChoice,
    Score,
    ScoreByTotals,
    Totals,
    score_by_totals,
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
_Outcome = NodeRejection | UsableCapacity | Score
"""Of a node's GPUs alone; by the fragmentation policy what is left of them, which CPU and memory make a score."""


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
    by_totals: ScoreByTotals | None
    share: GpuAmount | None
    _after: CapacityAfter | None = None

    def after(self, gpus: Capacities) -> Capacities | None:
        """What is left of a node's GPUs; made when first needed, because for most shares totals are enough."""
        if self._after is None:
            self._after = CapacityAfter(self.pod, self.gpu_policy)
        return self._after(gpus)

    @property
    def names_gpus(self) -> bool:
        wanted = self.pod.preferences.gpus
        return bool(wanted.uuids or wanted.not_uuids)


@dataclass(slots=True, weakref_slot=True, eq=False)
class _SpareScores:
    """Scores by the fragmentation policy of the nodes of one class that have equal CPU and memory.

    `before` is the fragmentation of such a node by the workload number `renewal`.
    """

    by_shape: dict[int, Score] = field(default_factory=dict)
    renewal: int = -1
    before: int = 0


@dataclass(slots=True, weakref_slot=True, eq=False)
class _EquivalenceClass:
    """Nodes between whose GPUs neither prefilter nor score sees a difference; outcomes by number of the pod's shape.

    `by_spare` loses an entry with the last node that has just that much.
    """

    first: NodeState
    gpus: Capacities
    totals: Totals
    outcomes: dict[int, _Outcome] = field(default_factory=dict)
    by_spare: WeakValueDictionary[Spare | None, _SpareScores] = field(default_factory=WeakValueDictionary)

    @property
    def kept(self) -> int:
        return len(self.outcomes) + sum(len(each.by_shape) for each in self.by_spare.values())


class _CachedNode(NamedTuple):
    """A node as it was last seen."""

    state: NodeState
    eq_class: _EquivalenceClass
    scores: _SpareScores


class NodeScorer:
    """Caches outcomes; belongs to one thread. `typical` is the workload that the fragmentation policy plans for.

    A pod's own preferences win over both policies. `leaves_out`: reject nodes with too little CPU or memory; without it
    the caller has left them out.
    """

    def __init__(
        self,
        typical: Workload = ASSUMED,
        *,
        node_policy: NodePolicy = NodePolicy.FRAGMENTATION,
        gpu_policy: GpuPolicy = GpuPolicy.BINPACK,
        leaves_out: bool = True,
    ) -> None:
        self._node_policy = node_policy
        self._gpu_policy = gpu_policy
        self._measure = Fragmentation(typical)
        self._renewals = 0
        self._leaves_out = leaves_out
        self._nodes: dict[str, _CachedNode] = {}
        # Weak: eight GPUs are hardly ever used in the same way twice, so the class of a past state serves nobody.
        self._classes: WeakValueDictionary[tuple[object, ...], _EquivalenceClass] = WeakValueDictionary()
        self._shapes: dict[tuple[object, ...], int] = {}
        self._kept = 0

    def expect(self, typical: Workload) -> None:
        """Plan for this workload from now on."""
        self._measure = Fragmentation(typical)
        self._renewals += 1

    def see(self, states: Iterable[NodeState]) -> None:
        """Classifies nodes that are new or have changed, so that the next `choose` need not."""
        for state in states:
            cached = self._nodes.get(state.name)
            if cached is None or cached.state is not state:
                self._remember(state)

    def forget(self, node: str) -> None:
        """The node has left the cluster."""
        self._nodes.pop(node, None)

    def choose(self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare = NO_NEEDS) -> NodeChoice:
        """`needs` counts only on nodes that have a `spare`."""
        own = pod.preferences
        gpus = own.gpu or self._gpu_policy
        nodes = own.node or self._node_policy
        by_totals = score_by_totals(nodes)
        share = None if by_totals is None else _share(pod)
        context = _ScoringContext(pod, Prefilter(pod), needs, nodes, gpus, by_totals, share)
        ranked, refused = self._score_all(context, states)
        for name in _best_first(ranked):
            placed = _placed(context, self._nodes[name].state)
            if not isinstance(placed, NodeRejection):
                return NodeChoice(name, placed, ranked, refused)
            refused[name] = placed
        return NodeChoice(None, None, ranked, refused)

    def _score_all(
        self, context: _ScoringContext, states: Iterable[NodeState]
    ) -> tuple[dict[str, Score], dict[str, NodeRejection]]:
        """Of every node; written for speed, because there are thousands and nearly all are unchanged."""
        by_gpus, nodes, needs, leaves_out = self._shape(context), self._nodes, context.needs, self._leaves_out
        plans = context.by_totals is None
        shape = self._number((by_gpus, needs)) if plans and by_gpus != _NAMES_GPUS else by_gpus
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
            outcome: _Outcome | None = (cached[2].by_shape if plans else cached[1].outcomes).get(shape)
            if outcome is None:
                outcome = self._on_gpus(context, cached, by_gpus)
                if isinstance(outcome, UsableCapacity):
                    outcome = self._growth(cached, outcome, needs)
                    if shape != _NAMES_GPUS:
                        cached.scores.by_shape[shape] = outcome
                        self._kept += 1
            if isinstance(outcome, tuple):
                ranked[state.name] = outcome
            elif isinstance(outcome, NodeRejection):
                refused[state.name] = outcome
        return ranked, refused

    def _shape(self, context: _ScoringContext) -> int:
        """A number for all that counts beside a node's GPUs; it is hashed faster than the shape."""
        if context.names_gpus:
            return _NAMES_GPUS
        if self._kept >= _MOST_KEPT or len(self._shapes) >= _MOST_SHAPES:
            self._trim()
        # Outcomes by an earlier workload are not looked up again.
        renewals = self._renewals if context.by_totals is None else 0
        return self._number((context.pod.shape, context.node_policy, context.gpu_policy, renewals))

    def _number(self, key: tuple[object, ...]) -> int:
        return self._shapes.setdefault(key, len(self._shapes))

    def _remember(self, state: NodeState) -> _CachedNode:
        key = _class_key(state)
        eq_class = self._classes.get(key)
        if eq_class is None:
            gpus = capacities_of(state)
            eq_class = self._classes[key] = _EquivalenceClass(state, gpus, totals_of(gpus))
        scores = eq_class.by_spare.setdefault(state.spare, _SpareScores())
        cached = self._nodes[state.name] = _CachedNode(state, eq_class, scores)
        return cached

    def _trim(self) -> None:
        """Counts again what is cached: most of it has gone with past states of nodes. Drops all if it is still much."""
        self._kept = sum(each.kept for each in self._classes.values())
        if self._kept >= _MOST_KEPT // 2 or len(self._shapes) >= _MOST_SHAPES:
            self._nodes.clear()
            self._classes.clear()
            self._shapes.clear()
            self._kept = 0

    def _on_gpus(self, context: _ScoringContext, cached: _CachedNode, shape: int) -> _Outcome:
        outcome = cached.eq_class.outcomes.get(shape)
        if outcome is None:
            outcome = self._outcome(context, cached)
            if shape != _NAMES_GPUS:
                cached.eq_class.outcomes[shape] = outcome
                self._kept += 1
        return outcome

    def _outcome(self, context: _ScoringContext, cached: _CachedNode) -> _Outcome:
        eq_class = cached.eq_class
        # The first node of a class has its summary already; a filter by UUID sees the node itself.
        against = context.prefilter(cached.state if context.names_gpus else eq_class.first)
        if against is not None:
            return against
        score, share = context.by_totals, context.share
        if score is not None and share is not None:  # the prefilter is exact for it, so nothing needs to be placed
            free = eq_class.totals
            return score(Totals(free.gpus, free.cores - share.cores, free.blocks - share.blocks, free.size))
        after = context.after(eq_class.gpus)
        if after is None:
            return LAST
        if score is not None:
            return score(totals_of(after))
        return self._measure.usable_capacity(after)

    def _growth(self, cached: _CachedNode, after: UsableCapacity, needs: Spare) -> Score:
        """By how much the pod makes the node's fragmentation more."""
        spare, known = cached.state.spare, cached.scores
        if known.renewal != self._renewals:
            known.before, known.renewal = self._measure.of(cached.eq_class.gpus, spare), self._renewals
        left = None if spare is None else spare - needs
        return (after.fragmentation(left) - known.before, after.free)


def _share(pod: PodRequest) -> GpuAmount | None:
    if len(pod.containers) != 1:
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


def _placed(context: _ScoringContext, state: NodeState) -> PodChoice | NodeRejection:
    try:
        return place_pod(context.pod, state, policy=context.gpu_policy)
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
