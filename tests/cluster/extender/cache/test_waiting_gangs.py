"""The members of gangs that wait and hold nothing: the same as looking through all pods, at the cost of a few."""

import random

from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.model.allocation import ContainerRole, PodUid
from deviceplugin.model.pod import ClusterPod, Gang
from deviceplugin.structs import replace
from tests.budget.dearest import cost_of
from tests.cluster.extender.makers import bound, deleting, ended, node, pod

GANGS = (Gang("d", "one"), Gang("d", "two"), None)


def reserved(found: ClusterPod) -> PodHold:
    return PodHold(pod=found.pod.api_ref, node="a", state=HoldState.RESERVED, allocations=(), priority=0, expires=9.0)


def looked_through(cache: SchedulerCache, gang: Gang) -> set[PodUid]:
    return {
        each.uid
        for each in cache.waiting.values()
        if each.gang == gang and not each.pod.deleting and not any(cache.holds(each.uid))
    }


def test_they_are_those_that_wait_and_hold_nothing_whatever_has_happened() -> None:
    dice, now = random.Random(3), [0.0]
    cache = SchedulerCache(lambda: now[0])
    cache.put_node(node("a"))
    pods = [pod(cores=dice.randrange(1, 90), gang=dice.choice(GANGS)) for _ in range(12)]
    for _ in range(3_000):
        at = dice.randrange(len(pods))
        one = pods[at]
        match dice.randrange(9):
            case 0 | 1 | 2:
                cache.put_pod(replace(one, gang=dice.choice(GANGS)))
            case 3 | 4:
                cache.put_hold(reserved(one) if one.uid in cache.waiting else reserved(pods[0]))
            case 5:
                cache.release(one.uid, "a")
            case 6:
                cache.put_pod(dice.choice([deleting(one), bound(one, "a")]))
            case 7:
                cache.put_pod(ended(one))
                pods[at] = pod(cores=dice.randrange(1, 90), gang=dice.choice(GANGS))
            case 8:
                cache.drop_pod(one.uid)
                pods[at] = pod(cores=dice.randrange(1, 90), gang=dice.choice(GANGS))
        for gang in GANGS[:2]:
            assert gang is not None
            assert set(cache.waiting_gangs.largest(gang, above=(0, 0), most=99)) == looked_through(cache, gang)
    for uid in [*cache.waiting]:
        cache.drop_pod(uid)
    assert len(cache.waiting_gangs) == 0


def test_the_largest_come_first_and_smaller_ones_not_at_all() -> None:
    cache, gang = SchedulerCache(lambda: 0.0), Gang("d", "g")
    made = [pod(cores=cores, blocks=blocks, gang=gang) for cores, blocks in ((10, 9), (300, 0), (60, 3), (60, 4))]
    two = pod(cores=1, blocks=1, more=[("side", ContainerRole.APP, 70, 1)], gang=gang)
    for each in (*made, two):
        cache.put_pod(each)
    found = cache.waiting_gangs
    assert found.largest(gang, above=(10, 9), most=9) == [each.uid for each in (made[1], two, made[3], made[2])]
    assert found.largest(gang, above=(60, 3), most=2) == [made[1].uid, two.uid]
    assert found.largest(Gang("d", "other"), above=(0, 0), most=9) == []


def test_to_keep_and_to_find_them_costs_no_more_for_thousands() -> None:
    costs = []
    for count in (100, 10_000):
        cache, gang = SchedulerCache(lambda: 0.0), Gang("d", "g")
        pods = [pod(cores=1 + at % 99, gang=gang) for at in range(count)]
        for each in pods:
            cache.put_pod(each)

        async def one_more(cache: SchedulerCache = cache, again: ClusterPod = pods[50], gang: Gang = gang) -> None:
            cache.put_pod(again)
            cache.waiting_gangs.largest(gang, above=(0, 0), most=64)

        costs.append(cost_of(one_more).total)
    assert costs[0] == costs[1]
