"""A group's name is used again: what is known of earlier members ends with them, and no later member waits for it."""

from collections.abc import Callable

import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.model.pod import ClusterPod, Gang
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import ask, bound, deleting, ended, order, pod
from tests.cluster.extender.rounds import AT_PERMIT, ONE_CYCLE, cycle, members

ENDS: dict[str, Callable[[Extender, ClusterPod], None]] = {
    "deleted": lambda extender, each: extender.drop_pod(each.uid),
    "being deleted": lambda extender, each: extender.put_pod(_changed(deleting(each))),
    "ended": lambda extender, each: extender.put_pod(_changed(ended(each, "Failed"))),
}


def _changed(found: ClusterPod) -> ClusterPod:
    return replace(found, pod=replace(found.pod, resource_version="9"))


def yielded(extender: Extender) -> tuple[list[ClusterPod], ClusterPod]:
    """A gang of three that gave its two GPUs to a pod, and that pod."""
    tried = members(AT_PERMIT, 3)
    assert cycle(extender, tried) == [True, True, False]
    guest = pod(cores=200, blocks=0)
    assert extender.filter(ask(guest, "a")).names == ("a",)
    return tried, guest


@pytest.mark.parametrize("end", ENDS)
async def test_a_gang_made_again_under_the_same_name_starts_on_an_empty_node(busy: Extender, end: str) -> None:
    tried, guest = yielded(busy)
    for each in tried:
        ENDS[end](busy, each)
    busy.drop_pod(guest.uid)
    assert cycle(busy, members(AT_PERMIT, 2)) == [True, True]


async def test_a_gang_made_again_before_the_earlier_one_is_gone_starts_once_it_is(busy: Extender) -> None:
    """The earlier members end while the later ones are asked about already."""
    tried, guest = yielded(busy)
    busy.drop_pod(guest.uid)
    again = members(AT_PERMIT, 2)
    assert cycle(busy, again) == [False, False]
    for each in tried:
        busy.put_pod(_changed(deleting(each)))
    assert cycle(busy, again) == [True, True]


async def test_a_late_member_waits_for_no_member_that_was_bound_after_all(busy: Extender, api: MemoryApi) -> None:
    """kube-scheduler let both start without the third, and asks about them no more."""
    (first, second, third), guest = yielded(busy)
    busy.drop_pod(guest.uid)
    api.pods = {each.uid: each for each in (first, second)}
    for each in (first, second):
        assert await busy.bind(order(each, "a")) == ""
        busy.put_pod(bound(api.pods[each.uid], "a"))
    for each in (first, second):
        busy.drop_pod(each.uid)
    assert cycle(busy, [third]) == [True]


async def test_refusals_for_the_gangs_sake_do_not_keep_it_waiting_for_ever(busy: Extender, clock: Clock) -> None:
    """Nobody asks about the members that yielded: another plugin refuses them first."""
    (*_, third), guest = yielded(busy)
    busy.drop_pod(guest.uid)
    found = []
    for _ in range(4):
        found += cycle(busy, [third])
        clock.now += 290  # kube-scheduler tries again after 5 minutes at the latest
    assert found == [False, False, False, True]


async def test_a_group_of_one_cycle_made_again_is_tried_for_the_first_time(busy: Extender) -> None:
    """Its Bindings may be in flight when the next pod is filtered: it keeps what it has."""
    for _ in range(2):
        tried = members(ONE_CYCLE, 2)
        for _ in range(2):
            assert cycle(busy, tried) == [True, True]
        for each in tried:
            busy.drop_pod(each.uid)
    assert cycle(busy, members(ONE_CYCLE, 2)) == [True, True]
    assert not busy.filter(ask(pod(cores=100, blocks=0), "a")).names


async def test_a_refused_member_that_will_not_be_asked_about_speaks_for_its_gang_no_more(
    busy: Extender, subtests: pytest.Subtests
) -> None:
    for what, end in ENDS.items():
        with subtests.test(what):
            tried = members(Gang("d", what), 3)
            assert cycle(busy, tried) == [True, True, False]
            end(busy, tried[2])
            assert not busy.filter(ask(pod(cores=100, blocks=0), "a")).names
        for each in tried:
            busy.drop_pod(each.uid)


async def test_a_pod_that_changes_its_group_counts_in_the_later_one_alone(busy: Extender) -> None:
    first, second, third = members(AT_PERMIT, 3)
    assert cycle(busy, [first, second, third]) == [True, True, False]
    moved = replace(_changed(third), gang=Gang("d", "other"))
    assert cycle(busy, [moved]) == [False]
    busy.drop_pod(moved.uid)
    assert not busy.filter(ask(pod(cores=100, blocks=0), "a")).names, "no member of the gang is refused"


async def test_a_pod_that_is_being_deleted_keeps_no_room_by_its_nomination(busy: Extender) -> None:
    nominated = pod(cores=200, blocks=0, nominated="a")
    busy.put_pod(nominated)
    one = pod(cores=100, blocks=0)
    assert not busy.filter(ask(one, "a")).names
    busy.put_pod(_changed(deleting(nominated)))
    assert busy.filter(ask(one, "a")).names == ("a",)
