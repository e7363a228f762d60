"""Several whole GPUs: the set with the smallest total distance, summed over all its pairs.

In: candidates. Out: the least set by `SetRank`: total distance first; then the branch that holds the set, by its free
GPUs and those of each branch around it, outwards; then how close to each other the GPUs stay that the set leaves over
in its branch; then memory, processes and minor numbers, all ascending.

The exact search is branch and bound over what each pair costs together (its distance) and what each member costs alone
(the order among equally close sets, packed below the distances). Its work is counted in links looked at, so that it is
the same on every machine, and has a fixed allowance: twice what the hardest nodes with 16 candidates take that a search
for such nodes found. Where it runs out, the answer is the best set found, which is never farther than the greedy one
and which no exchange of one GPU brings closer, and the reason says "closest found".
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, combinations
from operator import add

import msgspec
from msgspec.structs import astuple

from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.topology import Topology, TopologyNode
from deviceplugin.placement.candidates import Candidates, Selection, first_difference
from deviceplugin.placement.describe import gpus_text, level_text
from deviceplugin.placement.snapshot import GpuView

Costs = Sequence[Sequence[int]]

_MOST_STARTS = 8


def greedy(pairs: Costs, size: int) -> tuple[int, ...]:
    """From each of the members with the nearest neighbours, adds the nearest until there are enough; the best set."""
    starts = sorted(range(len(pairs)), key=lambda member: sum(sorted(pairs[member])[:size]))
    return min(_grow(pairs, start, size) for start in starts[:_MOST_STARTS])[1]


def _grow(pairs: Costs, start: int, size: int) -> tuple[int, tuple[int, ...]]:
    cost, chosen = 0, [start]
    links = list(pairs[start])
    left = [member for member in range(len(pairs)) if member != start]
    while len(chosen) < size:
        nearest = min(left, key=links.__getitem__)
        cost += links[nearest]
        chosen.append(nearest)
        left.remove(nearest)
        links = list(map(add, links, pairs[nearest]))
    return cost, tuple(sorted(chosen))


class Search:
    """The set of `size` members that costs least, where that is less than `below`: branch and bound.

    `alone` is what each member costs by itself. `spent` counts links looked at; once it is above the effort, the search
    is `exhausted`: sets were left out.
    """

    def __init__(self, pairs: Costs, alone: Sequence[int], size: int, *, below: int, effort: int) -> None:
        # To choose most of the members is to leave out few, and that tree is smaller.
        self._is_inverted = len(pairs) < 2 * size < 2 * len(pairs)
        if self._is_inverted:
            # A set costs what all cost, less the links and own cost of each one left out, plus the links among those.
            reach = [sum(row) for row in pairs]
            below -= sum(reach) // 2 + sum(alone)
            alone, size = [-links - own for links, own in zip(reach, alone, strict=True)], len(pairs) - size
        self._pairs, self._alone, self._size = pairs, alone, size
        self._limit, self._effort, self.spent = below, effort, 0
        self._best: tuple[int, ...] | None = None
        self._halves, self._alike = _half_links(pairs, size), _alike(pairs)

    @property
    def exhausted(self) -> bool:
        return self.spent > self._effort

    def run(self) -> tuple[int, ...] | None:
        """The members in ascending order."""
        everyone = range(len(self._pairs))
        self._extend(0, (), list(everyone), self._alone)
        if self._best is None:
            return None
        return tuple(member for member in everyone if (member in self._best) is not self._is_inverted)

    def _extend(self, cost: int, chosen: tuple[int, ...], left: list[int], links: Sequence[int]) -> None:
        """Completes `chosen` from `left`; `links` is what each member would add to the cost now."""
        self.spent += len(links)
        missing = self._size - len(chosen)
        if not missing:
            self._limit, self._best = cost, chosen
            return
        # Each member adds at least its links to the chosen ones, its own cost, and half of its nearest other links.
        adds = list(map(add, links, self._halves[missing - 1]))
        # The least first: the first dive is greedy, and its set makes the limit low early.
        left = sorted(left, key=adds.__getitem__)
        # The cheapest members add at least this; where that is too much, no set from here on costs less.
        while len(left) >= missing and cost + sum(map(adds.__getitem__, left[:missing])) < self._limit:
            if self.exhausted:
                return
            first, *left = left
            self._extend(cost + links[first], (*chosen, first), left, list(map(add, links, self._pairs[first])))
            # Members that are alike make the same sets: what failed with the first fails with the others.
            left = [member for member in left if self._alike[member] != self._alike[first]]


def _alike(pairs: Costs) -> list[int]:
    """For each member the first that has the same links to all others: either can stand for the other."""
    return [next(other for other in range(one + 1) if _can_swap(pairs, one, other)) for one in range(len(pairs))]


def _can_swap(pairs: Costs, one: int, other: int) -> bool:
    both = zip(pairs[one], pairs[other], strict=True)
    return all(a == b or at in (one, other) for at, (a, b) in enumerate(both))


def _half_links(pairs: Costs, size: int) -> list[list[int]]:
    """Row k: for each member half the sum of its k nearest links, the least that k fellow members can cost it.

    Half, because both ends of a link count it.
    """
    rows = [sorted(cost for at, cost in enumerate(row) if at != member) for member, row in enumerate(pairs)]
    sums = [list(accumulate(row[: size - 1], initial=0)) for row in rows]
    return [[total[k] // 2 for total in sums] for k in range(size)]


Minors = tuple[int, ...]


class SetRank(msgspec.Struct, frozen=True, order=True):
    """Of two sets of one size the lesser is chosen; the fields are the keys in their order."""

    distance: int
    branch: tuple[int, ...]
    left_over: int
    blocks: int
    processes: int
    minors: Minors


class LinkBranch(msgspec.Struct, frozen=True, dict=True):
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


class LinkSearchSpace:
    """All of it for one request; `branches` has the fullest first."""

    def __init__(self, candidates: Candidates) -> None:
        self.size = candidates.request.gpus
        self.distances = _distances(candidates.topology, tuple(sorted(candidates.free)))
        self._views = {view.gpu.minor: view for view in candidates.views}
        branches = _branches(candidates.topology.tree, (), candidates, self.distances)
        self.branches = sorted(branches, key=lambda branch: (branch.fullness, branch.node.minors))

    def inner(self, minors: Minors) -> dict[int, int]:
        """For each member its distance to the other members together."""
        return {minor: sum([self.distances[minor][other] for other in minors]) for minor in minors}

    def branch_of(self, minors: Minors) -> LinkBranch:
        """The smallest that holds them all."""
        wanted = set(minors)
        return min(
            (branch for branch in self.branches if wanted <= branch.members), key=lambda branch: len(branch.node.minors)
        )

    def rank(self, minors: Minors) -> SetRank:
        branch, distance = self.branch_of(minors), sum(self.inner(minors).values()) // 2
        return SetRank(
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
) -> Iterator[LinkBranch]:
    below = set(node.minors)
    views = tuple(view for view in candidates.views if view.gpu.minor in below)
    if len(views) < candidates.request.gpus:
        return
    free = tuple(sorted(candidates.free & below))
    fullness = (len(free), *around)
    yield LinkBranch(node, views, fullness, free, distances)
    for child in node.children:
        yield from _branches(child, fullness, candidates, distances)


_ALLOWANCE = 40_000  # links looked at: some 15 ms of pure Python
_KEY = 1 << 24  # above the sum of one key of `SetRank` over the GPUs of a node


def link(candidates: Candidates) -> Selection:
    views = {view.gpu.minor: view for view in candidates.views}
    space = LinkSearchSpace(candidates)
    best, proved = _best(space, tuple(views))
    chosen = tuple(views[minor] for minor in best.minors)
    inner = space.inner(best.minors)
    others = [view.gpu for view in candidates.views if view.gpu.minor not in inner]

    def against() -> dict[GpuUuid, str]:
        return {gpu.uuid: _behind(space, best, inner, gpu.minor) for gpu in others}

    return Selection(chosen, _reason(space, best, len(views), proved), against)


def _best(space: LinkSearchSpace, minors: Minors) -> tuple[SetRank, bool]:
    if len(minors) == space.size:
        return space.rank(minors), True
    pairs = [[space.distances[a][b] for b in minors] for a in minors]
    seed = tuple(minors[member] for member in greedy(pairs, space.size))
    best = space.rank(_exchanged(space, seed, minors))
    allowance = _ALLOWANCE
    proved, searched = True, set()
    for branch in space.branches:
        if branch.members in searched:
            continue  # the branch around holds no further candidate
        searched.add(branch.members)
        search = _search(space, branch, best, allowance)
        if (found := search.run()) is not None:
            best = min(best, space.rank(tuple(branch.views[at].gpu.minor for at in found)))
        proved = proved and not search.exhausted
        allowance -= search.spent
    if not proved:
        best = min(best, space.rank(_exchanged(space, best.minors, minors)))
    return best, proved


def _search(space: LinkSearchSpace, branch: LinkBranch, best: SetRank, allowance: int) -> Search:
    """Looks for a set in this branch that is closer, or as close where the branch is no emptier than the best's."""
    minors = [view.gpu.minor for view in branch.views]
    distance = _KEY**3 << len(minors)  # above all that own costs add up to, so it counts first
    return Search(
        pairs=[[space.distances[a][b] * distance for b in minors] for a in minors],
        alone=_own_costs(branch),
        size=space.size,
        below=(best.distance + (branch.fullness <= best.branch)) * distance,  # True is 1: an equal one is enough
        effort=allowance,
    )


def _own_costs(branch: LinkBranch) -> list[int]:
    """The keys of `SetRank` behind distance and branch, as one number for each GPU; their sums compare alike."""
    reach, count = branch.reach, len(branch.views)
    furthest = max(reach.values())
    return [
        # What lies far from the rest leaves the rest close; the lowest minor outweighs all behind it.
        (((furthest - reach[view.gpu.minor]) * _KEY + view.free_blocks) * _KEY + view.processes << count)
        - (1 << count - 1 - at)
        for at, view in enumerate(branch.views)
    ]


def _exchanged(space: LinkSearchSpace, minors: Minors, everyone: Minors) -> Minors:
    """Exchanges one GPU at a time for as long as that makes the set closer."""
    while True:
        inner = space.inner(minors)
        distance = sum(inner.values()) // 2
        exchanges = [_exchange(space, inner, minor) for minor in everyone if minor not in inner]
        closer, better = min(exchanges, default=(distance, minors))
        if closer >= distance:
            return minors
        minors = better


def _exchange(space: LinkSearchSpace, inner: Mapping[int, int], newcomer: int) -> tuple[int, Minors]:
    """The closest set with the newcomer in the place of one that was chosen, and its total distance."""
    row = space.distances[newcomer]
    gain = sum(inner.values()) // 2 + sum([row[minor] for minor in inner])
    cost, leaver = min([(gain - row[minor] - links, minor) for minor, links in inner.items()])
    return cost, tuple(sorted({*inner, newcomer} - {leaver}))


def _reason(space: LinkSearchSpace, best: SetRank, count: int, proved: bool) -> str:
    name = gpus_text(best.minors)
    where = f"total distance {best.distance}, all under {level_text(space.branch_of(best.minors).node.level)}"
    if count == space.size:
        return f"{name}: no other whole GPU fits ({where})"
    closest = "closest" if proved else "closest found"
    return f"{name}: the {closest} {space.size} of {count} GPUs that fit ({where})"


def _behind(space: LinkSearchSpace, best: SetRank, inner: Mapping[int, int], minor: int) -> str:
    distance, minors = _exchange(space, inner, minor)
    (leaver,) = set(best.minors) - set(minors)
    if distance > best.distance:
        return f"fits, but in the place of GPU {leaver} the total distance is {distance} instead of {best.distance}"
    other = space.rank(minors)
    match first_difference(astuple(other), astuple(best)):
        case 1:
            why = "which is in a branch with fewer free GPUs"
        case 2:
            why = "which leaves the remaining GPUs closer together"
        case 3:
            why = "which has less memory"
        case 4:
            why = "which runs fewer processes"
        case _:
            why = "which has the lower minor number"
    return f"fits as close as GPU {leaver}, {why}"
