"""kube-scheduler's own gangs (1.36, API scheduling.k8s.io/v1alpha2) with vcuda's extender: all members or none.

Two hollow nodes, whose pods cost nothing: here it matters what is bound and what is kept, not what runs.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.e2e.node.workload import share
from tests.e2e.scheduling.expectations import NAMES
from tests.e2e.scheduling.gangs import BLOCKS, GROUPS, add_members, make_gang, make_group, wait_unschedulable
from tests.e2e.scheduling.steps import (
    NOT_BY_TIME,
    bound,
    check,
    create,
    delete_gangs,
    reservations,
    wait_all,
    wait_nothing_reserved,
)
from tests.e2e.scheduling.world import HOLLOW, World, everybody

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GPUS = 8 * len(HOLLOW)
SHARE = 60
"""Cores: no GPU has room for two."""


@pytest.fixture(scope="module")
def hollow_world(cluster: Cluster, programs: Path) -> Iterator[World]:
    with everybody(cluster, programs, real=(), flags=(NOT_BY_TIME,)) as world:
        yield world


@pytest.fixture
def world(hollow_world: World) -> Iterator[World]:
    """With no pods and no gangs, in the beginning and in the end."""
    yield hollow_world
    delete_gangs(hollow_world.admin, GROUPS)
    wait_nothing_reserved(hollow_world)


def test_a_gang_that_fits_runs_whole(world: World) -> None:
    names = make_gang(world, "fitting", GPUS, cores=SHARE)
    wait_all(world, names)
    check(world, names)


def test_a_gang_too_large_to_fit_keeps_nothing_from_others(world: World) -> None:
    """By the sum of cores the nodes have room for one more such pod; but no GPU has room for two.

    The gang is there all the time, and kube-scheduler tries it again and again without a word.
    """
    gang = make_gang(world, "large", GPUS + 1, cores=SHARE)
    wait_unschedulable(world, "large")
    assert bound(world) == 0, "all or nothing"
    _wait_questions(world, _questions(world) + 3 * len(gang))

    singles = [share(f"single-{number:02}", SHARE, BLOCKS) for number in range(GPUS)]
    create(world, singles)
    wait_all(world, [each.name for each in singles])
    check(world, [each.name for each in singles], waiting=gang)


def test_a_gang_too_large_to_fit_leaves_nothing_behind(world: World) -> None:
    gang = make_gang(world, "large", GPUS + 1, cores=SHARE)
    wait_unschedulable(world, "large")
    states = pods.states(world.admin)
    assert not [name for name in gang if any(NAMES.domain in each for each in states[name].annotations)]
    pods.delete(world.admin, gang)
    pods.wait_gone(world.admin, gang)
    wait_nothing_reserved(world)


def test_no_member_is_tried_before_all_are_there(world: World) -> None:
    make_group(world, "late", 4)
    first = add_members(world, "late", ["late-0", "late-1", "late-2"], cores=SHARE)
    create(world, [share("other", SHARE, BLOCKS)])
    wait_all(world, ["other"])
    assert bound(world) == 1
    assert reservations(world) == 0

    last = add_members(world, "late", ["late-3"], cores=SHARE)
    wait_all(world, [*first, *last])
    check(world, [*first, *last, "other"])


def test_a_gang_waits_for_another_to_end_and_then_runs(world: World) -> None:
    """Each needs more than half of the GPUs."""
    first = make_gang(world, "first", GPUS // 2 + 1, cores=SHARE)
    wait_all(world, first)
    second = make_gang(world, "second", GPUS // 2 + 1, cores=SHARE)
    wait_unschedulable(world, "second")
    check(world, first, waiting=second)

    pods.delete(world.admin, first)
    wait_all(world, second)
    check(world, second)


def test_a_member_deleted_while_its_gang_waits_takes_its_part_along(world: World) -> None:
    names = next(filter(None, (_shrunk_gang(world) for _ in range(6))), [])
    assert names, "fewer members than the gang needs were bound, each time"

    add_members(world, "shrinking", ["replacement"], cores=SHARE)
    pods.delete(world.admin, ["other"])  # with it there is one GPU too few
    wait_all(world, [*names, "replacement"])
    check(world, [*names, "replacement"])


def _shrunk_gang(world: World) -> list[str]:
    """The members that are left of a gang that waits; none if kube-scheduler bound them in the try that was going on.

    It tries the gang all the time, and counts a member that is deleted between its filter and the end of the try.
    """
    create(world, [share("guest", SHARE, BLOCKS)])
    wait_all(world, ["guest"])
    names = make_gang(world, "shrinking", GPUS, cores=SHARE)
    wait_unschedulable(world, "shrinking")
    pods.delete(world.admin, names[:1])
    pods.wait_gone(world.admin, names[:1])
    pods.delete(world.admin, ["guest"])
    create(world, [share("other", SHARE, BLOCKS)])
    wait_all(world, ["other"])
    if bound(world) == 1:
        return names[1:]
    delete_gangs(world.admin, GROUPS)
    wait_nothing_reserved(world)
    return []


def _wait_questions(world: World, count: int) -> None:
    wait_until(lambda: _questions(world) >= count, "the gang was tried again")


def _questions(world: World) -> int:
    """How often filter was asked."""
    lines = world.ours.client().text("GET", "/metrics").splitlines()
    found = [line for line in lines if line.startswith("vcuda_scheduler_requests_total{") and 'verb="filter"' in line]
    return int(sum(float(line.rpartition(" ")[2]) for line in found))
