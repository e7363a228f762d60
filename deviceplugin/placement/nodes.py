"""Chooses the node of a pod, and on it the GPUs.

In: what a pod asks, the nodes that are open to it, and which of them are preferred. Out: a `NodeChoice` with a verdict
for each node. Every node passes the prefilter; those that may carry the pod are put in the order of the policy, and
`place_pod` is asked from the top until one does: the expensive step runs once, as a rule.

    binpack        the node that is fullest with the pod on it
    spread         the node that is emptiest with the pod on it
    fragmentation  the node where least becomes useless to the tasks that come

Ties go to the node with the least GPU left (spread: the most), then to the first by name; the order in which nodes are
given never counts. What was found out for a pod's shape is kept beside all nodes that are alike, so a node that has not
changed is not looked at again; a pod that names cards by UUID is calculated each time. What depends on the CPU and
memory beside the GPUs as well is kept for as long as some node has just that much.
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
from deviceplugin.placement.node_score import LAST, Change, NodeChoice, Score, Totals, score, score_of_totals, totals_of
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.pod import PodChoice, place_pod
from deviceplugin.placement.prefilter import Prefilter
from deviceplugin.placement.rejection import NodeRejection
from deviceplugin.placement.workload import ASSUMED, NO_NEEDS, Workload

_MOST_KEPT = 300_000
_MOST_SHAPES = 10_000
_NAMES_CARDS = -1
"""For every pod that does: nothing found out for it is kept, because nodes that are alike differ for it."""
_Outcome = NodeRejection | Score
_Reached = NodeRejection | Capacities | None
"""What speaks against a pod on a node's GPUs, or the cards after it; None where one after the other does not fit."""


@dataclass(slots=True)
class _Task:
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

    def against(self, state: NodeState, alike: "_Alike") -> NodeRejection | None:
        """What the prefilter needs of a node has been calculated for the first of those that are alike."""
        return self.prefilter(state if self.names_cards else alike.first)

    def after(self, gpus: Capacities) -> Capacities | None:
        """What is left of a node's GPUs; made when first needed, because for most shares totals are enough."""
        if self._after is None:
            self._after = CapacityAfter(self.pod, self.gpu_policy)
        return self._after(gpus)

    @property
    def plans(self) -> bool:
        """Only then CPU and memory say which node is better."""
        return self.node_policy is NodePolicy.FRAGMENTATION

    @property
    def names_cards(self) -> bool:
        wanted = self.pod.preferences.gpus
        return bool(wanted.uuids or wanted.not_uuids)

    @property
    def shape(self) -> tuple[object, ...]:
        needs = self.needs if self.plans else None
        return (self.pod.shape, needs, self.node_policy, self.gpu_policy)


class _Beside:
    """What was found out for nodes that are alike and have as much CPU and memory, by shape.

    `value` is the fragmentation of such a node, by the measure of which `renewal` it is.
    """

    __slots__ = ("__weakref__", "outcomes", "renewal", "value")

    def __init__(self) -> None:
        self.outcomes: dict[int, _Outcome] = {}
        self.renewal = -1
        self.value = 0


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Alike:
    """Nodes between whose GPUs neither prefilter nor score sees a difference.

    `reached` was found out by what a pod asks of GPUs alone, and `left` of that by the measure of this `renewal`;
    `any_spare` by shape. `beside` is more for the nodes of which CPU and memory are known, and goes when the last of
    them does.
    """

    first: NodeState
    cards: Capacities
    totals: Totals
    reached: dict[int, _Reached] = field(default_factory=dict)
    left: dict[int, UsableCapacity] = field(default_factory=dict)
    renewal: int = -1
    any_spare: _Beside = field(default_factory=_Beside)
    beside: WeakValueDictionary[Spare, _Beside] = field(default_factory=WeakValueDictionary)

    @property
    def kept(self) -> int:
        """How many outcomes."""
        return len(self.reached) + sum(len(each.outcomes) for each in (self.any_spare, *self.beside.values()))

    def with_spare(self, spare: Spare | None) -> _Beside:
        if spare is None:
            return self.any_spare
        found = self.beside.get(spare)
        if found is None:
            found = self.beside[spare] = _Beside()
        return found


class _Known(NamedTuple):
    """A node as it was last seen."""

    state: NodeState
    alike: _Alike
    beside: _Beside


class NodeScorer:
    """Keeps what it found out; belongs to one thread. `typical` is what the fragmentation policy plans for.

    `leaves_out`: a node with too little CPU or memory is refused; else whoever asks has left such nodes out.
    `renewals` is how often the workload has changed.
    """

    def __init__(self, typical: Workload = ASSUMED, *, leaves_out: bool = True) -> None:
        self._measure = Fragmentation(typical)
        self._leaves_out = leaves_out
        self.renewals = 0
        self._next: Fragmentation | None = None
        self._unprepared: list[_Known] = []
        self._nodes: dict[str, _Known] = {}
        # Of nodes as they are: what is held of eight GPUs is hardly ever twice the same, and would be kept for nobody.
        self._alike: WeakValueDictionary[tuple[object, ...], _Alike] = WeakValueDictionary()
        self._shapes: dict[tuple[object, ...], int] = {}
        self._kept = 0

    def expect(self, typical: Workload) -> None:
        """From now on this is what comes."""
        self._measure, self._next = Fragmentation(typical), None
        self.renewals += 1

    def expect_soon(self, typical: Workload) -> None:
        """The same from when `prepare` has looked at every node; until then answers are as before."""
        self._next, self._unprepared = Fragmentation(typical), list(self._nodes.values())

    def prepare(self, most: int) -> bool:
        """Looks at so many nodes more, for a choice that had to look at all would keep somebody waiting.

        False where nothing is left to do.
        """
        if self._next is None:
            return False
        for _ in range(min(most, len(self._unprepared))):
            known = self._unprepared.pop()
            self._next.usable(known.alike.cards, known.state.spare)
        if not self._unprepared:
            self._measure, self._next = self._next, None
            self.renewals += 1
        return self._next is not None

    def see(self, states: Iterable[NodeState]) -> None:
        """Prepares for nodes that are new or have changed, so that the next `choose` need not."""
        for state in states:
            known = self._nodes.get(state.name)
            if known is None or known.state is not state:
                self._remember(state)

    def forget(self, node: str) -> None:
        """It has left the cluster."""
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
        task = _Task(pod, Prefilter(pod), needs, nodes, gpus, _share(pod, nodes))
        ranked, refused = self._look(task, states)
        for name in _best_first(ranked):
            placed = _placed(task, self._nodes[name][0], prefer)
            if not isinstance(placed, NodeRejection):
                return NodeChoice(name, placed, ranked, refused)
            refused[name] = placed
        return NodeChoice(None, None, ranked, refused)

    def _look(self, task: _Task, states: Iterable[NodeState]) -> tuple[dict[str, Score], dict[str, NodeRejection]]:
        """At every node; written for speed, because there are thousands and nearly all have not changed."""
        shape, nodes, plans = self._shape(task), self._nodes, task.plans
        leaves_out, needs = self._leaves_out, task.needs
        on_gpus = _NAMES_CARDS if shape == _NAMES_CARDS else self._number((task.pod.shape, task.gpu_policy))
        ranked: dict[str, Score] = {}
        refused: dict[str, NodeRejection] = {}
        for state in states:
            known = nodes.get(state.name)
            if known is None or known[0] is not state:
                known = self._remember(state)
            if leaves_out and state.spare is not None and not state.spare.covers(needs):
                refused[state.name] = NodeRejection.SPARE
                continue
            outcomes = (known[2] if plans else known[1].any_spare).outcomes
            outcome = outcomes.get(shape)
            if outcome is None:
                outcome = self._judge(task, known, on_gpus)
                if shape != _NAMES_CARDS:
                    outcomes[shape] = outcome
                    self._kept += 1
            if isinstance(outcome, tuple):
                ranked[state.name] = outcome
            else:
                refused[state.name] = outcome
        return ranked, refused

    def _shape(self, task: _Task) -> int:
        """A number for the shape, which is quicker to look up by."""
        if task.names_cards:
            return _NAMES_CARDS
        if self._kept >= _MOST_KEPT or len(self._shapes) >= _MOST_SHAPES:
            self._make_room()
        return self._number(self._key(task))

    def _number(self, key: tuple[object, ...]) -> int:
        return self._shapes.setdefault(key, len(self._shapes))

    def _key(self, task: _Task) -> tuple[object, ...]:
        """What was found out by another measure is not looked up again."""
        return (*task.shape, self.renewals if task.plans else 0)

    def _remember(self, state: NodeState) -> _Known:
        likeness = _likeness(state)
        alike = self._alike.get(likeness)
        if alike is None:
            cards = capacities_of(state)
            alike = self._alike[likeness] = _Alike(state, cards, totals_of(cards))
        known = self._nodes[state.name] = _Known(state, alike, alike.with_spare(state.spare))
        return known

    def _make_room(self) -> None:
        """Most of what was counted has gone with the states that nodes had; only what is left counts."""
        self._kept = sum(alike.kept for alike in self._alike.values())
        if self._kept >= _MOST_KEPT // 2 or len(self._shapes) >= _MOST_SHAPES:
            self._start_over()

    def _start_over(self) -> None:
        self._nodes.clear()
        self._alike.clear()
        self._shapes.clear()
        self._kept = 0

    def _judge(self, task: _Task, known: _Known, on_gpus: int) -> _Outcome:
        state, alike, _ = known
        if task.plans and state.spare is not None and on_gpus != _NAMES_CARDS:
            return self._planned(task, known, on_gpus)
        if (against := task.against(state, alike)) is not None:
            return against
        if (share := task.share) is not None:  # the prefilter is exact for it
            free = alike.totals
            left = Totals(free.gpus, free.cores - share.cores, free.blocks - share.blocks, free.size)
            return score_of_totals(task.node_policy, left)
        after = task.after(alike.cards)
        if after is None:
            return LAST
        return score(task.node_policy, Change(alike.cards, after, state.spare, task.needs), self._measure)

    def _planned(self, task: _Task, known: _Known, on_gpus: int) -> _Outcome:
        """The same by the fragmentation policy beside CPU and memory, which make many nodes of few that are alike."""
        state, alike, beside = known
        spare, needs = state.spare, task.needs
        assert spare is not None
        if alike.renewal != self.renewals:
            alike.left.clear()
            alike.renewal = self.renewals
        left = alike.left.get(on_gpus)
        if left is None:
            reached = self._reached(task, alike, on_gpus)
            if not isinstance(reached, tuple):
                return LAST if reached is None else reached
            left = alike.left[on_gpus] = self._measure.usable_capacity(reached)
        if beside.renewal != self.renewals:
            beside.value = self._measure.usable_capacity(alike.cards).value(spare.cpu_milli, spare.memory_mib)
            beside.renewal = self.renewals
        value = left.value(spare.cpu_milli - needs.cpu_milli, spare.memory_mib - needs.memory_mib)
        return (value - beside.value, left.free)

    def _reached(self, task: _Task, alike: _Alike, on_gpus: int) -> _Reached:
        if on_gpus not in alike.reached:
            against = task.prefilter(alike.first)
            alike.reached[on_gpus] = task.after(alike.cards) if against is None else against
            self._kept += 1
        return alike.reached[on_gpus]


def _share(pod: PodRequest, policy: NodePolicy) -> GpuAmount | None:
    if len(pod.containers) != 1 or policy is NodePolicy.FRAGMENTATION:
        return None
    demand = demand_of(pod.containers[0].request)
    return demand.total if demand.sharing is Sharing.SHARE else None


def _best_first(ranked: Mapping[str, Score]) -> Iterable[str]:
    """Sorted only where the best does not carry the pod."""
    if not ranked:
        return
    best = min(zip(ranked.values(), ranked, strict=True))[1]
    yield best
    rest = sorted((found, name) for name, found in ranked.items() if name != best)
    yield from (name for _, name in rest)


def _placed(task: _Task, state: NodeState, prefer: Collection[GpuUuid]) -> PodChoice | NodeRejection:
    try:
        return place_pod(task.pod, state, policy=task.gpu_policy, prefer=prefer)
    except SearchLimitError:
        return NodeRejection.SEARCH_EXHAUSTED
    except CapacityError:
        return NodeRejection.TOGETHER


def _likeness(state: NodeState) -> tuple[object, ...]:
    """What the prefilter looks at, and the score of cards; neither knows names, links or processes."""
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
