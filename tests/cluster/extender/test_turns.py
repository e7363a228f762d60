"""Turns on the loop: a part for each namespace, and one for all of them."""

import asyncio

import pytest

from deviceplugin.cluster.extender.turns import _OWN, LEAST, LONGEST_S, Turns
from deviceplugin.latest import ITERATIONS
from deviceplugin.placement.budget import AT_ONCE, Budget


class Clock:
    """Set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> Turns:
    return Turns(clock=clock)


def spends(budget: Budget) -> Budget:
    budget.may(budget.most + 1)
    return budget


async def test_a_question_is_asked_until_its_budget_is_enough(turns: Turns) -> None:
    asked = 0

    def question(budget: Budget) -> int:
        nonlocal asked
        asked += 1
        budget.may(AT_ONCE + 1 if asked < 4 else 10)
        return asked

    assert await turns.ask("a", question) == 4


async def test_others_have_the_loop_between_two_turns(turns: Turns) -> None:
    order: list[str] = []

    def question(budget: Budget) -> None:
        order.append("asked")
        if order.count("asked") < 3:
            spends(budget)

    async def other() -> None:
        while order.count("asked") < 3:
            order.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(turns.ask("a", question), other())
    assert order[:9] == ["asked", *["other"] * ITERATIONS, "asked", *["other"] * ITERATIONS][:9]
    assert ITERATIONS >= 3, "to read a request, to begin its task, and to write the answer"


async def test_who_has_used_up_his_part_is_answered_after_little_and_others_are_as_before(turns: Turns) -> None:
    dear = await turns.ask("dear", spends)
    assert (dear.most, dear.is_last) == (LEAST, True)
    again = await turns.ask("dear", spends)
    assert (again.most, again.is_last) == (LEAST, True)
    other = turns.budget("other")
    assert (other.most, other.is_last) == (AT_ONCE, False)


async def test_a_part_comes_back_with_time(turns: Turns, clock: Clock) -> None:
    await turns.ask("dear", spends)
    clock.now += 60
    assert turns.budget("dear").most == AT_ONCE


async def test_many_namespaces_of_one_tenant_have_the_part_of_all_and_little_more(turns: Turns) -> None:
    """Each pod of a new namespace would have a whole part; an ordinary pod finds its node with little."""
    for at in range(100):
        await turns.ask(f"n{at}", spends)
    for _ in range(_OWN // AT_ONCE):
        assert turns.budget("new").most == AT_ONCE
        turns.took("new", spends(turns.budget("new")))
    assert (turns.budget("new").most, turns.budget("new").is_last) == (LEAST, True)


async def test_an_answer_is_given_in_time(clock: Clock, turns: Turns) -> None:
    def question(budget: Budget) -> Budget:
        clock.now += 0.3
        return spends(budget)

    found = await turns.ask("a", question)
    assert found.is_last
    assert clock.now < LONGEST_S + 0.7


async def test_what_waits_for_the_pods_of_others_is_answered_after_some_turns(turns: Turns) -> None:
    asked = 0

    def question(budget: Budget) -> Budget:
        nonlocal asked
        asked += 1
        budget.put_off()
        return budget

    assert (await turns.ask("a", question)).is_last
    assert asked == 9


async def test_items_are_asked_in_turns_as_long_as_there_is_time(clock: Clock, turns: Turns) -> None:
    seen = []
    async for budget, item in turns.each("a", range(100)):
        seen.append(item)
        clock.now += 0.125
        budget.may(1)
    assert seen == list(range(8))


async def test_what_is_remembered_of_namespaces_is_bounded(turns: Turns) -> None:
    for at in range(5000):
        turns.budget(f"n{at}")
    assert len(turns._parts) <= 4096
