"""What `tests.waiting.until` says where a condition does not come true."""

import asyncio
import re

import pytest

from tests.waiting import until


async def test_it_returns_as_soon_as_the_condition_holds_and_one_that_asks_others_is_awaited() -> None:
    asked: list[int] = []

    async def often_enough() -> bool:
        asked.append(len(asked))
        return len(asked) == 3

    await until(often_enough)
    assert asked == [0, 1, 2]


async def test_the_failure_shows_what_was_seen_last() -> None:
    with pytest.raises(AssertionError, match=re.escape("within 0.05 s; seen last: {}")):
        await until(dict, within=0.05)
    pods = ["a", "b"]
    with pytest.raises(AssertionError, match=re.escape("seen last: ['a', 'b']")):
        await until(lambda: len(pods) == 3, seen=lambda: pods, within=0.05)


async def test_a_condition_that_gives_no_answer_is_not_waited_for_any_longer() -> None:
    with pytest.raises(AssertionError, match="seen last: 'an answer is missing'"):
        await until(lambda: asyncio.sleep(60), seen=lambda: "an answer is missing", within=0.05)


async def test_a_time_limit_of_the_condition_is_its_own_failure() -> None:
    def late() -> bool:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await until(late)
