"""The cheapest set of a given size: exact branch and bound over pair costs.

In: what each pair costs together (its distance), what each member costs alone (the order among equally close sets,
packed below the distances). Out: the set with the least sum, or None where no set costs less than the limit. Not
here: GPUs; members are numbers from 0.

`effort` bounds the work, counted in links looked at and so the same on every machine. Where it runs out, the best
set so far is returned and `exhausted` is true.
"""

import sys
from collections.abc import Sequence
from itertools import accumulate
from operator import add

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
