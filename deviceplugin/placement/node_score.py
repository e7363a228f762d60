"""How good a node would be with a pod on it, by each node policy.

In: a node as cards before and after the pod. Out: a score, the least is the best; its second number is for ties. Only
integers, so that the same cluster is put into the same order on every machine.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from deviceplugin.model.preferences import NodePolicy
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.cards import Cards, free_cores
from deviceplugin.placement.fragmentation import Fragmentation
from deviceplugin.placement.node_state import Spare

_PPM = 1_000_000

Score = tuple[int, int]
LAST: Score = (1 << 200, 0)
"""Behind every node of which a policy can say something."""


class Change(NamedTuple):
    """A node before and after a pod; `spare` is what was beside the cards before, `needs` what the pod takes of it."""

    before: Cards
    after: Cards
    spare: Spare | None
    needs: Spare


def score(policy: NodePolicy, change: Change, measure: Fragmentation) -> Score:
    return _SCORES[policy](change, measure)


def _binpack(change: Change, _measure: Fragmentation) -> Score:
    """The parts of cores and of memory that are left, added up."""
    return (sum(_parts_left(change.after)), free_cores(change.after))


def _spread(change: Change, _measure: Fragmentation) -> Score:
    """The scarcer of cores and memory counts."""
    return (_PPM - min(_parts_left(change.after)), -free_cores(change.after))


def _fragmentation(change: Change, measure: Fragmentation) -> Score:
    grown = measure.growth(change.before, change.after, change.spare, change.needs)
    return (grown, free_cores(change.after))


def _parts_left(cards: Cards) -> tuple[int, int]:
    """Of cores and of memory, in millionths of what the node has; memory of which nothing is known is all there."""
    cores = free = blocks = 0
    for kind, cores_left, blocks_left in cards:
        cores += cores_left
        free += blocks_left
        blocks += kind.blocks
    return (
        cores * _PPM // (CORES_PER_GPU * len(cards)) if cards else _PPM,
        free * _PPM // blocks if blocks else _PPM,
    )


_SCORES: Mapping[NodePolicy, Callable[[Change, Fragmentation], Score]] = {
    NodePolicy.BINPACK: _binpack,
    NodePolicy.SPREAD: _spread,
    NodePolicy.FRAGMENTATION: _fragmentation,
}
