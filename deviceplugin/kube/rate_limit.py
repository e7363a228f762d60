"""A token bucket on a monotonic clock: how many requests are sent per second.

In: `take` before each request. Out: it returns at once, or later if there were too many requests; first come, first
served. A debt is a point in time, so no task refills the bucket. If a waiter is cancelled, its token is lost.
"""

import asyncio
import time
from collections.abc import Callable


class TokenBucket:
    """`rate` per second on average, `burst` at once."""

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._step = 1.0 / rate
        self._ahead = burst * self._step
        self._clock = clock
        self._next = clock() - self._ahead
        self._turn = asyncio.Lock()  # timers alone would not keep the order on a machine that stops between two of them

    def reserve(self) -> float:
        """Takes a token; returns in how many seconds it may be used."""
        now = self._clock()
        self._next = max(self._next, now - self._ahead) + self._step
        return max(0.0, self._next - now)

    async def take(self) -> None:
        async with self._turn:
            wait = self.reserve()
            if wait > 0:
                await asyncio.sleep(wait)
