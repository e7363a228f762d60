"""Chooses the node of a pod, and on it the GPUs.

In: what a pod asks, the nodes that are open to it, and the policies. Out: a `NodeChoice`, with a rejection for each
node that was not taken. The prefilter asks every node; those that may carry the pod are ordered by the policy, and
`place_pod` runs from the top until one node carries it: this expensive step runs once, as a rule.

What each policy prefers, and which of equal nodes, is in `node_score` and `fragmentation`. Nodes that are still equal
go by name; the order in which nodes are given never counts.

Invariant: what is cached changes no answer. Outcomes are cached by shape of the pod and equivalence class of the node,
so GPUs that have not changed are not calculated again, and containers that did not fit together are not placed again.
A node on which a pod names a GPU by UUID is calculated each time.

One request works within a `Budget`. Where it is spent, the choice is `unfinished`: the same question goes on where this
one ended, because what was found is cached.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakValueDictionary

from deviceplugin.errors import CapacityError, RequestError, SearchLimitError
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.placement.budget import ON_ONE_NODE, Budget
from deviceplugin.placement.capacity_after import Capacities, CapacityAfter, capacities_of
from deviceplugin.placement.fit import GpuAmount, NodeRejection, Sharing, demand_of
from deviceplugin.placement.fragmentation import ASSUMED, NO_NEEDS, Fragmentation, UsableCapacity, Workload
from deviceplugin.placement.node_score import (
    LAST,
    NodeChoice,
    Score,
    ScoreByTotals,
    Totals,
    best_first,
    score_by_totals,
    totals_of,
)
from deviceplugin.placement.node_state import NodeState, Spare, class_key
from deviceplugin.placement.pod import PodChoice, place_pod
from deviceplugin.placement.prefilter import Prefilter

_MOST_KEPT = 300_000
_MOST_SHAPES = 10_000
_OnGpus = NodeRejection | UsableCapacity | Score
"""Of a node's GPUs alone; by the fragmentation policy what is left of them, which CPU and memory make a score."""
_Outcome = NodeRejection | Score
_Together = dict[int, NodeRejection | None]
"""By the number of the pod's shape: why its containers did not fit together, or that they did."""


@dataclass(slots=True)
class _ScoringContext:
    """Everything that the score of a node depends on, besides the node.

    `share`: cores and blocks, where they alone say what is left of a node's totals, whichever its GPUs are.
    `together`: the number of the pod's shape, where the order of nodes does not matter.
    """

    pod: PodRequest
    prefilter: Prefilter
    needs: Spare
    node_policy: NodePolicy
    gpu_policy: GpuPolicy
    by_totals: ScoreByTotals | None
    share: GpuAmount | None
    budget: Budget
    together: int
    _after: CapacityAfter | None = None
    _steps: int = 0

    def after(self, gpus: Capacities) -> Capacities | None:
        """What is left of a node's GPUs; made when first needed, because for most shares totals are enough."""
        return self._estimate()(gpus)

    def _estimate(self) -> CapacityAfter:
        if self._after is None:
            self._after = CapacityAfter(self.pod, self.gpu_policy)
        return self._after

    def is_named(self, state: NodeState) -> bool:
        """Whether the pod names a GPU of this node: then it differs from nodes that are alike otherwise."""
        wanted = self.pod.preferences.gpus
        if not wanted.names_gpus:
            return False
        here = [view.gpu.uuid for view in state.snapshot.gpus]
        return not (wanted.uuids.isdisjoint(here) and wanted.not_uuids.isdisjoint(here))

    def may_score(self) -> bool:
        """Takes the steps of one node with eight GPUs from the budget."""
        if not self._steps:
            is_estimated = self.by_totals is None or self.share is None
            self._steps = self.prefilter.steps + (8 * self._estimate().steps if is_estimated else 0)
        return self.budget.may(self._steps)


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
    together: _Together = field(default_factory=dict)

    @property
    def kept(self) -> int:
        return len(self.on_gpus) + len(self.together) + sum(len(each.outcomes) for each in self.by_spare.values())


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
        self._together_there: WeakKeyDictionary[NodeState, _Together] = WeakKeyDictionary()
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

    def ranked(
        self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare = NO_NEEDS, budget: Budget | None = None
    ) -> Mapping[str, Score]:
        """The score of each node that may carry the pod."""
        return self._score_all(self._context(pod, needs, budget), states)[0]

    def choose(
        self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare = NO_NEEDS, budget: Budget | None = None
    ) -> NodeChoice:
        """`needs` counts only on nodes that have a `spare`."""
        context = self._context(pod, needs, budget)
        ranked, refused = self._score_all(context, states)
        refused |= (failed := self._failed_before(context, ranked))
        # There are hardly ever any, and thousands of scores would be copied for nothing.
        left = {name: score for name, score in ranked.items() if name not in failed} if failed else ranked
        for name in best_first(left):
            if context.budget.goes_on:  # the answer will not count
                break
            placed = self._placed(context, self._states[name])
            if not isinstance(placed, NodeRejection):
                context.budget.is_complete = True
                return NodeChoice(name, placed, ranked, refused, context.budget.is_spent)
            refused[name] = placed
        return NodeChoice(None, None, ranked, refused, context.budget.is_spent)

    def all_that_fit(
        self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare = NO_NEEDS, budget: Budget | None = None
    ) -> NodeChoice:
        """The same without a choice: `refused` has every node on which the containers do not fit together either."""
        context = self._context(pod, needs, budget)
        ranked, refused = self._score_all(context, states)
        if len(pod.containers) > 1:  # of one container the prefilter is certain
            refused |= self._failed_before(context, ranked)
            for name in [each for each in ranked if each not in refused]:
                if context.budget.goes_on:  # the answer will not count
                    break
                if (why := self._rejection(context, self._states[name])) is not None:
                    refused[name] = why
        return NodeChoice(None, None, ranked, refused, context.budget.is_spent)

    def rejection_together(
        self, pod: PodRequest, state: NodeState, *, budget: Budget | None = None
    ) -> NodeRejection | None:
        """Why the containers do not fit together on a node that passed the prefilter; the node need not be known."""
        if len(pod.containers) == 1:
            return None
        return self._rejection(self._context(pod, NO_NEEDS, budget), state)

    def _context(self, pod: PodRequest, needs: Spare, budget: Budget | None) -> _ScoringContext:
        # First of all, because it drops the numbers of shapes, of which this pod gets one.
        if self._kept >= _MOST_KEPT or len(self._shapes) >= _MOST_SHAPES:
            self._trim()
        own = pod.preferences
        gpus, nodes = own.gpu or self._gpu_policy, own.node or self._node_policy
        by_totals = score_by_totals(nodes)
        share, together = None if by_totals is None else _share(pod), self._number((pod.shape,))
        return _ScoringContext(pod, Prefilter(pod), needs, nodes, gpus, by_totals, share, budget or Budget(), together)

    def _placed(self, context: _ScoringContext, state: NodeState) -> PodChoice | NodeRejection:
        """Begins only if the budget leaves steps; what was begun is ended."""
        known = self._known(context, state)
        if (failed := known.get(context.together)) is not None:
            return failed
        if not context.budget.left:
            context.budget.may(1)
            return NodeRejection.NOT_LOOKED_AT
        here = Budget(ON_ONE_NODE)
        found = _place(context, state, here)
        context.budget.may(here.spent)
        known[context.together] = found if isinstance(found, NodeRejection) else None
        self._kept += 1
        return found

    def _failed_before(self, context: _ScoringContext, names: Iterable[str]) -> dict[str, NodeRejection]:
        """Where the containers did not fit together; found without a call for each of thousands of nodes."""
        if len(context.pod.containers) == 1 or context.pod.preferences.gpus.names_gpus:
            return {}
        nodes, shape = self._nodes, context.together
        found = ((name, nodes[name].eq_class.together.get(shape)) for name in names)
        return {name: why for name, why in found if why is not None}

    def _rejection(self, context: _ScoringContext, state: NodeState) -> NodeRejection | None:
        if self._known(context, state).get(context.together, NodeRejection.NOT_LOOKED_AT) is None:
            return None
        found = self._placed(context, state)
        return found if isinstance(found, NodeRejection) else None

    def _known(self, context: _ScoringContext, state: NodeState) -> _Together:
        known = self._nodes.get(state.name)
        # Of another state than the last one seen, as without some pods, the class is not known: it keeps its own.
        if known is not None and self._states[state.name] is state and not context.is_named(state):
            return known.eq_class.together
        return self._together_there.setdefault(state, {})

    def _score_all(
        self, context: _ScoringContext, states: Iterable[NodeState]
    ) -> tuple[dict[str, Score], dict[str, NodeRejection]]:
        """Of every node; no loop over all nodes calls a function of Python, because there are hundreds or thousands."""
        given = list(states)
        self.see(given)
        names = [state.name for state in given]
        equal = [self._nodes[name] for name in names]
        outcomes = self._outcomes(context, equal, given)
        # A score is a tuple, and a rejection is none.
        ranked = {name: outcome for name, outcome in zip(names, outcomes, strict=True) if isinstance(outcome, tuple)}
        refused = {
            name: outcome for name, outcome in zip(names, outcomes, strict=True) if not isinstance(outcome, tuple)
        }
        return ranked, refused

    def _outcomes(
        self, context: _ScoringContext, nodes: Sequence[_EqualNodes], states: Sequence[NodeState]
    ) -> list[_Outcome]:
        if not context.pod.preferences.gpus.names_gpus:
            found = self._of_equal(context, set(nodes), {})
            return [found[each] for each in nodes]
        named = [context.is_named(state) for state in states]
        # One that stands for its class must be without a GPU that the pod names.
        plain = {each: state for each, state, own in zip(nodes, states, named, strict=True) if not own}
        found = self._of_equal(context, plain.keys(), plain)
        return [
            self._outcome(context, each, state) if own else found[each]
            for each, state, own in zip(nodes, states, named, strict=True)
        ]

    def _of_equal(
        self, context: _ScoringContext, nodes: Collection[_EqualNodes], instead: Mapping[_EqualNodes, NodeState]
    ) -> dict[_EqualNodes, _Outcome]:
        """`instead`: what stands for a class in the place of its first node."""
        by_gpus = self._shape_of_gpus(context)
        shape = by_gpus
        # Only then do CPU and memory count; else pods that differ in nothing more share their outcomes.
        if self._leaves_out or context.by_totals is None:
            shape = self._number((by_gpus, context.needs))
        found: dict[_EqualNodes, _Outcome] = {}
        for each in nodes:
            outcome = each.outcomes.get(shape)
            if outcome is None:
                outcome = self._outcome(context, each, instead.get(each, each.eq_class.first), shape=by_gpus)
                if outcome is not NodeRejection.NOT_LOOKED_AT:
                    each.outcomes[shape] = outcome
                    self._kept += 1
            found[each] = outcome
        return found

    def _shape_of_gpus(self, context: _ScoringContext) -> int:
        """A number for all that counts beside a node's GPUs; it is hashed faster than the shape."""
        # Outcomes by an earlier workload are not looked up again.
        renewals = self._renewals if context.by_totals is None else 0
        return self._number((context.together, context.node_policy, context.gpu_policy, renewals))

    def _number(self, key: tuple[object, ...]) -> int:
        return self._shapes.setdefault(key, len(self._shapes))

    def _remember(self, state: NodeState) -> None:
        key = class_key(state)
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
        self._kept = sum(each.kept for each in self._classes.values()) + sum(map(len, self._together_there.values()))
        if self._kept >= _MOST_KEPT // 2 or len(self._shapes) >= _MOST_SHAPES:
            self._states.clear()
            self._nodes.clear()
            self._classes.clear()
            self._together_there.clear()
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
            if not context.may_score():
                return NodeRejection.NOT_LOOKED_AT
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


def _place(context: _ScoringContext, state: NodeState, budget: Budget) -> PodChoice | NodeRejection:
    try:
        return place_pod(context.pod, state, policy=context.gpu_policy, budget=budget)
    except SearchLimitError:
        return NodeRejection.SEARCH_EXHAUSTED
    except (CapacityError, RequestError):
        return NodeRejection.TOGETHER
