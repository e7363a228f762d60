"""Which gangs yield their reservations to a pod that fits nowhere else, and which may still be bound and do not.

Kubernetes' own pod groups are placed in one cycle; others wait at Permit for their last member.
"""

import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod import Gang
from deviceplugin.placement.budget import Budget
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import ask, node, order, pod
from tests.cluster.extender.rounds import AT_PERMIT, ONE_CYCLE, cycle, free, members


async def test_an_endlessly_retried_group_yields_to_a_pod_that_fits_nowhere_else(busy: Extender, clock: Clock) -> None:
    """As kube-scheduler 1.36 does, many times a second."""
    tried = members(ONE_CYCLE, 3)
    for _ in range(20):
        assert cycle(busy, tried) == [True, True, False]
        clock.now += 0.02
    assert busy.filter(ask(pod(cores=100, blocks=0), "a")).names == ("a",)
    assert not busy.wake_up._nodes, "the group itself would be woken, and what it gave up is taken"
    assert cycle(busy, tried) == [True, False, False]


async def test_a_group_yields_reservations_of_earlier_rounds_too(busy: Extender) -> None:
    """The round is under way: one member was requested again, the other is still to come."""
    first, second = tried = members(ONE_CYCLE, 2)
    assert cycle(busy, tried) == [True, True]
    assert cycle(busy, [first]) == [True]
    assert busy.filter(ask(pod(cores=200, blocks=0), "a")).names == ("a",)
    assert not list(busy.cache.holds(second.uid))


async def test_every_abandoned_gang_yields_at_once(busy: Extender) -> None:
    for name in ("g", "other"):
        gang = members(Gang("d", name, waits=False), 1)
        for _ in range(2):
            assert cycle(busy, gang) == [True]
    assert busy.filter(ask(pod(cores=200, blocks=0), "a")).names == ("a",)


async def test_a_group_that_is_tried_long_after_its_time_is_tried_for_the_first_time(
    busy: Extender, clock: Clock
) -> None:
    """Its Bindings may be in flight when the next pod is filtered."""
    tried = members(ONE_CYCLE, 2)
    assert cycle(busy, tried) == [True, True]
    clock.now += 6
    assert cycle(busy, tried) == [True, True]
    assert not busy.filter(ask(pod(cores=100, blocks=0), "a")).names


async def test_a_group_that_other_plugins_refuse_repeatedly_yields_too(busy: Extender, clock: Clock) -> None:
    """Its last member fits no node's CPUs, and the extender is not called for it."""
    tried = members(ONE_CYCLE, 2)
    single = pod(cores=100, blocks=0)
    assert cycle(busy, tried) == [True, True]
    assert not busy.filter(ask(single, "a")).names, "they may be on their way to be bound"
    assert cycle(busy, tried) == [True, True]
    assert busy.filter(ask(single, "a")).names == ("a",)


async def test_a_group_that_yielded_may_restart_with_any_member(busy: Extender) -> None:
    """All of it is decided in one cycle, so no late member starts without the others."""
    first, second, third = tried = members(ONE_CYCLE, 3)
    for _ in range(2):
        assert cycle(busy, tried) == [True, True, False]
    assert busy.filter(ask(pod(cores=100, blocks=0), "a")).names == ("a",)
    assert cycle(busy, [third, first, second]) == [True, False, False]


async def test_a_gang_does_not_yield_while_there_is_room_elsewhere(busy: Extender) -> None:
    busy.put_node(node("b", 1))
    tried = members(ONE_CYCLE, 3)
    for _ in range(2):
        cycle(busy, tried)
    assert busy.filter(ask(pod(cores=100, blocks=0), "a", "b")).names == ("b",)
    assert free(busy) == 0


async def test_a_gang_at_permit_does_not_yield_while_all_members_are_placed(busy: Extender) -> None:
    tried = members(AT_PERMIT, 2)
    for _ in range(2):
        assert cycle(busy, tried) == [True, True]
        assert not busy.filter(ask(pod(cores=100, blocks=0), "a")).names


async def test_a_gang_at_permit_with_a_refused_member_yields_as_a_whole(busy: Extender) -> None:
    """A late member with a node would start the gang without the members that yielded."""
    first, second, third = tried = members(AT_PERMIT, 3)
    assert cycle(busy, tried) == [True, True, False]
    single = pod(cores=100, blocks=0)
    assert busy.filter(ask(single, "a")).names == ("a",)
    answer = busy.filter(ask(third, "a"))
    assert answer.failed == {"a": "other members of its gang yielded their reservations to pods that can start"}

    explained = await busy.explain("d", third.pod.ref.name)
    assert explained is not None
    assert explained.nodes[0].fix.startswith("kube-scheduler must retry the gang")

    busy.drop_pod(single.uid)
    assert cycle(busy, [second, third, first]) == [True, True, False], (
        "tried again, since a placed member is asked about"
    )


async def test_a_gang_at_permit_whose_refused_member_found_a_node_does_not_yield(busy: Extender) -> None:
    """It was retried without the others, and now all members are placed."""
    guest = pod(cores=100, blocks=0)
    assert busy.filter(ask(guest, "a")).names
    first, second = tried = members(AT_PERMIT, 2)
    assert cycle(busy, tried) == [True, False]
    busy.drop_pod(guest.uid)
    assert cycle(busy, [second]) == [True]
    assert not busy.filter(ask(pod(cores=100, blocks=0), "a")).names
    assert list(busy.cache.holds(first.uid))


async def test_a_gang_at_permit_yields_in_every_round(busy: Extender) -> None:
    """Also where the member that does not fit comes before others that do."""
    first, last = members(AT_PERMIT, 2)
    large = pod(cores=200, blocks=0, gang=AT_PERMIT)
    for _ in range(3):
        assert cycle(busy, [first, large, last]) == [True, False, True]
        single = pod(cores=100, blocks=0)
        assert busy.filter(ask(single, "a")).names == ("a",)
        busy.drop_pod(single.uid)


async def test_a_refused_member_that_is_gone_speaks_for_its_gang_no_more(busy: Extender) -> None:
    tried = members(AT_PERMIT, 3)
    assert cycle(busy, tried) == [True, True, False]
    busy.drop_pod(tried[2].uid)
    assert not busy.filter(ask(pod(cores=100, blocks=0), "a")).names


async def test_a_retried_gang_at_permit_yields_only_after_another_refusal(busy: Extender) -> None:
    tried = members(AT_PERMIT, 3)
    assert cycle(busy, tried) == [True, True, False]
    assert cycle(busy, tried[:2]) == [True, True]
    single = pod(cores=100, blocks=0)
    assert not busy.filter(ask(single, "a")).names
    assert cycle(busy, tried[2:]) == [False]
    assert busy.filter(ask(single, "a")).names == ("a",)


async def test_a_gang_without_reservations_does_not_have_to_wait(busy: Extender) -> None:
    """Otherwise its members would be rejected forever: no placed member can be requested again."""
    guests = [pod(cores=100, blocks=0) for _ in range(2)]
    assert all(busy.filter(ask(each, "a")).names for each in guests)
    tried = members(AT_PERMIT, 2)
    assert cycle(busy, tried) == [False, False]
    assert not busy.filter(ask(pod(), "a")).names
    for each in guests:
        busy.drop_pod(each.uid)
    assert cycle(busy, tried) == [True, True]


async def test_a_gang_that_keeps_its_reservations_does_not_have_to_wait(busy: Extender) -> None:
    """Its first member is about to be bound."""
    guest = pod(cores=100, blocks=0)
    assert busy.filter(ask(guest, "a")).names
    first, second = tried = members(AT_PERMIT, 2)
    assert cycle(busy, tried) == [True, False]
    busy.put_pod(replace(first, nominated_node="a", pod=replace(first.pod, resource_version="2")))
    assert not busy.filter(ask(pod(), "a")).names
    busy.drop_pod(guest.uid)
    assert cycle(busy, [second]) == [True]


async def test_of_two_refused_members_the_one_that_is_left_speaks_for_its_gang(busy: Extender) -> None:
    tried = members(AT_PERMIT, 4)
    assert cycle(busy, tried) == [True, True, False, False]
    busy.drop_pod(tried[2].uid)
    assert busy.filter(ask(pod(cores=100, blocks=0), "a")).names == ("a",)


async def test_a_group_with_a_minimum_does_not_yield_before_it_is_retried(busy: Extender, api: MemoryApi) -> None:
    """It may need two of its three; their Bindings are in flight when the next pod is filtered."""
    tried = members(ONE_CYCLE, 3)
    api.pods = {each.uid: each for each in tried}
    assert cycle(busy, tried) == [True, True, False]
    assert not busy.filter(ask(pod(cores=100, blocks=0), "a")).names
    for each in tried[:2]:
        assert await busy.bind(order(each, "a")) == ""


async def test_a_gang_does_not_yield_to_its_own_members(busy: Extender) -> None:
    tried = members(ONE_CYCLE, 4)
    for _ in range(3):
        assert cycle(busy, tried) == [True, True, False, False]


async def test_a_pod_refused_while_a_gang_is_tried_is_woken_when_a_member_is_refused(busy: Extender) -> None:
    """Nothing else would have kube-scheduler ask about it again: seen on the real one, where it waited for minutes."""
    first, second, third = members(AT_PERMIT, 3)
    single = pod(cores=100, blocks=0)
    assert cycle(busy, [first, second]) == [True, True]
    assert not busy.filter(ask(single, "a")).names, "the gang may still start"
    assert cycle(busy, [third]) == [False]
    assert busy.wake_up._nodes
    assert busy.filter(ask(single, "a")).names == ("a",)


async def test_a_gang_that_is_refused_wakes_nobody_where_nobody_waits(busy: Extender) -> None:
    """It would be tried for ever."""
    tried = members(AT_PERMIT, 3)
    for _ in range(3):
        assert cycle(busy, tried) == [True, True, False]
        assert not busy.wake_up._nodes


async def test_what_a_gang_that_was_sent_back_was_not_asked_about_again_is_free_for_others(busy: Extender) -> None:
    """Its plugin sends members back for reasons of its own, and the extender hears of no refusal in that round."""
    first, second, third = members(AT_PERMIT, 3)
    assert cycle(busy, [first, second, third]) == [True, True, False]
    assert cycle(busy, [first]) == [True]
    assert busy.filter(ask(pod(cores=100, blocks=0), "a")).names == ("a",)
    assert list(busy.cache.holds(first.uid)), "it may wait at Permit"
    assert not list(busy.cache.holds(second.uid))


@pytest.mark.parametrize("most", [1, 20, 80, 150, 199])
async def test_a_turn_that_is_not_the_last_gives_nothing_away(api: MemoryApi, clock: Clock, most: int) -> None:
    """Its first members had lost their GPUs to a member that was then recorded as refused."""
    extender = Extender(api, clock=clock)
    for name in ("n0", "n1"):
        extender.put_node(node(name, 1))
    gang = Gang("d", "own")
    tried = [pod(cores=60, gang=Gang("d", "tried")) for _ in range(2)]
    own = pod(cores=60, gang=gang)
    asked = pod(cores=60, gang=gang, more=[("side", ContainerRole.APP, 10, 1)])
    for each in (own, *tried, asked):
        extender.put_pod(each)
    assert [extender.filter(ask(each, "n0", "n1")).names for each in (own, *tried)] == [("n0",), ("n1",), ()]
    budget = Budget(most, is_last=False)
    found = extender.filter(ask(asked, "n0", "n1"), budget)
    if not budget.goes_on:
        assert found.names == ("n1",)
    assert [held.node for held in extender.cache.holds(own.uid)] == ["n0"]
    assert extender.filter(ask(asked, "n0", "n1")).names == ("n1",)
