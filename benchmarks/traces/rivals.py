"""Published policies for comparison with vcuda's, on tasks for which no policy was tuned.

In: what every chooser gets. Out: a `NodeChoice`. Prefilter and GPUs are those of vcuda, so only the order of nodes
differs; if a policy also chooses the GPU, that one is preferred. Written from the descriptions in Weng et al., "Beware
of Fragmentation" (USENIX ATC 2023). Open details are decided in favour of the rival: ties go to the node with the
least free GPU capacity. Only for pods of one container, which is all that traces have.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.placement.capacity_after import Capacities, CapacityAfter, capacities_of, free_cores
from deviceplugin.placement.fit import GpuCapacity, NodeRejection
from deviceplugin.placement.fragmentation import Fragmentation, Workload, by_count, stranded
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.nodes import NodeChoice
from deviceplugin.placement.pod import place_pod
from deviceplugin.placement.prefilter import Prefilter

Order = tuple[int, int]
_PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """A node before a pod, and its GPUs after one of the possible placements."""

    pod: PodRequest
    before: Capacities
    after: Capacities
    spare: Spare
    needs: Spare


class Measure(Protocol):
    def __call__(self, change: Change) -> Order: ...


class Fgd:
    """Fragmentation gradient descent.

    The node and the GPU where the least capacity becomes useless to the next task.
    """

    chooses_gpu = True

    def __init__(self, typical: Workload) -> None:
        self._measure = Fragmentation(typical, weigh=by_count)

    def __call__(self, change: Change) -> Order:
        left = stranded(self._measure, change.after, change.spare - change.needs)
        return (left - stranded(self._measure, change.before, change.spare), free_cores(change.after))


@dataclass(frozen=True)
class BestFit:
    """The node with the least remaining CPU and GPU, as fractions of the largest node."""

    most_cpu: int
    most_cores: int
    chooses_gpu = False

    def __call__(self, change: Change) -> Order:
        cpu = (change.spare - change.needs).cpu_milli * _PPM // self.most_cpu
        cores = free_cores(change.after)
        return (cpu + cores * _PPM // self.most_cores, cores)


@dataclass(frozen=True)
class DotProduct:
    """The node with the smallest dot product of free CPU and GPU with the request."""

    most_cpu: int
    most_cores: int
    chooses_gpu = False

    def __call__(self, change: Change) -> Order:
        asked = sum(each.request.cores for each in change.pod.containers)
        cpu = change.spare.cpu_milli * change.needs.cpu_milli * _PPM // self.most_cpu**2
        gpu = free_cores(change.before) * asked * _PPM // self.most_cores**2
        return (cpu + gpu, free_cores(change.after))


@dataclass(frozen=True, slots=True)
class _Found:
    """The rank of a node, and the GPU that a policy would take there."""

    order: Order
    card: GpuCapacity | None


@dataclass(slots=True)
class _Alike:
    cards: Capacities
    outcomes: dict[object, "_Found | NodeRejection"] = field(default_factory=dict)


class Rival:
    """A chooser by one measure; it caches results of equal nodes, as vcuda does, so that a run takes seconds."""

    def __init__(self, measure: Fgd | BestFit | DotProduct) -> None:
        self._measure = measure
        self._nodes: dict[str, tuple[NodeState, _Alike]] = {}
        self._alike: dict[object, _Alike] = {}

    def choose(self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare) -> NodeChoice:
        gate, shape = Prefilter(pod), (pod.shape, needs)
        best: tuple[Order, str, _Found] | None = None
        refused: dict[str, NodeRejection] = {}
        for state in states:
            alike = self._known(state)
            outcome = alike.outcomes.get(shape)
            if outcome is None:
                outcome = alike.outcomes[shape] = self._judge(gate, pod, state, alike.cards, needs)
            if not isinstance(outcome, _Found):
                refused[state.name] = outcome
            elif best is None or (outcome.order, state.name) < best[:2]:
                best = (outcome.order, state.name, outcome)
        if best is None:
            return NodeChoice(None, None, refusals=lambda: refused)
        _, name, found = best
        placed = place_pod(
            pod, self._nodes[name][0], policy=GpuPolicy.BINPACK, prefer=_named(self._nodes[name][0], found)
        )
        return NodeChoice(name, placed, refusals=lambda: refused)

    def _known(self, state: NodeState) -> _Alike:
        known = self._nodes.get(state.name)
        if known is not None and known[0] is state:
            return known[1]
        cards = capacities_of(state)
        alike = self._alike.setdefault((state.spare, cards), _Alike(cards))
        self._nodes[state.name] = (state, alike)
        return alike

    def _judge(
        self, gate: Prefilter, pod: PodRequest, state: NodeState, cards: Capacities, needs: Spare
    ) -> _Found | NodeRejection:
        spare = state.spare or Spare(0, 0)
        if not spare.covers(needs):
            return NodeRejection.SPARE
        if (against := gate(state)) is not None:
            return against
        ways = _ways(pod, cards) if self._measure.chooses_gpu else _as_binpack(pod, cards)
        found = [(self._measure(Change(pod, cards, left, spare, needs)), card) for card, left in ways]
        if not found:
            return NodeRejection.CORES
        order, card = min(found, key=lambda each: each[0])
        return _Found(order, card)


def _as_binpack(pod: PodRequest, cards: Capacities) -> list[tuple[GpuCapacity | None, Capacities]]:
    left = CapacityAfter(pod, GpuPolicy.BINPACK)(cards)
    return [] if left is None else [(None, left)]


def _ways(pod: PodRequest, cards: Capacities) -> list[tuple[GpuCapacity | None, Capacities]]:
    """For a share of one GPU: each GPU that differs from the others, the fullest first; otherwise the default."""
    requests = [each.request for each in pod.containers]
    if len(requests) != 1 or not requests[0].is_share or requests[0].gpus > 1:
        return _as_binpack(pod, cards)
    ways: list[tuple[GpuCapacity | None, Capacities]] = []
    for card in sorted(set(cards), key=lambda each: (each.cores, each.blocks)):
        left = CapacityAfter(pod, GpuPolicy.BINPACK)((card,))
        if left is not None:
            rest = list(cards)
            rest.remove(card)
            ways.append((card, tuple(sorted([*rest, *left]))))
    return ways


def _named(state: NodeState, found: _Found) -> frozenset[GpuUuid]:
    if found.card is None:
        return frozenset()
    wanted = (found.card.model.name, found.card.cores, found.card.blocks)
    views = state.open_gpus.views
    return frozenset(view.gpu.uuid for view in views if (view.gpu.model, view.free_cores, view.free_blocks) == wanted)
