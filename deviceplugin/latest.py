"""One result for all who ask at about the same time.

In: a coroutine function that makes a result, and what the result is made of. Out: that result, for every request until
it is `period_s` old or `basis` has changed; requests that come while it is made wait for it. So the period bounds the
work, and the number of requests does not.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """At most one result in `period_s`, besides one for each change of the basis."""

    def __init__(self, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s = period_s
        self._clock = clock
        self._basis: object = None
        self._began = 0.0
        self._making: asyncio.Task[T] | None = None

    async def get(self, make: Callable[[], Coroutine[Any, Any, T]], basis: object = None) -> T:
        making = self._making
        if making is None or basis != self._basis or (making.done() and self._is_old):
            self._basis, self._began = basis, self._clock()
            making = self._making = asyncio.create_task(make())
        return await asyncio.shield(making)  # a client that goes away ends no one else's request

    @property
    def _is_old(self) -> bool:
        return self._clock() - self._began >= self._period_s
