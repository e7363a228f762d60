"""How long to wait before the next attempt: the wait doubles after each failure, up to a limit.

In: a call of `next` after each failure and of `reset` after a success. Out: seconds. The jitter, on by default, keeps
the nodes of a cluster from calling the API server in step. Not here: the waiting.
"""

import random
from collections.abc import Callable


def no_jitter() -> float:
    """For what only one process waits for: each wait is the whole step."""
    return 1.0


class Backoff:
    """With `jitter`, a function to [0, 1], a wait lies between half of the present step and all of it."""

    def __init__(self, *, first: float = 0.5, most: float = 30.0, jitter: Callable[[], float] = random.random) -> None:
        self._first = first
        self._most = most
        self._jitter = jitter
        self._failures = 0

    def next(self) -> float:
        """The wait after one more failure, in seconds."""
        step = min(self._most, self._first * 2 ** min(self._failures, 32))
        self._failures += 1
        return float(step * (0.5 + self._jitter() / 2))

    def reset(self) -> None:
        """After a success: the next wait is the first one again."""
        self._failures = 0
