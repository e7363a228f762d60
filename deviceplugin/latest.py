"""One result for all who ask at about the same time.

In: a coroutine function that makes a result. Out of `Latest`: that result, for every request until it is `period_s` old
or `basis` has changed; requests that come while it is made wait for it. So the period bounds the work, and the number
of requests does not. `InTurn` is for results that must not be older than the request: who asks while one is made waits
for the next, with all others who wait. So there is one at a time. Work for all ends with no single caller, so it has a
context of its own (`loop_turn`).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import Context
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
            making = self._making = asyncio.create_task(make(), context=Context())
        return await asyncio.shield(making)  # a client that goes away ends no one else's request

    @property
    def _is_old(self) -> bool:
        return self._clock() - self._began >= self._period_s


class InTurn(Generic[T]):
    """Each result was begun after it was asked for. One that nobody waits for any more is given up."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None
        self._waiting: Counter[asyncio.Task[T]] = Counter()

    async def get(self) -> T:
        if self._next is None:
            self._next = asyncio.create_task(self._make_in_turn(), context=Context())
        task = self._next
        self._waiting[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._leave(task)

    async def _make_in_turn(self) -> T:
        async with self._turn:
            self._next = None
            return await self._make()

    def _leave(self, task: asyncio.Task[T]) -> None:
        self._waiting[task] -= 1
        if self._waiting[task]:
            return
        del self._waiting[task]
        task.cancel()
        if self._next is task:
            self._next = None
