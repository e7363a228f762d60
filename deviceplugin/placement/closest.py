"""The cheapest set of a given size: exact branch and bound over pair costs.

In: what each pair costs together (its distance), what each member costs alone (the order among equally close sets,
packed below the distances). Out: the set with the least sum, or None where no set costs less than the limit. Not
here: GPUs; members are numbers from 0.

A partial set is dropped when its cost plus the least that the missing members can add is no better than the best
known. A missing member adds at least its links to those chosen, its own cost, and half of its nearest other links
(half, because both ends of a link count it). Members that have the same links to all others are interchangeable: the
cheaper is tried first, and where it is refused the others are refused with it. Members are tried in order of what
they would add, so the first dive is greedy.

`effort` bounds the work, counted in members looked at and so the same on every machine. Where it runs out, the best
set so far is returned and `exhausted` is true.
"""

from collections.abc import Sequence
from itertools import accumulate

Costs = Sequence[Sequence[int]]


def greedy(pairs: Costs, size: int) -> tuple[int, ...]:
    """From every member as a start, adds the nearest until there are enough; the best of these sets."""
    everyone = range(len(pairs))
    grown = (_grow(pairs, start, size) for start in everyone)
    return min(grown, key=lambda found: found[0])[1]


def _grow(pairs: Costs, start: int, size: int) -> tuple[int, tuple[int, ...]]:
    cost, chosen = 0, [start]
    links = list(pairs[start])
    left = [member for member in range(len(pairs)) if member != start]
    while len(chosen) < size:
        nearest = min(left, key=links.__getitem__)
        cost += links[nearest]
        chosen.append(nearest)
        left.remove(nearest)
        links = [a + b for a, b in zip(links, pairs[nearest], strict=True)]
    return cost, tuple(sorted(chosen))


class Search:
    """One search; `exhausted` says afterwards whether it was cut short, `spent` how much of the effort it took."""

    def __init__(self, pairs: Costs, alone: Sequence[int], size: int, *, below: int, effort: int | None) -> None:
        # Doubled, so that half a link is a whole number.
        self._pairs = [[2 * cost for cost in row] for row in pairs]
        self._alone = [2 * cost for cost in alone]
        self._size = size
        self._limit = 2 * below
        self._effort = effort
        self._best: tuple[int, ...] | None = None
        self.spent = 0

    @property
    def exhausted(self) -> bool:
        return self._effort is not None and self.spent > self._effort

    def run(self) -> tuple[int, ...] | None:
        """The members in ascending order."""
        self._classes = _interchangeable(self._pairs)
        self._halves = _half_links(self._pairs, self._size)
        self._extend(0, (), list(range(len(self._pairs))), self._alone)
        return None if self._best is None else tuple(sorted(self._best))

    def _extend(self, cost: int, chosen: tuple[int, ...], left: list[int], links: Sequence[int]) -> None:
        """Completes `chosen` from `left`; `links` is what each member would add to the cost now."""
        missing = self._size - len(chosen)
        if missing == 0:
            if cost < self._limit:
                self._limit, self._best = cost, chosen
            return
        adds = [link + half for link, half in zip(links, self._halves[missing - 1], strict=True)]
        left = sorted(left, key=adds.__getitem__)
        classes = self._classes
        while len(left) >= missing and not self.exhausted:
            self.spent += len(left)
            if cost + sum([adds[member] for member in left[:missing]]) >= self._limit:
                return
            first, *left = left
            grown = [a + b for a, b in zip(links, self._pairs[first], strict=True)]
            self._extend(cost + links[first], (*chosen, first), left, grown)
            left = [member for member in left if classes[member] != classes[first]]


def _interchangeable(pairs: Costs) -> list[int]:
    """For each member the first that has the same links to all others."""
    everyone = range(len(pairs))
    classes = list(everyone)
    for member in everyone:
        for other in range(member):
            if classes[other] == other and _alike(pairs[member], pairs[other], member, other):
                classes[member] = other
                break
    return classes


def _alike(one: Sequence[int], other: Sequence[int], a: int, b: int) -> bool:
    return all(x == y for at, (x, y) in enumerate(zip(one, other, strict=True)) if at not in (a, b))


def _half_links(pairs: Costs, size: int) -> list[list[int]]:
    """Row k: for each member half the sum of its k nearest links, the least that k fellow members can cost it."""
    rows = [sorted(cost for at, cost in enumerate(row) if at != member) for member, row in enumerate(pairs)]
    sums = [list(accumulate(row[: size - 1], initial=0)) for row in rows]
    return [[total[k] // 2 for total in sums] for k in range(size)]
