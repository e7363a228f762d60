"""Who works when many ask, each for a key: a letter is one's key."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.latest import KeysInTurn, PairsInTurn, to_its_end
from tests.waiting import until


class Asked:
    """`began` has the keys in the order in which they had their turn; each ends when `end` is called."""

    def __init__(self) -> None:
        self.turns = KeysInTurn()
        self.began: list[str] = []
        self.at_work = 0
        self._ends = asyncio.Semaphore(0)

    def ask(self, key: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._work(key))

    async def _work(self, key: str) -> None:
        async with self.turns.turn(key):
            self.began.append(key)
            self.at_work += 1
            assert self.at_work == 1, "one at a time"
            try:
                await self._ends.acquire()
            finally:
                self.at_work -= 1

    async def end(self) -> None:
        self._ends.release()
        await settled()

    @property
    def is_forgotten(self) -> bool:
        return not self.turns._waiting and not self.turns._is_taken


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def order_of(keys: str) -> str:
    asked = Asked()
    tasks = []
    for key in keys:
        tasks.append(asked.ask(key))
        await settled()
    for _ in keys:
        await asked.end()
    await asyncio.gather(*tasks)
    assert asked.is_forgotten
    return "".join(asked.began)


async def test_a_key_waits_for_one_of_each_other_key() -> None:
    assert await order_of("aaaaaab") == "abaaaaa"
    assert await order_of("aaabbbc") == "abcabab"
    assert await order_of("aaa") == "aaa"


async def test_keys_that_come_meanwhile_are_behind_those_that_wait_for_their_first_turn() -> None:
    asked = Asked()
    tasks = [asked.ask(key) for key in "aabc"]
    await settled()
    tasks += [asked.ask(key) for key in "abdb"]
    await settled()
    for _ in tasks:
        await asked.end()
    await asyncio.gather(*tasks)
    assert "".join(asked.began) == "abcdabab"


async def test_one_who_fails_passes_the_turn_on() -> None:
    turns = KeysInTurn()

    async def fail() -> None:
        async with turns.turn("a"):
            await asyncio.sleep(0)
            raise ZeroDivisionError

    found = await asyncio.gather(*(fail() for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [ZeroDivisionError] * 3
    assert not turns._is_taken


async def test_a_turn_that_is_given_to_one_who_is_cancelled_goes_on() -> None:
    """The first ends, and before the second has begun it is cancelled."""
    asked = Asked()
    first, second, third = (asked.ask(key) for key in "abc")
    await settled()
    first.cancel()
    await until(lambda: asked.at_work == 0, every=0)
    second.cancel()
    await settled()
    assert asked.began == ["a", "c"]
    await asked.end()
    await third
    assert asked.is_forgotten


KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), KEYS),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("pause"), st.just(0)),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_whatever_is_cancelled_one_works_while_one_waits_and_nothing_stays(steps: list[tuple[str, str | int]]) -> None:
    asyncio.run(_played(steps))


async def _played(steps: list[tuple[str, str | int]]) -> None:
    asked, tasks, ended = Asked(), list[asyncio.Task[None]](), itertools.count()
    for what, which in steps:
        if what == "ask":
            tasks.append(asked.ask(str(which)))
        elif what == "cancel" and tasks:
            tasks[int(which) % len(tasks)].cancel()
        elif what == "end":
            asked._ends.release()
        else:
            await settled()
            assert asked.at_work == 1 or all(task.done() for task in tasks)
    while not all(task.done() for task in tasks):
        assert next(ended) <= len(tasks)
        await asked.end()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert asked.is_forgotten


async def test_pairs_have_their_turn_by_the_first_key_and_then_by_the_second() -> None:
    turns, had = PairsInTurn(), list[str]()

    async def work(first: str, second: str, times: int) -> None:
        for _ in range(times):
            give = await turns.take(first, second)
            had.append(second)
            asyncio.get_running_loop().call_later(0.001, give)

    give = await turns.take("another", "a")
    crowd = [work("crowd", f"c{number}", 3) for number in range(3)]
    working = asyncio.gather(*crowd, work("one", "o", 3), work("two", "t", 3))
    await settled()
    give()
    await working
    assert had[:9] == ["c0", "o", "t", "c1", "o", "t", "c2", "o", "t"]
    assert sorted(had) == sorted(["c0", "c1", "c2", "o", "t"] * 3)


async def test_a_pair_that_gives_up_takes_no_turn() -> None:
    turns = PairsInTurn()
    give = await turns.take("one", "a")
    waiting = [asyncio.create_task(turns.take("one", key)) for key in "aaabb"]
    await settled()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    give()
    (await turns.take("one", "a"))()
    (await turns.take("two", "a"))()
    assert not turns._firsts._is_taken


async def _fails() -> None:
    raise OSError("no room")


async def _succeeds() -> None:
    pass


@pytest.mark.parametrize("then", [_succeeds, _fails])
async def test_a_cancellation_comes_after_the_end_whatever_that_is(then: Callable[[], Awaitable[None]]) -> None:
    """A failure must not take its place: the caller would go on."""
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), False

    async def work() -> None:
        nonlocal ended
        begun.set()
        await may_end.wait()
        ended = True
        await then()

    caller = asyncio.create_task(to_its_end(work()))
    await begun.wait()
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended
