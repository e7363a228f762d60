"""How many requests go out in a second: a bucket of tokens on a monotonic clock.

In: `take` before each request. Out: the same call, later where too many came at once; first come, first served. A
bucket's debt is a point in time, so no task keeps it filled; the turn of a waiter that is cancelled is lost.
"""

import asyncio
import time
from collections.abc import Callable


class TokenBucket:
    """`rate` a second in the long run, `burst` at once."""

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._step = 1.0 / rate
        self._ahead = burst * self._step
        self._clock = clock
        self._next = clock() - self._ahead

    def reserve(self) -> float:
        """Takes a token and says how many seconds from now it may be used."""
        now = self._clock()
        self._next = max(self._next, now - self._ahead) + self._step
        return max(0.0, self._next - now)

    async def take(self) -> None:
        wait = self.reserve()
        if wait > 0:
            await asyncio.sleep(wait)
