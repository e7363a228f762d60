"""Chooses the node of a pod, and on it the GPUs.

In: what a pod asks, the nodes that are open to it, and the policies. Out: a `NodeChoice`, with a rejection for each
node that was not taken. The prefilter asks every node; those that may carry the pod are ordered by the policy, and
`place_pod` runs from the top until one node carries it: this expensive step runs once, as a rule.

A policy gives a node a score from its capacities before and after the pod (`fragmentation`, or by the totals of its
GPUs): the least is the best, and its second number is for ties. Nodes that are still equal go by name; the order in
which nodes are given never counts. Scores are integers, so that the same cluster has the same order on every machine.

Invariant: what is cached changes no answer. Outcomes are cached by kind of pod and by what nodes that are alike have:
only a node that has become what none was lately is calculated, and containers that did not fit together are not placed
again. A node on which a pod names a GPU by UUID is calculated each time. A kind must have all that an outcome
depends on beside the node: if it did not, the property of `tests/placement/test_kept_answers.py` would fail.

One request works within a `Budget`. Where it is spent, the choice is `unfinished`: the same question goes on where this
one ended, because what was found is cached.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from deviceplugin.errors import CapacityError, RequestError, SearchLimitError
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.budget import ON_ONE_NODE, Budget
from deviceplugin.placement.capacity_after import (
    Capacities,
    CapacityAfter,
    EqualNodes,
    EquivalenceClass,
    KeptAnswers,
    NodeClasses,
    Together,
)
from deviceplugin.placement.fit import GpuAmount, GpuCapacity, NodeRejection, Sharing, demand_of
from deviceplugin.placement.fragmentation import ASSUMED, NO_NEEDS, Fragmentation, UsableCapacity, Workload
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.pod import PodChoice, place_pod
from deviceplugin.placement.prefilter import Prefilter
from deviceplugin.structs import replace

_PPM = 1_000_000

Score = tuple[int, int]
LAST: Score = (1 << 200, 0)
"""Behind every node that a policy can score."""


class Totals(NamedTuple):
    """All GPUs of a node together: what is free, and the blocks that they have."""

    gpus: int
    cores: int
    blocks: int
    size: int


ScoreByTotals = Callable[[Totals], Score]
"""From what the pod leaves of the node."""


def totals_of(gpus: Capacities) -> Totals:
    cores = blocks = size = 0
    for model, cores_left, blocks_left in gpus:
        cores += cores_left
        blocks += blocks_left
        size += model.blocks
    return Totals(len(gpus), cores, blocks, size)


def score_by_totals(policy: NodePolicy) -> ScoreByTotals | None:
    """None if the totals of a node are not enough, because its single GPUs, CPU and memory matter."""
    match policy:
        case NodePolicy.BINPACK:
            return _binpack
        case NodePolicy.SPREAD:
            return _spread
        case NodePolicy.FRAGMENTATION:
            return None


def _binpack(left: Totals) -> Score:
    """The free fractions of cores and of memory, added."""
    return (sum(_parts(left)), left.cores)


def _spread(left: Totals) -> Score:
    """The smaller of the free fractions of cores and of memory."""
    return (_PPM - min(_parts(left)), -left.cores)


def _parts(left: Totals) -> tuple[int, int]:
    """Of cores and of memory, in millionths of what the node has; memory whose size is not known counts as free."""
    return (
        left.cores * _PPM // (CORES_PER_GPU * left.gpus) if left.gpus else _PPM,
        left.blocks * _PPM // left.size if left.size else _PPM,
    )


Ranked = tuple[Score, str]
"""A node that may carry the pod, with its score first: in this order nodes are tried."""
_MOST_BEST = 4


class NodeChoice(msgspec.Struct, frozen=True, dict=True):
    """`node` and `placed` are None if no node carries the pod.

    `fitting` has every node that may carry it, in no order; `fits` counts those that were not found not to, and `best`
    are the first of these, best first. `refusals` makes the verdicts on the others: most callers read none.
    `unfinished`: the budget was spent, so some nodes were not looked at.
    """

    node: str | None
    placed: PodChoice | None
    fitting: Sequence[Ranked] = ()
    fits: int = 0
    best: Sequence[Ranked] = ()
    refusals: Callable[[], Mapping[str, NodeRejection]] = dict
    unfinished: bool = False

    @cached_property
    def ranked(self) -> Mapping[str, Score]:
        """By name."""
        return {name: score for score, name in self.fitting}

    @cached_property
    def refused(self) -> Mapping[str, NodeRejection]:
        """By name."""
        return self.refusals()


def _behind(best: Sequence[Ranked], fitting: Sequence[Ranked]) -> Iterator[Ranked]:
    """The others in order, which are tried where none of the best carries the pod: hardly ever."""
    rest = [each for each in fitting if each > best[-1]] if best else []
    heapq.heapify(rest)
    while rest:
        yield heapq.heappop(rest)


_MOST_KEPT = 300_000
_MOST_SHAPES = 10_000
_OnGpus = NodeRejection | UsableCapacity | Score
"""Of a node's GPUs alone; by the fragmentation policy what is left of them, which CPU and memory make a score."""
_Outcome = NodeRejection | Score


class _ScoringContext(msgspec.Struct):
    """Everything that the score of a node depends on, besides the node.

    `share`: cores and blocks, where they alone say what is left of a node's totals, whichever its GPUs are.
    `together`: the number of the pod's shape, where the order of nodes does not matter. `takes_one`: of one GPU, any
    that has room, so the prefilter says only why it fits nowhere; and the score is by what is left of that GPU.
    """

    pod: PodRequest
    needs: Spare
    node_policy: NodePolicy
    gpu_policy: GpuPolicy
    by_totals: ScoreByTotals | None
    share: GpuAmount | None
    budget: Budget
    together: int
    takes_one: bool
    _prefilter: Prefilter | None = None
    _after: CapacityAfter | None = None
    _steps: int = 0

    @property
    def prefilter(self) -> Prefilter:
        if self._prefilter is None:
            self._prefilter = Prefilter(self.pod)
        return self._prefilter

    def after(self, gpus: Capacities) -> Capacities | None:
        """What is left of a node's GPUs; made when first needed, because for most shares totals are enough."""
        return self._estimate()(gpus)

    def of_one(self, gpus: Capacities) -> tuple[int, GpuCapacity] | None:
        """The same of the one GPU that a pod takes."""
        return self._estimate().of_one(gpus)

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

    def named(self, states: Iterable[NodeState]) -> Collection[NodeState]:
        return set(filter(self.is_named, states))

    def may_score(self) -> bool:
        """Takes the steps of one node with eight GPUs from the budget."""
        if not self._steps:
            is_estimated = self.by_totals is None or self.share is None
            self._steps = self.prefilter.steps + (8 * self._estimate().steps if is_estimated else 0)
        return self.budget.may(self._steps)


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
        self._kept: KeptAnswers[EqualNodes, _Outcome] = KeptAnswers()
        self._classes = NodeClasses(self._kept.drop)
        self._usable: WeakKeyDictionary[EquivalenceClass, UsableCapacity] = WeakKeyDictionary()
        self._before: WeakKeyDictionary[EqualNodes, int] = WeakKeyDictionary()
        self._together_there: WeakKeyDictionary[NodeState, Together] = WeakKeyDictionary()
        self._shapes: dict[tuple[object, ...], int] = {}
        self._kept_together = 0

    def expect(self, typical: Workload) -> None:
        """Plan for this workload from now on."""
        self._measure = Fragmentation(typical)
        self._renewals += 1
        self._usable.clear()
        self._before.clear()

    def see(self, states: Iterable[NodeState]) -> None:
        """Classifies nodes that are new or have changed, so that the next `choose` need not."""
        self._classes.see(states)

    def forget(self, node: str) -> None:
        """The node has left the cluster."""
        self._classes.forget(node)

    def ranked(
        self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare = NO_NEEDS, budget: Budget | None = None
    ) -> Mapping[str, Score]:
        """The score of each node that may carry the pod."""
        return self._compared(self._context(pod, needs, budget), states, {}).ranked

    def choose(
        self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare = NO_NEEDS, budget: Budget | None = None
    ) -> NodeChoice:
        """`needs` counts only on nodes that have a `spare`."""
        context, failed = self._context(pod, needs, budget), dict[str, NodeRejection]()
        compared = self._compared(context, states, failed)
        failed |= self._failed_before(context, compared.fitting)
        # There are hardly ever any, and thousands of scores would be copied for nothing.
        left = [each for each in compared.fitting if each[1] not in failed] if failed else compared.fitting
        best = heapq.nsmallest(_MOST_BEST, left)
        for _, name in chain(best, _behind(best, left)):
            if context.budget.goes_on:  # the answer will not count
                break
            placed = self._placed(context, self._classes.states[name])
            if not isinstance(placed, NodeRejection):
                context.budget.is_complete = True
                if best[0][1] != name:
                    best = heapq.nsmallest(_MOST_BEST, [each for each in left if each[1] not in failed])
                fits, spent = len(compared.fitting) - len(failed), context.budget.is_spent
                return replace(compared, node=name, placed=placed, fits=fits, best=best, unfinished=spent)
            failed[name] = placed
        return replace(compared, unfinished=context.budget.is_spent)

    def all_that_fit(
        self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare = NO_NEEDS, budget: Budget | None = None
    ) -> NodeChoice:
        """The same without a choice: `refused` has every node on which the containers do not fit together either."""
        context, failed = self._context(pod, needs, budget), dict[str, NodeRejection]()
        compared = self._compared(context, states, failed)
        if len(pod.containers) > 1:  # of one container the prefilter is certain
            failed |= self._failed_before(context, compared.fitting)
            for name in [name for _, name in compared.fitting if name not in failed]:
                if context.budget.goes_on:  # the answer will not count
                    break
                if (why := self._rejection(context, self._classes.states[name])) is not None:
                    failed[name] = why
        return replace(compared, unfinished=context.budget.is_spent)

    def rejection_together(
        self, pod: PodRequest, state: NodeState, *, budget: Budget | None = None
    ) -> NodeRejection | None:
        """Why the containers do not fit together on a node that passed the prefilter; the node need not be known."""
        if len(pod.containers) == 1:
            return None
        return self._rejection(self._context(pod, NO_NEEDS, budget), state)

    def _context(self, pod: PodRequest, needs: Spare, budget: Budget | None) -> _ScoringContext:
        # First of all, because it drops the numbers of shapes, of which this pod gets one.
        if self._kept_together >= _MOST_KEPT or len(self._shapes) >= _MOST_SHAPES:
            self._trim()
        own = pod.preferences
        gpus, nodes = own.gpu or self._gpu_policy, own.node or self._node_policy
        by_totals = score_by_totals(nodes)
        share = None if by_totals is None else _share(pod)
        together = self._shapes.setdefault(pod.shape, len(self._shapes))
        is_one = len(pod.containers) == 1 and pod.containers[0].request.gpus == 1
        takes_one = is_one and nodes is NodePolicy.FRAGMENTATION and not own.gpus.names_gpus
        return _ScoringContext(pod, needs, nodes, gpus, by_totals, share, budget or Budget(), together, takes_one)

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
        self._kept_together += 1
        return found

    def _failed_before(self, context: _ScoringContext, fitting: Iterable[Ranked]) -> dict[str, NodeRejection]:
        """Where the containers did not fit together; found without a call for each of thousands of nodes."""
        if len(context.pod.containers) == 1 or context.pod.preferences.gpus.names_gpus:
            return {}
        nodes, shape = self._classes.of([self._classes.states[name] for _, name in fitting]), context.together
        found = ((name, each.eq_class.together.get(shape)) for (_, name), each in zip(fitting, nodes, strict=True))
        return {name: why for name, why in found if why is not None}

    def _rejection(self, context: _ScoringContext, state: NodeState) -> NodeRejection | None:
        if self._known(context, state).get(context.together, NodeRejection.NOT_LOOKED_AT) is None:
            return None
        found = self._placed(context, state)
        return found if isinstance(found, NodeRejection) else None

    def _known(self, context: _ScoringContext, state: NodeState) -> Together:
        known = self._classes.equal.get(state)
        # Of another state than the last one seen, as without some pods, the class is not known: it keeps its own.
        if known is not None and not context.is_named(state):
            return known.eq_class.together
        return self._together_there.setdefault(state, {})

    def _compared(
        self, context: _ScoringContext, states: Iterable[NodeState], failed: dict[str, NodeRejection]
    ) -> NodeChoice:
        """Every node, and none chosen; no loop over all nodes calls a function of Python, because there are thousands.

        `failed`: nodes that fit by their outcome and are found not to; they count as refused when that is read.
        """
        given = list(states)
        outcomes = self._outcomes(context, given)
        names = [state.name for state in given]
        # A score is a tuple, and neither is a rejection one nor what the budget did not reach.
        fitting = [each for each in zip(outcomes, names, strict=True) if isinstance(each[0], tuple)]

        def refusals() -> Mapping[str, NodeRejection]:
            if len(fitting) == len(given):
                return failed
            refused = {
                name: each or NodeRejection.NOT_LOOKED_AT
                for each, name in zip(outcomes, names, strict=True)
                if not isinstance(each, tuple)
            }
            return refused | failed

        return NodeChoice(None, None, fitting, refusals=refusals)  # type: ignore[arg-type]  # narrowed by its parts

    def _outcomes(self, context: _ScoringContext, states: Sequence[NodeState]) -> list[_Outcome | None]:
        """None where the budget did not reach."""
        equal = self._classes.of(states)
        kept = self._kept.of(self._kind(context))
        named = context.named(states) if context.pod.preferences.gpus.names_gpus else ()
        found = list(map(kept.get, equal))
        if not all(found):
            new = [at for at, each in enumerate(found) if each is None]
            # What stands for its class must be without a GPU that the pod names.
            plain = [at for at in new if states[at] not in named] if named else new
            self._compare(context, {equal[at]: states[at] if named else equal[at].eq_class.first for at in plain}, kept)
            for at in new:
                found[at] = kept.get(equal[at])
        for at, state in enumerate(states) if named else ():
            if state in named:
                found[at] = self._outcome(context, equal[at], state, {})
        return found

    def _compare(
        self, context: _ScoringContext, nodes: Mapping[EqualNodes, NodeState], kept: dict[EqualNodes, _Outcome]
    ) -> None:
        """Adds outcomes to those that are kept, as far as the budget reaches; each is of one of the nodes."""
        before, of_class = len(kept), dict[EquivalenceClass, _OnGpus]()
        for each, state in nodes.items():
            outcome = self._outcome(context, each, state, of_class)
            if outcome is not NodeRejection.NOT_LOOKED_AT:
                kept[each] = outcome
        self._kept.added(len(kept) - before)

    def _kind(self, context: _ScoringContext) -> tuple[object, ...]:
        """All that an outcome depends on beside the state of the node."""
        by_gpus = context.by_totals is None
        # Outcomes by an earlier workload are not looked up again.
        renewals = self._renewals if by_gpus else 0
        # Only then do CPU and memory count; else pods that differ in nothing more share their outcomes.
        needs = context.needs if self._leaves_out or by_gpus else None
        return (context.together, context.node_policy, context.gpu_policy, renewals, needs)

    def _trim(self) -> None:
        """Counts again what is cached of containers together: most of it has gone with past states of nodes.

        Drops all if it is still much.
        """
        there = self._together_there.values()
        self._kept_together = sum(len(each.together) for each in self._classes) + sum(map(len, there))
        if self._kept_together >= _MOST_KEPT // 2 or len(self._shapes) >= _MOST_SHAPES:
            self._kept, self._shapes, self._kept_together = KeptAnswers(), {}, 0
            self._classes = NodeClasses(self._kept.drop)
            self._together_there.clear()

    def _outcome(
        self,
        context: _ScoringContext,
        nodes: EqualNodes,
        state: NodeState,
        of_class: dict[EquivalenceClass, _OnGpus],
    ) -> NodeRejection | Score:
        """`state` is one of the nodes, `of_class` what was found of the GPUs of others."""
        if self._leaves_out and nodes.spare is not None and not nodes.spare.covers(context.needs):
            return NodeRejection.SPARE
        on_gpus = of_class.get(nodes.eq_class)
        if on_gpus is None:
            if not context.may_score():
                return NodeRejection.NOT_LOOKED_AT
            on_gpus = of_class[nodes.eq_class] = self._on_gpus(context, nodes.eq_class, state)
        return self._growth(nodes, on_gpus, context.needs) if isinstance(on_gpus, UsableCapacity) else on_gpus

    def _on_gpus(self, context: _ScoringContext, eq_class: EquivalenceClass, state: NodeState) -> _OnGpus:
        if context.takes_one and (found := context.of_one(eq_class.gpus)) is not None:
            at, left = found
            return self._usable_before(eq_class).less(at, left, eq_class.gpus[at].cores - left.cores)
        against = context.prefilter(state)
        if against is not None:
            return against
        score, share = context.by_totals, context.share
        if score is not None and share is not None:  # the prefilter is exact for it, so nothing needs to be placed
            free = totals_of(eq_class.gpus)
            return score(Totals(free.gpus, free.cores - share.cores, free.blocks - share.blocks, free.size))
        after = context.after(eq_class.gpus)
        if after is None:
            return LAST
        if score is not None:
            return score(totals_of(after))
        return self._measure.usable_capacity(after)

    def _usable_before(self, eq_class: EquivalenceClass) -> UsableCapacity:
        found = self._usable.get(eq_class)
        if found is None:
            found = self._usable[eq_class] = self._measure.usable_capacity(eq_class.gpus)
        return found

    def _growth(self, nodes: EqualNodes, after: UsableCapacity, needs: Spare) -> Score:
        """By how much the pod makes the fragmentation of such a node more."""
        before = self._before.get(nodes)
        if before is None:
            before = self._before[nodes] = self._usable_before(nodes.eq_class).fragmentation(nodes.spare)
        left = None if nodes.spare is None else nodes.spare - needs
        return (after.fragmentation(left) - before, after.free)


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
