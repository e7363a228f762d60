"""How long to wait before the next attempt: doubling, bounded, with jitter, so that nodes do not come back in step.

In: a call for each failure. Out: seconds. Not here: the waiting.
"""

import random
from collections.abc import Callable


class Backoff:
    """`next` after each failure, `reset` after success; waits lie between half and all of the present step."""

    def __init__(self, *, first: float = 0.5, most: float = 30.0, jitter: Callable[[], float] = random.random) -> None:
        self._first = first
        self._most = most
        self._jitter = jitter
        self._failures = 0

    @property
    def failures(self) -> int:
        return self._failures

    def next(self) -> float:
        step = min(self._most, self._first * 2 ** min(self._failures, 32))
        self._failures += 1
        return float(step * (0.5 + self._jitter() / 2))

    def reset(self) -> None:
        self._failures = 0
