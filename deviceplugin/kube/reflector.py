"""A cache of one collection, kept equal to the API server by one list and one watch.

In: a client and a collection. Out: values by key, the event `synced`, and calls to subscribers at each change. After
any failure the cache returns to the state of the server: a lost watch continues from its last version; after 410 or a
line that names no object it starts with a new list. What was known of an object that cannot be read any more stays
until it is readable or deleted: who can write it so must neither free what it holds nor stop the watch of the others.
Each failure in a row waits longer. Subscribers run on the loop and must not
block; if one raises, it is logged and the others are still called. Many changes may come at once: after a time slice
other tasks run before the next change is delivered.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Generic

import msgspec
import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.errors import KubeGoneError, ParseError, VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.collection import Collection, EventKind, Key, Unreadable, Value, WatchEvent
from deviceplugin.latest import others_turn

log = structlog.get_logger("vcuda.kube")
_STEADY_SECONDS = 10.0
_SLICE_SECONDS = 0.002
_TELL_SECONDS = 60.0


class StoreChange(msgspec.Struct, Generic[Value], frozen=True):
    """Never a bookmark; `item` is the new state, or the last known state of a deleted object."""

    kind: EventKind
    item: Value


Subscriber = Callable[[StoreChange[Value]], None]


class WatchTiming(msgspec.Struct, frozen=True):
    """Seconds: how long one watch lasts (randomly up to half longer), and the bounds of the back-off."""

    watch: float = 240.0
    first_wait: float = 0.5
    most_wait: float = 30.0


DEFAULT_WATCH_TIMING = WatchTiming()


class Reflector(Generic[Key, Value]):
    """`run` works until it is cancelled; other methods may be called at any time on the same loop."""

    def __init__(
        self,
        client: KubeClient,
        collection: Collection[Key, Value],
        *,
        pace: WatchTiming = DEFAULT_WATCH_TIMING,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._collection = collection
        self._pace = pace
        self._clock = clock
        self._jitter = jitter
        self._version = ""
        self._items: dict[Key, Value] = {}
        self._unreadable: dict[str, Unreadable] = {}
        self._tells_at = 0.0
        self._subscribers: list[Subscriber[Value]] = []
        self._last_answer: float | None = None
        self.synced = asyncio.Event()

    @property
    def items(self) -> Mapping[Key, Value]:
        """A live view of the cache."""
        return MappingProxyType(self._items)

    @property
    def last_event_age(self) -> float | None:
        """Seconds since the last answer of the server, including an accepted watch; None before the first one."""
        return None if self._last_answer is None else self._clock() - self._last_answer

    @property
    def unreadable(self) -> int:
        """How many objects exist that cannot be read."""
        return len(self._unreadable)

    def subscribe(self, subscriber: Subscriber[Value]) -> None:
        self._subscribers.append(subscriber)

    async def run(self) -> None:
        """Never returns, and never raises because of the server; cancel it to stop."""
        backoff = Backoff(first=self._pace.first_wait, most=self._pace.most_wait, jitter=self._jitter)
        while True:
            started = self._clock()
            error = await self._attempt(backoff)
            if self._clock() - started > _STEADY_SECONDS:
                backoff.reset()
                if not error:
                    continue
            wait = backoff.next()
            error = error or "the watch ended at once"
            log.warning("watch_failed", objects=self._collection.what, error=error, retry_in_s=round(wait, 2))
            await asyncio.sleep(wait)

    async def _attempt(self, backoff: Backoff) -> str:
        """One watch, after a list if there is no version to continue from.

        Returns its error, empty if there was none.
        """
        try:
            if not self._version:
                await self._list()
            async with aclosing(
                self._client.watch(
                    self._collection,
                    version=self._version,
                    seconds=max(1, round(self._pace.watch * (1 + self._jitter() / 2))),
                    opened=self._record_answer,
                )
            ) as events:
                began = self._clock()
                async for event in events:
                    self._apply(event)
                    backoff.reset()
                    if self._clock() - began >= _SLICE_SECONDS:
                        await others_turn()
                        began = self._clock()
        except (KubeGoneError, ParseError) as error:
            self._version = ""
            return error.message
        except VcudaError as error:
            return error.message
        return ""

    async def _list(self) -> None:
        listing = await self._client.list(self._collection, kept=self._items)
        self._record_answer()
        for key in [key for key in self._items if key not in listing.items]:
            self._remove(key, self._items[key])
        for key, item in listing.items.items():
            self._store(key, item)
        self._unreadable = dict(listing.unreadable)
        for found in listing.unreadable.values():
            self._tell(found)
        self._version = listing.version
        self.synced.set()

    def _record_answer(self) -> None:
        self._last_answer = self._clock()

    def _apply(self, event: WatchEvent[Value]) -> None:
        self._record_answer()
        self._version = event.version
        if event.unreadable is not None:
            self._apply_unreadable(event.kind, event.unreadable)
        if event.item is None:
            return
        key, identity = self._collection.key(event.item), self._collection.identity
        self._unreadable.pop(identity(event.item), None)
        known = self._items.get(key)
        is_other = known is not None and identity(known) != identity(event.item)
        if event.kind is not EventKind.DELETED:
            if known is None or not is_other or self._collection.rank(known) <= self._collection.rank(event.item):
                self._store(key, event.item)
        elif known is not None and not is_other:
            self._remove(key, event.item)

    def _apply_unreadable(self, kind: EventKind, found: Unreadable) -> None:
        if kind is not EventKind.DELETED:
            self._unreadable[found.uid] = found
            self._tell(found)
            return
        self._unreadable.pop(found.uid, None)
        identity = self._collection.identity
        for key in [key for key, item in self._items.items() if identity(item) == found.uid]:
            self._remove(key, self._items[key])

    def _tell(self, found: Unreadable) -> None:
        """One a minute, because a user may write them at any pace."""
        if (now := self._clock()) < self._tells_at:
            return
        self._tells_at = now + _TELL_SECONDS
        left_out, what = len(self._unreadable), self._collection.what
        log.warning("object_unreadable", objects=what, name=found.name, error=found.error, left_out=left_out)

    def _store(self, key: Key, item: Value) -> None:
        known = self._items.get(key)
        if known is item or known == item:
            return
        self._items[key] = item
        self._notify(StoreChange(EventKind.ADDED if known is None else EventKind.MODIFIED, item))

    def _remove(self, key: Key, last: Value) -> None:
        del self._items[key]
        self._notify(StoreChange(EventKind.DELETED, last))

    def _notify(self, change: StoreChange[Value]) -> None:
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(change)
            except Exception:  # the cache must stay correct whatever a subscriber does
                key = str(self._collection.key(change.item))
                log.exception("subscriber_failed", objects=self._collection.what, key=key, change=change.kind.value)
