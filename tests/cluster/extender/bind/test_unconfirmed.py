"""An assumed pod is read again before its hold is kept for long, and before it is released."""

import asyncio

import pytest

from deviceplugin.cluster.extender.cache.pod_hold import HoldState
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.model.pod import ClusterPod
from tests.cluster.extender.api import Fate, MemoryApi
from tests.cluster.extender.bind.test_bind import chosen, hold
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import ask, node, order, pod, refused


@pytest.fixture
async def one(extender: Extender, api: MemoryApi) -> ClusterPod:
    """It wants the only GPU of node a, and filter has chosen."""
    extender.put_node(node("a", 1))
    return chosen(extender, api, pod("one", cores=100, blocks=0), "a")


def free(extender: Extender, name: str = "a") -> bool:
    return extender.filter(ask(pod(cores=100, blocks=0), name)).names == (name,)


async def mark_uncertain(extender: Extender, api: MemoryApi, one: ClusterPod, fate: Fate) -> None:
    api.fates, api.read_fates = [fate], [Fate.LATE]
    assert await extender.bind(order(one, "a")) != ""
    assert hold(extender, "a", one) is HoldState.UNCONFIRMED


async def test_a_binding_that_took_effect_unseen_keeps_its_gpu_however_late_the_watch_is(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    await mark_uncertain(extender, api, one, Fate.BROKEN_AFTER)
    clock.now += 80
    extender.expire()
    assert not free(extender)
    await extender.resolve()
    assert hold(extender, "a", one) is HoldState.BOUND
    assert not free(extender)


async def test_a_binding_without_effect_is_released_after_its_time_and_a_read(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    await mark_uncertain(extender, api, one, Fate.BROKEN_BEFORE)
    clock.now += 70
    await extender.resolve()
    assert not free(extender)
    clock.now += 10
    extender.expire()
    assert not free(extender)
    await extender.resolve()
    assert (free(extender), len(extender.unconfirmed)) == (True, 0)


async def test_without_an_answer_gpus_stay_held_and_the_read_is_repeated(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    await mark_uncertain(extender, api, one, Fate.BROKEN_BEFORE)
    clock.now += 80
    api.read_fates = [Fate.LATE] * 3
    for _ in range(12):
        await extender.resolve()
        clock.now += 1
    assert api.read_fates == []
    assert not free(extender)
    clock.now += 10
    await extender.resolve()
    assert free(extender)


async def test_a_pod_that_is_gone_or_has_come_again_with_another_uid_holds_nothing(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    for again in (False, True):
        await mark_uncertain(extender, api, one, Fate.BROKEN_BEFORE)
        del api.pods[one.uid]
        if again:
            api.put(pod("one", cores=100, blocks=0))
        clock.now += 80
        await extender.resolve()
        assert (free(extender), len(extender.unconfirmed)) == (True, 0), again
        clock.now += 80
        one = chosen(extender, api, pod("one", cores=100, blocks=0), "a")


async def test_a_bound_pod_that_the_watch_never_knew_does_not_hold_its_gpu_for_ever(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    """Bound, and deleted before a new list: a watch that never listed the pod reports no deletion."""
    assert await extender.bind(order(one, "a")) == ""
    assert len(extender.unconfirmed) == 1
    clock.now += 80
    await extender.resolve()
    assert hold(extender, "a", one) is HoldState.BOUND
    del api.pods[one.uid]
    clock.now += 80
    await extender.resolve()
    assert (free(extender), len(extender.unconfirmed)) == (True, 0)


async def test_a_pod_found_bound_by_reading_is_read_again_until_the_watch_knows_it(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    api.fates = [Fate.BROKEN_AFTER]
    assert await extender.bind(order(one, "a")) == ""
    assert (hold(extender, "a", one), len(extender.unconfirmed)) == (HoldState.BOUND, 1)
    extender.put_pod(api.pods[one.uid])
    assert len(extender.unconfirmed) == 0
    clock.now += 500
    before = api.reads
    await extender.resolve()
    assert api.reads == before


async def test_a_pod_that_the_watch_knew_first_is_not_read_again(
    extender: Extender, api: MemoryApi, one: ClusterPod
) -> None:
    api.turns, api.fates = 5, [Fate.BROKEN_AFTER]
    running = asyncio.create_task(extender.bind(order(one, "a")))
    while not api.pods[one.uid].pod.node:
        await asyncio.sleep(0)
    extender.put_pod(api.pods[one.uid])
    assert await running == ""
    assert (hold(extender, "a", one), len(extender.unconfirmed)) == (HoldState.BOUND, 0)


async def test_a_refusal_of_the_second_binding_says_nothing_of_the_first(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    api.fates = [Fate.LATE, Fate.REFUSED]
    await extender.bind(order(one, "a"))
    clock.now += 30
    assert await extender.bind(order(one, "a")) == "bind refused"
    assert hold(extender, "a", one) is HoldState.UNCONFIRMED
    assert not free(extender)
    api.apply(*api.late.pop())
    clock.now += 50
    await extender.resolve()
    assert hold(extender, "a", one) is HoldState.BOUND


async def test_a_renewed_reservation_lasts_as_long_as_any_other(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    await mark_uncertain(extender, api, one, Fate.BROKEN_BEFORE)
    clock.now += 50
    assert extender.filter(ask(one, "a")).names == ("a",)
    clock.now += 30
    await extender.resolve()
    assert hold(extender, "a", one) is HoldState.RESERVED
    clock.now += 31
    extender.expire()
    assert hold(extender, "a", one) is None


async def test_a_renewed_reservation_is_not_ended_by_an_earlier_refusal(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    """The pod keeps the refusal while it is retried, and changes for other reasons."""
    await mark_uncertain(extender, api, one, Fate.BROKEN_BEFORE)
    clock.now += 50
    known = refused(one, "500")
    extender.put_pod(known)
    assert extender.filter(ask(known, "a")).names == ("a",)
    extender.put_pod(refused(one, "501"))
    clock.now += 30
    await extender.resolve()
    assert hold(extender, "a", one) is HoldState.RESERVED


async def test_an_answer_that_is_older_than_the_next_binding_is_ignored(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    await mark_uncertain(extender, api, one, Fate.BROKEN_BEFORE)
    clock.now += 80
    api.read_turns = 10
    looking = asyncio.create_task(extender.resolve())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await extender.bind(order(one, "a")) == ""
    await looking
    assert hold(extender, "a", one) is HoldState.ASSUMED


async def test_an_unconfirmed_binding_is_not_repeated_with_gpus_that_have_failed_since(
    extender: Extender, api: MemoryApi, clock: Clock, one: ClusterPod
) -> None:
    await mark_uncertain(extender, api, one, Fate.BROKEN_BEFORE)
    extender.put_node(node("a", 2, ill=[0]))
    assert "an earlier Binding got no answer" in await extender.bind(order(one, "a"))
    assert (hold(extender, "a", one), api.bindings) == (HoldState.UNCONFIRMED, 1)
    clock.now += 80
    await extender.resolve()
    assert await extender.bind(order(one, "a")) == ""
    assert "GPU-a-1" in str(api.pods[one.uid].pod.annotations)


async def test_a_cancelled_binding_is_unconfirmed(extender: Extender, api: MemoryApi, one: ClusterPod) -> None:
    api.turns = 50
    running = asyncio.create_task(extender.bind(order(one, "a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in asyncio.all_tasks():
        if task.get_name().startswith("bind "):
            task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert hold(extender, "a", one) is HoldState.UNCONFIRMED


async def test_pods_that_cannot_be_read_keep_no_other_one_unread(
    extender: Extender, api: MemoryApi, clock: Clock
) -> None:
    """16 are read at a time, and again after 5 s: more than 80 of them could fill every turn."""
    extender.put_node(node("a", 60))
    made = [chosen(extender, api, pod(), "a") for _ in range(120)]
    for each in made:
        await mark_uncertain(extender, api, each, Fate.BROKEN_AFTER)
    api.unreadable = {each.uid for each in made[:-1]}
    for _ in range(20):
        clock.now += 80 if clock.now < 1080 else 1
        await extender.resolve()
    assert hold(extender, "a", made[-1]) is HoldState.BOUND
