"""A gang's reservations are kept as long as it may still be bound, and released when it is abandoned.

Kubernetes' own pod groups are placed in one cycle; others wait at Permit. kube-scheduler does not report a second
failure, because it writes a pod's condition only when it changes.
"""

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.model.pod import ClusterPod, Gang
from deviceplugin.structs import replace
from tests.cluster.extender.api import Fate, MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import ask, node, order, pod, refused
from tests.cluster.extender.rounds import AT_PERMIT, ONE_CYCLE, cycle, free, free_after, members


async def test_an_abandoned_pod_group_releases_its_reservations(busy: Extender, clock: Clock) -> None:
    assert cycle(busy, members(ONE_CYCLE, 3)) == [True, True, False]
    assert free_after(busy, clock, 4) == 0
    assert free_after(busy, clock, 1) == 200


async def test_a_pod_group_whose_last_member_other_plugins_refused_releases_its_reservations(
    busy: Extender, clock: Clock
) -> None:
    """The extender is not called for that member."""
    assert cycle(busy, members(ONE_CYCLE, 2)) == [True, True]
    assert free_after(busy, clock, 6) == 200


async def test_a_pod_after_a_groups_deadline_gets_its_gpus(busy: Extender, clock: Clock) -> None:
    """Although nothing has checked the time since."""
    assert cycle(busy, members(ONE_CYCLE, 2)) == [True, True]
    clock.now += 6
    assert busy.filter(ask(pod(cores=200, blocks=0), "a")).names == ("a",)


async def test_a_long_cycle_keeps_what_its_first_members_have(busy: Extender, clock: Clock) -> None:
    for fits, each in zip((True, True, False, False), members(ONE_CYCLE, 4), strict=True):
        assert bool(busy.filter(ask(each, "a")).names) is fits
        clock.now += 4
        busy.expire()
    assert free(busy) == 0


async def test_each_gang_ends_by_its_own_time(busy: Extender, clock: Clock) -> None:
    busy.put_node(node("a", 3))
    assert cycle(busy, [*members(ONE_CYCLE, 1), *members(AT_PERMIT, 1)]) == [True, True]
    clock.now += 3
    assert cycle(busy, members(Gang("d", "later", waits=False), 1)) == [True]
    for seconds, left in ((3, 100), (3, 200), (590, 200), (2, 300)):
        assert free_after(busy, clock, seconds) == left


async def test_bound_and_binding_members_keep_their_gpus(busy: Extender, clock: Clock, api: MemoryApi) -> None:
    first, second = members(ONE_CYCLE, 2)
    api.pods = {each.uid: each for each in (first, second)}
    assert cycle(busy, [first, second]) == [True, True]
    assert await busy.bind(order(first, "a")) == ""
    assert free_after(busy, clock, 6) == 100
    assert await busy.bind(order(second, "a")) == "", "late, but its GPU is still free"


async def test_a_member_with_an_unconfirmed_binding_keeps_its_gpu(busy: Extender, clock: Clock, api: MemoryApi) -> None:
    (one,) = members(ONE_CYCLE, 1)
    api.pods, api.fates = {one.uid: one}, [Fate.LATE]
    assert cycle(busy, [one]) == [True]
    assert await busy.bind(order(one, "a")) != ""
    assert free_after(busy, clock, 6) == 100


async def test_a_member_that_is_nominated_for_another_node_keeps_nothing(busy: Extender, clock: Clock) -> None:
    (one,) = members(ONE_CYCLE, 1)
    assert cycle(busy, [one]) == [True]
    busy.put_pod(replace(one, nominated_node="b", pod=replace(one.pod, resource_version="2")))
    assert free_after(busy, clock, 6) == 200


async def test_what_an_earlier_round_left_ends_with_the_try(busy: Extender, clock: Clock) -> None:
    """In the last round kube-scheduler stopped at the first member."""
    first, second = members(ONE_CYCLE, 2)
    assert cycle(busy, [first, second]) == [True, True]
    assert cycle(busy, [first]) == [True]
    assert free_after(busy, clock, 6) == 200


async def test_a_member_whose_volumes_are_prepared_keeps_its_gpu(busy: Extender, clock: Clock) -> None:
    """kube-scheduler 1.35 and later nominates the node before it prepares anything for the pod."""
    (one,) = members(ONE_CYCLE, 1)
    assert cycle(busy, [one]) == [True]
    busy.put_pod(replace(one, nominated_node="a", pod=replace(one.pod, resource_version="2")))
    assert free_after(busy, clock, 30) == 100
    assert free_after(busy, clock, 31) == 200


async def test_a_gang_at_permit_keeps_what_it_has_although_a_member_was_refused(busy: Extender, clock: Clock) -> None:
    assert cycle(busy, members(AT_PERMIT, 3)) == [True, True, False]
    assert free_after(busy, clock, 599) == 0


async def test_an_abandoned_gang_does_not_wake_itself(busy: Extender, clock: Clock, api: MemoryApi) -> None:
    """Otherwise kube-scheduler would retry it forever."""
    cycle(busy, members(ONE_CYCLE, 3))
    clock.now += 6
    busy.expire()
    assert not busy.wake_up._nodes


async def test_an_abandoned_gang_wakes_pods_that_were_refused_meanwhile(busy: Extender, clock: Clock) -> None:
    cycle(busy, members(ONE_CYCLE, 2))
    assert not busy.filter(ask(pod(), "a")).names
    clock.now += 6
    busy.expire()
    assert busy.wake_up._nodes


async def test_a_pod_refused_between_two_rounds_is_woken_too(busy: Extender, clock: Clock) -> None:
    tried = members(ONE_CYCLE, 2)
    assert cycle(busy, tried) == [True, True]
    assert not busy.filter(ask(pod(), "a")).names
    assert cycle(busy, tried) == [True, True]
    clock.now += 6
    busy.expire()
    assert busy.wake_up._nodes


async def test_a_pod_refused_before_the_gang_came_is_not_woken_by_it(busy: Extender, clock: Clock) -> None:
    assert not busy.filter(ask(pod(cores=300, blocks=0), "a")).names
    cycle(busy, members(ONE_CYCLE, 3))
    clock.now += 6
    busy.expire()
    assert not busy.wake_up._nodes


async def test_a_change_of_a_pod_that_was_refused_earlier_does_not_end_its_reservation(busy: Extender) -> None:
    """An annotation, or the nomination of a pod that waits at Permit: its condition is the earlier one."""
    one = refused(pod(cores=100, blocks=0, gang=AT_PERMIT), "5")
    assert cycle(busy, [one]) == [True]
    for version, nominated in (("6", ""), ("7", "a")):
        busy.put_pod(replace(one, nominated_node=nominated, pod=replace(one.pod, resource_version=version)))
        assert free(busy) == 100, nominated


async def test_late_news_of_an_earlier_refusal_does_not_end_a_reservation(busy: Extender) -> None:
    one = pod(cores=100, blocks=0)
    known = refused(one, "10")
    known = replace(known, condition=replace(known.condition, text=1)) if known.condition else known
    assert busy.filter(ask(known, "a")).names
    busy.put_pod(refused(one, "9"))
    assert free(busy) == 100


async def test_a_nomination_taken_back_ends_the_reservation(busy: Extender) -> None:
    """The second failure of a pod that waited: its condition stays, only its nomination is taken away."""
    one = refused(pod(cores=100, blocks=0, gang=AT_PERMIT), "5")
    assert cycle(busy, [one]) == [True]
    for version, nominated, left in (("6", "a", 100), ("7", "", 200)):
        busy.put_pod(replace(one, nominated_node=nominated, pod=replace(one.pod, resource_version=version)))
        assert free(busy) == left


async def test_a_refusal_in_other_words_ends_the_reservation(busy: Extender) -> None:
    one = refused(pod(cores=100, blocks=0), "5")
    assert busy.filter(ask(one, "a")).names
    busy.put_pod(_in_other_words(one, "6", 7))
    assert free(busy) == 200


async def test_the_late_refusal_of_an_earlier_attempt_keeps_what_the_present_one_reserved(busy: Extender) -> None:
    """kube-scheduler takes a gang from Permit, asks about it again, and only then writes what became of the first try.

    Seen on kube-scheduler 1.33 with scheduler-plugins: the GPUs of members at Permit went to other members of the gang.
    """
    one = refused(pod(cores=100, blocks=0, gang=AT_PERMIT), "5")
    assert cycle(busy, [one, one, one]) == [True, True, True]
    for version, text, left in (("6", 1, 100), ("7", 2, 100), ("8", 3, 200)):
        busy.put_pod(_in_other_words(one, version, text))
        assert free(busy) == left, "two attempts ended unseen before the third"


async def test_a_late_refusal_by_the_extender_keeps_what_the_next_attempt_reserved(busy: Extender) -> None:
    large, one = (pod(cores=100, blocks=0) for _ in range(2))
    assert cycle(busy, [large, pod(cores=100, blocks=0), one]) == [True, True, False]
    busy.drop_pod(large.uid)
    assert busy.filter(ask(one, "a")).names
    for version, text, left in (("6", 1, 0), ("7", 2, 100)):
        busy.put_pod(_in_other_words(one, version, text))
        assert free(busy) == left


async def test_a_refusal_in_the_words_of_the_earlier_one_is_not_waited_for(busy: Extender) -> None:
    """kube-scheduler writes a condition only where it changes."""
    large, one = (pod(cores=100, blocks=0) for _ in range(2))
    assert cycle(busy, [large, pod(cores=100, blocks=0)]) == [True, True]
    one = refused(one, "5", f"0/1 nodes are available: 1 {busy.filter(ask(one, 'a')).failed['a']}.")
    busy.put_pod(one)
    assert not busy.filter(ask(one, "a")).names
    busy.drop_pod(large.uid)
    assert busy.filter(ask(one, "a")).names
    busy.put_pod(_in_other_words(one, "6", 1))
    assert free(busy) == 100


async def test_a_refusal_long_after_the_attempt_is_its_own(busy: Extender, clock: Clock) -> None:
    one = refused(pod(cores=100, blocks=0, gang=AT_PERMIT), "5")
    assert cycle(busy, [one, one]) == [True, True]
    clock.now += 11
    busy.put_pod(_in_other_words(one, "6", 1))
    assert free(busy) == 200


async def test_a_pod_asked_about_in_an_old_version_keeps_its_reservation_when_it_changes(busy: Extender) -> None:
    """The watch has brought the refusal, and kube-scheduler asks with what it knew before it."""
    one = refused(pod(cores=100, blocks=0), "5")
    assert cycle(busy, [one]) == [True]
    told = _in_other_words(one, "6", 1)
    busy.put_pod(told)
    assert free(busy) == 200
    assert busy.filter(ask(one, "a")).names
    busy.put_pod(replace(told, pod=replace(told.pod, resource_version="7", annotations={"owner": "somebody"})))
    assert free(busy) == 100


async def test_a_pod_that_fits_nowhere_any_more_keeps_nothing_of_its_last_attempt(busy: Extender) -> None:
    """What kube-scheduler writes of it may be what it wrote before, and so nothing."""
    one = refused(pod(cores=100, blocks=0), "5")
    assert cycle(busy, [one]) == [True]
    assert free(busy) == 100
    busy.put_node(node("a", 2, ill=[0, 1]))
    assert not busy.filter(ask(one, "a")).names
    busy.put_node(node("a", 2))
    assert free(busy) == 200


def _in_other_words(known: ClusterPod, version: str, text: int) -> ClusterPod:
    again = refused(known, version)
    assert again.condition is not None
    return replace(again, condition=replace(again.condition, text=text))
