"""One result for all who ask at about the same time, one of them after the other, or long work in slices.

In: a coroutine function that makes a result. Out of `Latest`: that result, for every request until it is `period_s` old
or `basis` has changed; requests that come while it is made wait for it. So the period bounds the work, and the number
of requests does not. `InTurn` is for results that must not be older than the request: who asks while one is made waits
for the next, with all others who wait. So there is one at a time. Work for all ends with no single caller, so it has a
context of its own. `KeysInTurn` and `PairsInTurn` are for work of which each has its own, such as each namespace.
`others_turn` stands between two slices of long work on the event loop: it returns when everything that others had to do
is done, or raises a CallerGoneError.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from deviceplugin.errors import CallerGoneError

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


async def to_its_end(work: Awaitable[T]) -> T:
    """The result. A cancellation comes after the end, for work that goes on all the same and fails if left alone."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            await asyncio.wait([task])  # not its result: where it fails too, the caller is cancelled all the same


class KeysInTurn:
    """One at a time. Who comes first for a key waits for at most one of each other key, however many of theirs wait.

    Those of one key are in the order in which they came. A key that nobody works or waits for takes no memory.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        await self.take(key)
        try:
            yield
        finally:
            self.give(key)

    async def take(self, key: str) -> None:
        """Returns at a turn of this key, which lasts until `give`."""
        if self._is_taken:
            await self._wait(key)
        self._is_taken = True

    def give(self, key: str) -> None:
        if key in self._waiting:
            self._waiting.move_to_end(key)
        self._pass_on()

    async def _wait(self, key: str) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, {})[mine] = None
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._leave(key, mine)
            else:  # cancelled when it had the turn already, and had not begun
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """To the key that has waited longest, or to nobody."""
        while self._waiting:
            key, line = next(iter(self._waiting.items()))
            first = next(iter(line))
            self._leave(key, first)
            if not first.done():
                first.set_result(None)
                return
        self._is_taken = False

    def _leave(self, key: str, waits: asyncio.Future[None]) -> None:
        line = self._waiting.get(key, {})
        line.pop(waits, None)
        if not line:
            self._waiting.pop(key, None)


class PairsInTurn:
    """One at a time: first keys in turn, and the second keys of each in turn, whatever comes of one first key."""

    def __init__(self) -> None:
        self._firsts = KeysInTurn()
        self._seconds: WeakValueDictionary[str, KeysInTurn] = WeakValueDictionary()  # of those that wait or work

    async def take(self, first: str, second: str) -> Callable[[], None]:
        """Returns at a turn of this pair, which lasts until the function is called that is returned."""
        seconds = self._seconds.setdefault(first, KeysInTurn())
        await seconds.take(second)
        try:
            await self._firsts.take(first)
        except BaseException:
            seconds.give(second)
            raise

        def give() -> None:
            self._firsts.give(first)
            seconds.give(second)

        return give


# One would not be enough: to answer a request takes one to read it, one to begin its task and one to write, and a slice
# in each of them would make it wait three times as long as a slice. One with nothing to do takes some 20 us.
ITERATIONS = 4


def _nobody_leaves() -> bool:
    return False


CALLER_HAS_GONE: ContextVar[Callable[[], bool]] = ContextVar("caller_has_gone", default=_nobody_leaves)
"""Set by who answers a request. Tasks that work for all callers need a context without it."""


async def others_turn() -> None:
    """Between two slices of long work."""
    for _ in range(ITERATIONS):
        await asyncio.sleep(0)
    require_caller()


def require_caller() -> None:
    """Raises CallerGoneError if nobody waits for the answer any more."""
    if CALLER_HAS_GONE.get()():
        raise CallerGoneError("the client left before it had its answer")
