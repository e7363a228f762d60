"""Several whole GPUs: the set with the smallest total distance, summed over all its pairs.

In: candidates. Out: the least set by `SetRank`: total distance first; then the branch that holds the set, by its free
GPUs and those of each branch around it, outwards; then how close to each other the GPUs stay that the set leaves over
in its branch; then memory, processes and minor numbers, all ascending. The answer is exact on nodes with at most 16
candidates. Beyond, the search has a fixed allowance of work; where that runs out, the answer is the best set found,
which is never farther than the greedy one and which no exchange of one GPU brings closer, and the reason says "closest
found".

The exact search is branch and bound over what each pair costs together (its distance) and what each member costs alone
(the order among equally close sets, packed below the distances). `effort` bounds its work, counted in links looked at
and so the same on every machine.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import accumulate, combinations
from operator import add

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
    """One search; `exhausted` says afterwards whether it was cut short, `spent` how much of the effort it took."""

    def __init__(self, pairs: Costs, alone: Sequence[int], size: int, *, below: int, effort: int | None) -> None:
        # Doubled, so that half a link is a whole number (see `_half_links`).
        self._pairs = [[2 * cost for cost in row] for row in pairs]
        self._alone = [2 * cost for cost in alone]
        self._size = size
        self._limit = 2 * below
        self._effort = sys.maxsize if effort is None else effort
        self._best: tuple[int, ...] | None = None
        # To choose most of the members is to leave out few, and that tree is smaller.
        self._inverted = len(pairs) < 2 * size < 2 * len(pairs)
        self.spent = 0
        self.exhausted = False
        if self._inverted:
            self._invert()

    def run(self) -> tuple[int, ...] | None:
        """The members in ascending order."""
        everyone = range(len(self._pairs))
        self._classes = _interchangeable(self._pairs)
        self._halves = _half_links(self._pairs, self._size)
        self._extend(0, (), list(everyone), self._alone)
        if self._best is None:
            return None
        return tuple(member for member in everyone if (member in self._best) is not self._inverted)

    def _invert(self) -> None:
        """Looks for the few members to leave out: the sets that cost least leave out those that cost most.

        A set costs what all cost, less the links and own cost of each one left out, plus the links among those, which
        were taken off twice. The offset keeps costs from being negative.
        """
        left_out = len(self._pairs) - self._size
        reach = [sum(row) for row in self._pairs]
        gains = [links + alone for links, alone in zip(reach, self._alone, strict=True)]
        offset = max(gains)
        self._limit += offset * left_out - sum(reach) // 2 - sum(self._alone)
        self._alone = [offset - gain for gain in gains]
        self._size = left_out

    def _extend(self, cost: int, chosen: tuple[int, ...], left: list[int], links: Sequence[int]) -> None:
        """Completes `chosen` from `left`; `links` is what each member would add to the cost now."""
        self.spent += len(links)
        if self.spent > self._effort:
            self.exhausted = True
            self._limit = 0  # nothing costs less, so every level returns
        missing = self._size - len(chosen)
        if missing == 1:
            last = min(left, key=links.__getitem__)
            if cost + links[last] < self._limit:
                self._limit, self._best = cost + links[last], (*chosen, last)
            return
        # Each member adds at least its links to the chosen ones, its own cost, and half of its nearest other links.
        adds = list(map(add, links, self._halves[missing - 1]))
        # The least first: the first dive is greedy, and its set makes the limit low early.
        left = sorted(left, key=adds.__getitem__)
        classes, pairs = self._classes, self._pairs
        while len(left) >= missing:
            # The cheapest members add at least this; where that is too much, no set from here on costs less.
            if cost + sum(map(adds.__getitem__, left[:missing])) >= self._limit:
                return
            first, *left = left
            self._extend(cost + links[first], (*chosen, first), left, list(map(add, links, pairs[first])))
            # Interchangeable members make the same sets: what failed with the first fails with the others.
            left = [member for member in left if classes[member] != classes[first]]


def _interchangeable(pairs: list[list[int]]) -> list[int]:
    """For each member the first that has the same links to all others: either can stand for the other."""
    everyone = range(len(pairs))
    classes = list(everyone)
    for member in everyone:
        for other in range(member):
            if classes[other] == other and _alike(pairs[member], pairs[other], member, other):
                classes[member] = other
                break
    return classes


def _alike(one: list[int], other: list[int], a: int, b: int) -> bool:
    exchanged = list(other)
    exchanged[a], exchanged[b] = exchanged[b], exchanged[a]
    return exchanged == one


def _half_links(pairs: Costs, size: int) -> list[list[int]]:
    """Row k: for each member half the sum of its k nearest links, the least that k fellow members can cost it.

    Half, because both ends of a link count it.
    """
    rows = [sorted(cost for at, cost in enumerate(row) if at != member) for member, row in enumerate(pairs)]
    sums = [list(accumulate(row[: size - 1], initial=0)) for row in rows]
    return [[total[k] // 2 for total in sums] for k in range(size)]


Minors = tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class SetRank:
    """Of two sets of one size the lesser is chosen; the fields are the keys in their order."""

    distance: int
    branch: tuple[int, ...]
    left_over: int
    blocks: int
    processes: int
    minors: Minors


@dataclass(frozen=True)
class LinkBranch:
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

    def standing(self, minors: Minors) -> SetRank:
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


EXACT_CANDIDATES = 16
_ALLOWANCE = 40_000  # links looked at: some 15 ms of pure Python


def link(candidates: Candidates) -> Selection:
    views = {view.gpu.minor: view for view in candidates.views}
    ground = LinkSearchSpace(candidates)
    best, proved = _best(ground, tuple(views))
    chosen = tuple(views[minor] for minor in best.minors)
    inner = ground.inner(best.minors)
    others = [view.gpu for view in candidates.views if view.gpu.minor not in inner]

    def against() -> dict[GpuUuid, str]:
        return {gpu.uuid: _behind(ground, best, inner, gpu.minor) for gpu in others}

    return Selection(chosen, _reason(ground, best, len(views), proved), against)


def _best(ground: LinkSearchSpace, minors: Minors) -> tuple[SetRank, bool]:
    if len(minors) == ground.size:
        return ground.standing(minors), True
    pairs = [[ground.distances[a][b] for b in minors] for a in minors]
    seed = tuple(minors[member] for member in greedy(pairs, ground.size))
    best = ground.standing(_exchanged(ground, seed, minors))
    allowance = None if len(minors) <= EXACT_CANDIDATES else _ALLOWANCE
    proved, searched = True, set()
    for branch in ground.branches:
        if branch.members in searched:
            continue  # the branch around holds no further candidate
        searched.add(branch.members)
        search = _search(ground, branch, best, allowance)
        if (found := search.run()) is not None:
            best = min(best, ground.standing(tuple(branch.views[at].gpu.minor for at in found)))
        proved = proved and not search.exhausted
        allowance = None if allowance is None else allowance - search.spent
    if not proved:
        best = min(best, ground.standing(_exchanged(ground, best.minors, minors)))
    return best, proved


def _search(ground: LinkSearchSpace, branch: LinkBranch, best: SetRank, allowance: int | None) -> Search:
    """Looks for a set in this branch that is closer, or as close where the branch is no emptier than the best's."""
    minors = [view.gpu.minor for view in branch.views]
    alone, width = _ties(branch)
    return Search(
        pairs=[[ground.distances[a][b] << width for b in minors] for a in minors],
        alone=alone,
        size=ground.size,
        below=(best.distance + (branch.fullness <= best.branch)) << width,
        effort=allowance,
    )


def _ties(branch: LinkBranch) -> tuple[list[int], int]:
    """The keys of `SetRank` behind distance and branch, as one number for each GPU; their sums compare alike."""
    views, reach = branch.views, branch.reach
    keys = [
        [-reach[view.gpu.minor] for view in views],  # what lies far from the rest leaves the rest close
        [view.free_blocks for view in views],
        [view.processes for view in views],
        [-(1 << at) for at in reversed(range(len(views)))],  # the lowest minor outweighs all behind it
    ]
    packed, width = [0] * len(views), 0
    for key in reversed(keys):
        least = min(key)
        packed = [(value - least << width) + low for value, low in zip(key, packed, strict=True)]
        width += sum(value - least for value in key).bit_length()
    return packed, width


def _exchanged(ground: LinkSearchSpace, minors: Minors, everyone: Minors) -> Minors:
    """Exchanges one GPU at a time for as long as that makes the set closer."""
    while True:
        inner = ground.inner(minors)
        distance = sum(inner.values()) // 2
        exchanges = [_exchange(ground, inner, minor) for minor in everyone if minor not in inner]
        closer, better = min(exchanges, default=(distance, minors))
        if closer >= distance:
            return minors
        minors = better


def _exchange(ground: LinkSearchSpace, inner: Mapping[int, int], newcomer: int) -> tuple[int, Minors]:
    """The closest set with the newcomer in the place of one that was chosen, and its total distance."""
    row = ground.distances[newcomer]
    gain = sum(inner.values()) // 2 + sum([row[minor] for minor in inner])
    cost, leaver = min([(gain - row[minor] - links, minor) for minor, links in inner.items()])
    return cost, tuple(sorted({*inner, newcomer} - {leaver}))


def _reason(ground: LinkSearchSpace, best: SetRank, count: int, proved: bool) -> str:
    name = gpus_text(best.minors)
    where = f"total distance {best.distance}, all under {level_text(ground.branch_of(best.minors).node.level)}"
    if count == ground.size:
        return f"{name}: no other whole GPU fits ({where})"
    closest = "closest" if proved else "closest found"
    return f"{name}: the {closest} {ground.size} of {count} GPUs that fit ({where})"


def _behind(ground: LinkSearchSpace, best: SetRank, inner: Mapping[int, int], minor: int) -> str:
    distance, minors = _exchange(ground, inner, minor)
    (leaver,) = set(best.minors) - set(minors)
    if distance > best.distance:
        return f"fits, but in the place of GPU {leaver} the total distance is {distance} instead of {best.distance}"
    other = ground.standing(minors)
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
