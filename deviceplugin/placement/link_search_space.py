"""The ground on which linked GPUs are chosen: distances among free GPUs, branches of the tree, and how sets compare.

In: candidates. Out: `Standing`, the one order of sets: total distance first; then the branch that holds the set, by its
free GPUs and those of each branch around it, outwards; then how close to each other the GPUs stay that the set leaves
over in its branch; then memory, processes and minor numbers. All ascending.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from deviceplugin.model.topology import Topology, TopologyNode
from deviceplugin.placement.candidates import Candidates
from deviceplugin.placement.snapshot import GpuView

Minors = tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Standing:
    """Of two sets of one size the lesser is chosen; the fields are the keys in their order."""

    distance: int
    branch: tuple[int, ...]
    left_over: int
    blocks: int
    processes: int
    minors: Minors


@dataclass(frozen=True)
class Branch:
    """A node of the tree that holds enough candidates; `fullness` counts free GPUs here and in each branch around."""

    node: TopologyNode
    views: tuple[GpuView, ...]
    fullness: tuple[int, ...]
    free: Minors
    distances: dict[int, dict[int, int]]

    @cached_property
    def members(self) -> frozenset[int]:
        return frozenset(view.gpu.minor for view in self.views)

    @cached_property
    def reach(self) -> dict[int, int]:
        """For each free GPU its distance to all free GPUs of the branch together."""
        rows = self.distances
        return {minor: sum([rows[minor][other] for other in self.free]) for minor in self.free}

    def left_over(self, minors: Minors, distance: int) -> int:
        """Total distance of the free GPUs that the set leaves, from that of all, of the set, and between the two."""
        return sum(self.reach.values()) // 2 + distance - sum(self.reach[minor] for minor in minors)


class Ground:
    """All of it for one request; `branches` has the fullest first."""

    def __init__(self, candidates: Candidates) -> None:
        self.size = candidates.request.gpus
        self.distances = _distances(candidates.topology, tuple(sorted(candidates.free)))
        self._views = {view.gpu.minor: view for view in candidates.views}
        branches = _branches(candidates.topology.tree(), (), candidates, self.distances)
        self.branches = sorted(branches, key=lambda branch: (branch.fullness, branch.node.minors))

    def inner(self, minors: Minors) -> dict[int, int]:
        """For each member its distance to the other members together."""
        return {minor: sum([self.distances[minor][other] for other in minors]) for minor in minors}

    def branch_of(self, minors: Minors) -> Branch:
        """The smallest that holds them all."""
        wanted = set(minors)
        return min(
            (branch for branch in self.branches if wanted <= branch.members), key=lambda branch: len(branch.node.minors)
        )

    def standing(self, minors: Minors) -> Standing:
        branch, distance = self.branch_of(minors), sum(self.inner(minors).values()) // 2
        return Standing(
            distance=distance,
            branch=branch.fullness,
            left_over=branch.left_over(minors, distance),
            blocks=sum(self._views[minor].free_blocks for minor in minors),
            processes=sum(self._views[minor].processes for minor in minors),
            minors=minors,
        )


def _distances(topology: Topology, minors: Minors) -> dict[int, dict[int, int]]:
    rows: dict[int, dict[int, int]] = {minor: {minor: 0} for minor in minors}
    for a, b in combinations(minors, 2):
        rows[a][b] = rows[b][a] = topology.distance(a, b)
    return rows


def _branches(
    node: TopologyNode, around: tuple[int, ...], candidates: Candidates, distances: dict[int, dict[int, int]]
) -> Iterator[Branch]:
    below = set(node.minors)
    views = tuple(view for view in candidates.views if view.gpu.minor in below)
    if len(views) < candidates.request.gpus:
        return
    free = tuple(sorted(candidates.free & below))
    fullness = (len(free), *around)
    yield Branch(node, views, fullness, free, distances)
    for child in node.children:
        yield from _branches(child, fullness, candidates, distances)
