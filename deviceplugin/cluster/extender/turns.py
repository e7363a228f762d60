"""How much work the pods of one namespace may cause on the event loop that all share.

In: a question about a pod, which is asked again until it is finished. Out: its answer, or the answer that was found
when the part of its namespace was used up. Between two turns the loop serves others, and the cluster may change: each
turn begins with what is known then, and finds what earlier ones have cached.

Invariant: one turn takes no more steps than `AT_ONCE` and what was begun. A namespace without steps left is answered
with what `LEAST` steps find; ordinary pods need fewer. What others use up leaves each namespace `_OWN` of its part.

`AnswerBudget` is for one long answer to people, which gives way as it goes.
"""

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

import msgspec

from deviceplugin.latest import others_turn
from deviceplugin.placement.budget import AT_ONCE, Budget

LEAST = 15_000
"""Enough to compare an ordinary pod with some hundred nodes."""
_NAMESPACE = (3_000_000, 150_000)  # at once, and again each second: 8 % of a processor
_ALL = (6_000_000, 600_000)
_OWN = 60_000  # of its part, what no other namespace can use up
LONGEST_S = 1.0
_MOST_PUT_OFF = 8  # turns that one question waits for what others ask
_MOST_PARTS = 4096
_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


class _StepsLeft(msgspec.Struct):
    """`most` steps at once, and `per_second` again after that."""

    most: float
    per_second: float
    left: float
    at: float

    def refill(self, now: float) -> None:
        self.left = min(self.most, self.left + (now - self.at) * self.per_second)
        self.at = now


class Turns:
    """Of one process; a part for each namespace, and one for all."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parts: OrderedDict[str, _StepsLeft] = OrderedDict()
        now = clock()
        self._all = _StepsLeft(*_ALL, _ALL[0], now)

    async def ask(self, namespace: str, question: Callable[[Budget], _Answer]) -> _Answer:
        began, put_off = self._clock(), 0
        while True:
            is_late = self._clock() - began >= LONGEST_S or put_off >= _MOST_PUT_OFF
            budget = self.budget(namespace, is_late=is_late)
            found = question(budget)
            self.took(namespace, budget)
            if not budget.goes_on:
                return found
            put_off += not budget.is_spent
            await others_turn()

    async def each(self, namespace: str, items: Iterable[_Item]) -> AsyncIterator[tuple[Budget, _Item]]:
        """One turn for each item, as many as there is time for; the caller makes the steps in between."""
        began = self._clock()
        for item in tuple(items):  # they may change while others have their turn
            if self._clock() - began >= LONGEST_S:
                return
            budget = self.budget(namespace)
            yield budget, item
            self.took(namespace, budget)
            await others_turn()

    def budget(self, namespace: str, *, is_late: bool = False) -> Budget:
        """What the namespace may have now; the caller says with `took` what it had."""
        part, now = self._part(namespace), self._clock()
        part.refill(now)
        self._all.refill(now)
        has_part = part.left > LEAST and (self._all.left > LEAST or part.left > part.most - _OWN)
        return Budget(AT_ONCE if has_part else LEAST, is_last=is_late or not has_part)

    def took(self, namespace: str, budget: Budget) -> None:
        for part in (self._part(namespace), self._all):
            part.left = max(0.0, part.left - budget.spent)

    def _part(self, namespace: str) -> _StepsLeft:
        found = self._parts.get(namespace)
        if found is None:
            found = self._parts[namespace] = _StepsLeft(*_NAMESPACE, _NAMESPACE[0], self._clock())
            if len(self._parts) > _MOST_PARTS:
                self._parts.popitem(last=False)
        self._parts.move_to_end(namespace)
        return found


class AnswerBudget:
    """What one answer may cost, in steps, and how many of them are made between two turns of the loop."""

    def __init__(self, *, most: int, each_turn: int) -> None:
        self._all = Budget(most)
        self._each_turn = each_turn
        self._turn = Budget(each_turn)

    @property
    def left(self) -> int:
        return self._all.left

    async def took(self, steps: int) -> None:
        """Gives the loop its turn after so many."""
        self._all.may(steps)
        if not self._turn.may(steps):
            self._turn = Budget(self._each_turn)
            await others_turn()
