"""Pages: in order, complete, whatever comes and goes between them."""

import asyncio
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.view.query import PageQuery, cut
from deviceplugin.errors import ParseError
from tests.examples import examples

ITEMS = st.lists(st.tuples(st.integers(0, 3), st.text("ab", max_size=3)), unique=True, max_size=30)


async def every_page(items: list[tuple[int, str]], limit: int, *, descending: bool) -> list[tuple[int, str]]:
    more = ""
    found: list[tuple[int, str]] = []
    while True:
        page = await cut(items, lambda item: item, PageQuery(limit, more, descending))
        assert page.total == len(items)
        found += page.items
        if not (more := page.more):
            return found
        assert len(page.items) == limit


@examples()
@given(items=ITEMS, limit=st.integers(1, 7), descending=st.booleans())
def test_all_pages_together_are_all_items_in_order(
    items: list[tuple[int, str]], limit: int, *, descending: bool
) -> None:
    found = asyncio.run(every_page(items, limit, descending=descending))
    assert found == sorted(items, reverse=descending)


async def test_what_is_left_out_is_not_counted() -> None:
    page = await cut(range(10), lambda item: (item,) if item % 2 else None, PageQuery(3))
    assert (page.items, page.total) == ((1, 3, 5), 5)


async def test_items_that_come_and_go_between_two_pages_neither_repeat_nor_hide_others() -> None:
    first = await cut(["a", "c", "e", "g"], lambda item: (item,), PageQuery(2))
    assert first.items == ("a", "c")
    second = await cut(["b", "d", "e", "g"], lambda item: (item,), PageQuery(3, first.more))
    assert second.items == ("d", "e", "g")


async def test_a_long_walk_lets_others_work() -> None:
    turns = count()
    ticking = asyncio.create_task(_tick(turns))
    await cut(range(20_000), lambda item: (item,), PageQuery(10))
    ticking.cancel()
    assert next(turns) > 20


async def _tick(turns: "count[int]") -> None:
    while True:
        next(turns)
        await asyncio.sleep(0)


async def test_a_token_that_is_none_is_told() -> None:
    for token in ["%%%", "AAAA", "e30", "x" * 5000, "WyJhIiwge31d", "ÿ"]:
        with pytest.raises(ParseError, match="more is no token of a page"):
            await cut(["a"], lambda item: (item,), PageQuery(2, token))


async def test_a_token_of_another_order_is_told() -> None:
    first = await cut(["a", "b"], lambda item: (item,), PageQuery(1))
    with pytest.raises(ParseError, match="more belongs to another order"):
        await cut([1, 2], lambda item: (item,), PageQuery(1, first.more))
