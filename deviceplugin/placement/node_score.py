"""How good a node would be with a pod on it, by each node policy, and what the choice among nodes answers.

In: the capacities of a node before and after the pod. Out: a score, the least is the best; its second number is for
ties. Only integers, so that the same cluster is put into the same order on every machine. `NodeChoice` has the node and
the GPUs that were chosen, the scores, and why every other node was not taken.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from deviceplugin.model.preferences import NodePolicy
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.capacity_after import Capacities
from deviceplugin.placement.fit import NodeRejection
from deviceplugin.placement.pod import PodChoice

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


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """`node` and `placed` are None if no node carries the pod.

    `ranked` has the score of every node that may carry it, by name; `refused` the verdict on every other.
    `unfinished`: the budget was spent, so some nodes were not looked at.
    """

    node: str | None
    placed: PodChoice | None
    ranked: Mapping[str, Score]
    refused: Mapping[str, NodeRejection]
    unfinished: bool = False


def best_first(ranked: Mapping[str, Score]) -> Iterable[str]:
    """Nothing is sorted where the best carries the pod, as nearly always; else no more than is tried."""
    if not ranked:
        return
    best = min(zip(ranked.values(), ranked, strict=True))[1]
    yield best
    rest = [(found, name) for name, found in ranked.items() if name != best]
    heapq.heapify(rest)
    while rest:
        yield heapq.heappop(rest)[1]
