"""Telling the rest of the agent that the hardware changed.

In: each new `Inventory`. Out: an `InventoryChange` for every subscriber, in order, none lost. Not here: what changed it
(`node`). Invariant: telling never waits for a subscriber.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from deviceplugin.hardware.health import HealthChange
from deviceplugin.model.gpu import Inventory


@dataclass(frozen=True, slots=True)
class InventoryChange:
    """`inventory` is what holds now; `gpus_changed` says that cards, settings or links differ, not only health."""

    inventory: Inventory
    health: tuple[HealthChange, ...]
    gpus_changed: bool


class Subscription:
    """`with hardware.subscribe() as changes: async for change in changes: ...`; ends when the hardware is stopped."""

    def __init__(self, leave: Callable[["Subscription"], None]) -> None:
        self._leave = leave
        self._queue: asyncio.Queue[InventoryChange | None] = asyncio.Queue()

    def put(self, change: InventoryChange | None) -> None:
        self._queue.put_nowait(change)

    def close(self) -> None:
        self._leave(self)
        self.put(None)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> InventoryChange:
        change = await self._queue.get()
        if change is None:
            raise StopAsyncIteration
        return change


class Announcer:
    """Every subscriber of one `Hardware`."""

    def __init__(self) -> None:
        self._subscribers: list[Subscription] = []

    def subscribe(self) -> Subscription:
        subscription = Subscription(self._remove)
        self._subscribers.append(subscription)
        return subscription

    def tell(self, change: InventoryChange) -> None:
        for subscription in self._subscribers:
            subscription.put(change)

    def end(self) -> None:
        for subscription in list(self._subscribers):
            subscription.close()

    def _remove(self, subscription: Subscription) -> None:
        if subscription in self._subscribers:
            self._subscribers.remove(subscription)
