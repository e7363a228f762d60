"""Chooses the node of a pod, and on it the GPUs.

In: what a pod asks, the nodes that are open to it, and the policies. Out: a `NodeChoice`, with a rejection for each
node that was not taken. The prefilter asks every node; those that may carry the pod are ordered by the policy, and
`place_pod` runs from the top until one node carries it: this expensive step runs once, as a rule.

What each policy prefers, and which of equal nodes, is in `node_score` and `fragmentation`. Nodes that are still equal
go by name; the order in which nodes are given never counts.

Invariant: what is cached changes no answer. Outcomes are cached by shape of the pod and equivalence class of the node,
so GPUs that have not changed are not calculated again. A pod that names GPUs by UUID is calculated each time.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
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
_OnGpus = NodeRejection | UsableCapacity | Score
"""Of a node's GPUs alone; by the fragmentation policy what is left of them, which CPU and memory make a score."""
_Outcome = NodeRejection | Score


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
class _EquivalenceClass:
    """Nodes between whose GPUs neither prefilter nor score sees a difference; outcomes by number of the pod's shape.

    `by_spare` loses an entry with the last node that has just that much.
    """

    first: NodeState
    gpus: Capacities
    totals: Totals
    on_gpus: dict[int, _OnGpus] = field(default_factory=dict)
    by_spare: "WeakValueDictionary[Spare | None, _EqualNodes]" = field(default_factory=WeakValueDictionary)

    @property
    def kept(self) -> int:
        return len(self.on_gpus) + sum(len(each.outcomes) for each in self.by_spare.values())


@dataclass(slots=True, weakref_slot=True, eq=False)
class _EqualNodes:
    """Nodes of one class that have equal CPU and memory left: every pod has the same outcome on each.

    `before` is the fragmentation of such a node by the workload number `renewal`.
    """

    eq_class: _EquivalenceClass
    spare: Spare | None
    outcomes: dict[int, _Outcome] = field(default_factory=dict)
    renewal: int = -1
    before: int = 0


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
        self._states: dict[str, NodeState] = {}
        self._nodes: dict[str, _EqualNodes] = {}
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
            if self._states.get(state.name) is not state:
                self._remember(state)

    def forget(self, node: str) -> None:
        """The node has left the cluster."""
        self._states.pop(node, None)
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
            placed = _placed(context, self._states[name])
            if not isinstance(placed, NodeRejection):
                return NodeChoice(name, placed, ranked, refused)
            refused[name] = placed
        return NodeChoice(None, None, ranked, refused)

    def _score_all(
        self, context: _ScoringContext, states: Iterable[NodeState]
    ) -> tuple[dict[str, Score], dict[str, NodeRejection]]:
        """Of every node; no loop over all nodes calls a function of Python, because there are hundreds or thousands."""
        if self._kept >= _MOST_KEPT or len(self._shapes) >= _MOST_SHAPES:
            self._trim()
        given = list(states)
        self.see(given)
        names = [state.name for state in given]
        equal = [self._nodes[name] for name in names]
        if context.names_gpus:  # nothing is cached, as equal nodes differ for it
            outcomes = [self._outcome(context, each, state) for each, state in zip(equal, given, strict=True)]
        else:
            found = self._outcomes(context, set(equal))
            outcomes = [found[each] for each in equal]
        ranked = {name: outcome for name, outcome in zip(names, outcomes, strict=True) if isinstance(outcome, tuple)}
        refused = {
            name: outcome for name, outcome in zip(names, outcomes, strict=True) if not isinstance(outcome, tuple)
        }
        return ranked, refused

    def _outcomes(self, context: _ScoringContext, nodes: Collection[_EqualNodes]) -> dict[_EqualNodes, _Outcome]:
        by_gpus = self._shape_of_gpus(context)
        shape = by_gpus
        if self._leaves_out or context.by_totals is None:
            shape = self._number((by_gpus, context.needs))
        found: dict[_EqualNodes, _Outcome] = {}
        for each in nodes:
            outcome = each.outcomes.get(shape)
            if outcome is None:
                outcome = each.outcomes[shape] = self._outcome(context, each, each.eq_class.first, shape=by_gpus)
                self._kept += 1
            found[each] = outcome
        return found

    def _shape_of_gpus(self, context: _ScoringContext) -> int:
        """A number for all that counts beside a node's GPUs; it is hashed faster than the shape."""
        # Outcomes by an earlier workload are not looked up again.
        renewals = self._renewals if context.by_totals is None else 0
        return self._number((context.pod.shape, context.node_policy, context.gpu_policy, renewals))

    def _number(self, key: tuple[object, ...]) -> int:
        return self._shapes.setdefault(key, len(self._shapes))

    def _remember(self, state: NodeState) -> None:
        key = _class_key(state)
        eq_class = self._classes.get(key)
        if eq_class is None:
            gpus = capacities_of(state)
            eq_class = self._classes[key] = _EquivalenceClass(state, gpus, totals_of(gpus))
        equal = eq_class.by_spare.get(state.spare)
        if equal is None:
            equal = eq_class.by_spare[state.spare] = _EqualNodes(eq_class, state.spare)
        self._states[state.name], self._nodes[state.name] = state, equal

    def _trim(self) -> None:
        """Counts again what is cached: most of it has gone with past states of nodes. Drops all if it is still much."""
        self._kept = sum(each.kept for each in self._classes.values())
        if self._kept >= _MOST_KEPT // 2 or len(self._shapes) >= _MOST_SHAPES:
            self._states.clear()
            self._nodes.clear()
            self._classes.clear()
            self._shapes.clear()
            self._kept = 0

    def _outcome(
        self, context: _ScoringContext, nodes: _EqualNodes, state: NodeState, *, shape: int | None = None
    ) -> _Outcome:
        """`state` is one of the class, or the node itself where the pod names GPUs; `shape` None caches nothing."""
        if self._leaves_out and nodes.spare is not None and not nodes.spare.covers(context.needs):
            return NodeRejection.SPARE
        cached = nodes.eq_class.on_gpus
        on_gpus = None if shape is None else cached.get(shape)
        if on_gpus is None:
            on_gpus = self._on_gpus(context, nodes.eq_class, state)
            if shape is not None:
                cached[shape] = on_gpus
                self._kept += 1
        return self._growth(nodes, on_gpus, context.needs) if isinstance(on_gpus, UsableCapacity) else on_gpus

    def _on_gpus(self, context: _ScoringContext, eq_class: _EquivalenceClass, state: NodeState) -> _OnGpus:
        against = context.prefilter(state)
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

    def _growth(self, nodes: _EqualNodes, after: UsableCapacity, needs: Spare) -> Score:
        """By how much the pod makes the fragmentation of such a node more."""
        if nodes.renewal != self._renewals:
            nodes.before, nodes.renewal = self._measure.of(nodes.eq_class.gpus, nodes.spare), self._renewals
        left = None if nodes.spare is None else nodes.spare - needs
        return (after.fragmentation(left) - nodes.before, after.free)


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
