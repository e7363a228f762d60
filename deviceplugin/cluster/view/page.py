"""One page of many items, in an order, without stopping the event loop for long.

In: items, the key of each, a limit and the token of the page. Out: the items of the page, how many there are in all,
and the token of the next page. A token is the key of the last item, so a page neither repeats nor skips an item that
was there all the time, whatever came and went between two pages. Keys must be different. A walk gives way by its work,
and so also for items that are looked at and left out: there may be many in a row, and some are dear.
"""

import base64
import binascii
import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from deviceplugin.cluster.view.query import PageQuery
from deviceplugin.errors import ParseError
from deviceplugin.loop_turn import others_turn
from deviceplugin.placement.budget import Budget

Item = TypeVar("Item")
Row = TypeVar("Row")
Key = tuple[int | float | str, ...]
STEPS_OF_ITEM = 10
_STEPS_PER_TURN = 5_000  # of a microsecond or less
_SLICE = 500
_MOST_KEPT = 4
_LONGEST_TOKEN = 2048


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """`more` is empty on the last page; `total` counts the items of all pages."""

    items: tuple[Item, ...]
    total: int
    more: str


async def paced(items: Iterable[Item], steps: Callable[[Item], int] | None = None) -> AsyncIterator[Item]:
    """The same items; gives way to other requests. `steps`: what is done with one, where that is not always little."""
    turn = Budget(_STEPS_PER_TURN)
    for item in items:
        if not turn.may(STEPS_OF_ITEM if steps is None else steps(item)):
            turn = Budget(_STEPS_PER_TURN)
            await others_turn()
        yield item


async def cut(
    items: Iterable[Item] | AsyncIterator[Item], key: Callable[[Item], Key | None], query: PageQuery
) -> Page[Item]:
    """`key` is None for items that were not asked for."""
    after, kept, total = _key_of(query.more), [], 0
    first = heapq.nlargest if query.descending else heapq.nsmallest
    async for item in items if isinstance(items, AsyncIterator) else paced(items):
        found = key(item)
        if found is not None:
            total += 1
            if after is None or _is_beyond(found, after, descending=query.descending):
                kept.append((found, item))
        if len(kept) > _MOST_KEPT * query.limit + _SLICE:
            kept = first(query.limit + 1, kept, key=_by_key)
    kept = first(query.limit + 1, kept, key=_by_key)
    shown = kept[: query.limit]
    more = _token(shown[-1][0]) if len(kept) > len(shown) else ""
    return Page(tuple(item for _, item in shown), total, more)


async def described(
    items: Iterable[Item], describe: Callable[[Item], Row], steps: Callable[[Item], int] | None = None
) -> tuple[Row, ...]:
    """All of them; gives way too."""
    return tuple([describe(item) async for item in paced(items, steps)])


def _by_key(pair: tuple[Key, Item]) -> Key:
    return pair[0]


def _is_beyond(key: Key, after: Key, *, descending: bool) -> bool:
    try:
        return key < after if descending else key > after
    except TypeError:
        raise ParseError("more belongs to another order; leave it out to begin with the first page") from None


def _token(key: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).rstrip(b"=").decode()


def _key_of(token: str) -> Key | None:
    if not token:
        return None
    if len(token) > _LONGEST_TOKEN:
        raise ParseError("more is no token of a page; take it from the page before")
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        return tuple(msgspec.json.decode(text, type=list[int | float | str]))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise ParseError("more is no token of a page; take it from the page before") from None
