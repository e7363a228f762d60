"""Objects of one collection, kept equal to the API server's by one list and one watch.

In: a client and a collection. Out: a store by key, a `synced` event, calls to subscribers at each change. Whatever
happens to the connection, the store ends in the server's state: a lost watch goes on from its last version, one that
cannot (410, a line that is none) begins again with a list, and every failure waits longer than the one before.
Subscribers run on the loop and must not block; one that raises is logged and the others still hear. Changes may come
by the hundred in one read: after a slice of time all others have their turn, and the next change is told after that.
"""

import asyncio
import enum
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic

import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.errors import KubeGoneError, ParseError, VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.collection import Collection, EventKind, Key, Value, WatchEvent

log = structlog.get_logger("vcuda.kube")
_STEADY_SECONDS = 10.0
_SLICE_SECONDS = 0.002


class ChangeKind(enum.Enum):
    """What happened to an object, seen from the store."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class StoreChange(Generic[Value]):
    """`item` is the new state, or the last known one of a deleted object."""

    kind: ChangeKind
    item: Value


Subscriber = Callable[[StoreChange[Value]], None]


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """Seconds: how long the server keeps one watch (up to half longer, by chance), and the bounds of the back-off."""

    watch: float = 240.0
    first_wait: float = 0.5
    most_wait: float = 30.0


DEFAULT_WATCH_TIMING = WatchTiming()


class Reflector(Generic[Key, Value]):
    """`run` does the work until it is cancelled; the rest may be called at any time on the same loop."""

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
        self._subscribers: list[Subscriber[Value]] = []
        self._last_heard: float | None = None
        self.synced = asyncio.Event()
        self.lists = 0
        self.failures = 0

    @property
    def items(self) -> Mapping[Key, Value]:
        """A live view of the store."""
        return MappingProxyType(self._items)

    @property
    def last_event_age(self) -> float | None:
        """Seconds since the server last said anything, an accepted watch included; None before it did."""
        return None if self._last_heard is None else self._clock() - self._last_heard

    def subscribe(self, subscriber: Subscriber[Value]) -> Callable[[], None]:
        """Calls the subscriber for each change from now on; returns what ends that."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    async def run(self) -> None:
        """Never returns and never raises for a server that fails; cancel it to stop."""
        backoff = Backoff(first=self._pace.first_wait, most=self._pace.most_wait, jitter=self._jitter)
        while True:
            started = self._clock()
            cause = await self._attempt(backoff)
            if self._clock() - started > _STEADY_SECONDS:
                backoff.reset()
                if not cause:
                    continue
            self.failures += 1
            wait = backoff.next()
            why = cause or "the watch ended at once"
            log.warning("objects are not followed", of=self._collection.what, cause=why, retry_in_s=round(wait, 2))
            await asyncio.sleep(wait)

    async def _attempt(self, backoff: Backoff) -> str:
        """One watch, with a list before it where there is no version to go on from; says what ended it badly."""
        try:
            if not self._version:
                await self._list()
            async with aclosing(
                self._client.watch(
                    self._collection,
                    version=self._version,
                    seconds=self._watch_seconds(),
                    opened=self._heard,
                    kept=self._items,
                )
            ) as events:
                began = self._clock()
                async for event in events:
                    self._apply(event)
                    backoff.reset()
                    if self._clock() - began >= _SLICE_SECONDS:
                        await asyncio.sleep(0)
                        began = self._clock()
        except (KubeGoneError, ParseError) as error:
            self._version = ""
            return error.message
        except VcudaError as error:
            return error.message
        return ""

    async def _list(self) -> None:
        listing = await self._client.list(self._collection, kept=self._items)
        self._heard()
        self.lists += 1
        for key in [key for key in self._items if key not in listing.items]:
            self._forget(key, self._items[key])
        for key, item in listing.items.items():
            self._keep(key, item)
        self._version = listing.version
        self.synced.set()

    def _heard(self) -> None:
        self._last_heard = self._clock()

    def _watch_seconds(self) -> int:
        return max(1, round(self._pace.watch * (1 + self._jitter() / 2)))

    def _apply(self, event: WatchEvent[Value]) -> None:
        self._heard()
        self._version = event.version
        if event.item is None:
            return
        key, identity = self._collection.key(event.item), self._collection.identity
        if event.kind is not EventKind.DELETED:
            self._keep(key, event.item)
        elif (known := self._items.get(key)) is not None and identity(known) == identity(event.item):
            self._forget(key, event.item)

    def _keep(self, key: Key, item: Value) -> None:
        known = self._items.get(key)
        if known is item or known == item:
            return
        self._items[key] = item
        self._tell(StoreChange(ChangeKind.ADDED if known is None else ChangeKind.MODIFIED, item))

    def _forget(self, key: Key, last: Value) -> None:
        del self._items[key]
        self._tell(StoreChange(ChangeKind.DELETED, last))

    def _tell(self, change: StoreChange[Value]) -> None:
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(change)
            except Exception:  # the store must stay right whatever a reader does
                key = str(self._collection.key(change.item))
                log.exception("a reader of changes failed", of=self._collection.what, key=key, change=change.kind.value)
