"""Gangs that wait at Permit: a kube-scheduler with the real coscheduling plugin asks vcuda's extender.

scheduler-plugins 0.33.5, built on Kubernetes 1.33, switched on by the very values that docs/gangs.md shows. Two hollow
nodes. A member that is gated makes the others wait at Permit for as long as the test likes.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from sandbox.cluster import pods
from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.schedulers import Plugins
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY
from tests.e2e.node.workload import share
from tests.e2e.scheduling.steps import (
    bound,
    check,
    create,
    delete_gangs,
    is_refused,
    reservations,
    wait_all,
    wait_nothing_reserved,
)
from tests.e2e.scheduling.world import HOLLOW, World, everybody
from tests.fenced import fenced

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(600)]

GUIDE = REPOSITORY / "docs" / "gangs.md"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
RIGHTS = "coscheduling"


def values_of_the_guide() -> JsonObject:
    """`scheduler.kubeScheduler` of the values that docs/gangs.md shows."""
    blocks = fenced(GUIDE, "yaml")
    shown = (each for block in blocks for each in yaml.safe_load_all(block))
    found: JsonObject = next(each["scheduler"]["kubeScheduler"] for each in shown if "scheduler" in each)
    return found


@contextmanager
def pod_groups_known(admin: Client, definition: Path, rules: list[JsonObject]) -> Iterator[None]:
    crd = yaml.safe_load(definition.read_text())
    role: JsonObject = {"metadata": {"name": RIGHTS}, "rules": rules}
    binding: JsonObject = {
        "metadata": {"name": RIGHTS},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": RIGHTS},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:kube-scheduler"}],
    }
    made = (
        (f"{RBAC}/clusterroles", role),
        (f"{RBAC}/clusterrolebindings", binding),
        (DEFINITIONS, crd),
    )
    try:
        for path, body in made:
            admin.post(path, body)
        wait_until(lambda: _served(admin), "PodGroups are served")
        yield
    finally:
        for path, body in reversed(made):
            with contextlib.suppress(ApiError):
                admin.delete(f"{path}/{body['metadata']['name']}")


def _served(admin: Client) -> bool:
    try:
        return not admin.get(GROUPS)["items"]
    except ApiError:
        return False


LABEL = "scheduling.x-k8s.io/pod-group"
GPUS = 8 * len(HOLLOW)
ROOM_BESIDE = 5 * len(HOLLOW)
"""kube-scheduler counts members that wait at Permit: beside eight times 60 cores a node has room for five more."""
RESERVATION, GANG_RESERVATION, LONG, SHORT = 3, 14, 3600, 5
"""Seconds: of a reservation, of one at Permit that ends, of what no test outlasts, of a gang's patience that ends."""


@pytest.fixture(scope="module")
def permit_world(cluster: Cluster, programs: Path, coscheduling: Path) -> Iterator[World]:
    values = values_of_the_guide()
    flags = (f"--reservation-time={RESERVATION}s", f"--gang-reservation-time={LONG}s")
    plugins = Plugins(coscheduling / "scheduler", values["plugins"])
    with (
        pod_groups_known(cluster.admin, coscheduling / "crd.yaml", values["rules"]),
        everybody(cluster, programs, real=(), flags=flags, plugins=plugins) as world,
    ):
        yield world


@pytest.fixture
def world(permit_world: World) -> Iterator[World]:
    """With no pods and no gangs, in the beginning and in the end."""
    yield permit_world
    delete_gangs(permit_world.admin, GROUPS)
    wait_nothing_reserved(permit_world)


def test_a_gang_that_fits_runs_whole(world: World) -> None:
    names = _gang(world, "fitting", GPUS)
    wait_all(world, names)
    check(world, names)


@pytest.mark.parametrize(
    ("missing", "room"), [(1, ROOM_BESIDE), (4, GPUS)], ids=["the others wait on", "the others are sent back"]
)
def test_a_gang_too_large_to_fit_keeps_nothing_from_others(world: World, missing: int, room: int) -> None:
    """It is there all the time, and tried again with every pod that comes. The plugin decides by what is missing.

    Each has a name of its own: the plugin remembers for a while that it has sent a gang of that name back.
    """
    gang = _gang(world, f"large-by-{missing}", GPUS + missing)
    wait_until(lambda: any(is_refused(world, name) for name in gang), "the gang does not fit")
    assert bound(world) == 0, "all or nothing"

    singles = _singles(world, room)
    wait_all(world, singles)
    check(world, singles, waiting=gang)


def test_a_gang_at_permit_keeps_its_gpus_as_long_as_it_waits(world: World) -> None:
    gang = _waiting_gang(world, "patient", seconds=LONG)
    began = time.monotonic()
    singles = _singles(world, GPUS - 3)
    wait_all(world, singles)
    create(world, [share("late", 60, 16)])
    wait_until(lambda: is_refused(world, "late"), "the gang has the last GPUs")
    wait_until(
        lambda: reservations(world) < 3 or time.monotonic() - began > 2 * RESERVATION, "other pods' time is over"
    )
    assert reservations(world) == 3
    check(world, singles, waiting=[*gang, "late"])

    pods.delete(world.admin, ["late", singles[0]])
    pods.wait_gone(world.admin, ["late", singles[0]])
    _open_gate(world, gang[-1])
    wait_all(world, gang)
    check(world, [*gang, *singles[1:]])


def test_a_member_deleted_at_permit_frees_what_the_others_have(world: World) -> None:
    gang = _waiting_gang(world, "shrinking", seconds=LONG)
    pods.delete(world.admin, gang[:1])
    wait_until(lambda: is_refused(world, gang[1]), "the others were sent back")
    wait_nothing_reserved(world)

    singles = _singles(world, GPUS)
    wait_all(world, singles)
    check(world, singles, waiting=gang[1:])


def test_a_gang_whose_time_at_permit_is_over_gives_its_gpus_back(world: World) -> None:
    """kube-scheduler 1.33 does not report the second time: then they are kept for the gang's reservation time."""
    world.ours.restart_with(f"--gang-reservation-time={GANG_RESERVATION}s")
    gang = _waiting_gang(world, "hasty", seconds=SHORT)
    wait_until(lambda: is_refused(world, gang[0]), "its time is over")
    wait_nothing_reserved(world)
    create(world, [share("news", 10, 4)])
    wait_until(lambda: reservations(world) == 3, "the gang is tried again")
    wait_nothing_reserved(world)
    assert bound(world) == 1


def _gang(world: World, name: str, count: int, *, seconds: int = LONG) -> list[str]:
    _group(world, name, count, seconds=seconds)
    names = [f"{name}-{number:02}" for number in range(count)]
    _members(world, name, names)
    return names


def _waiting_gang(world: World, name: str, *, seconds: int) -> list[str]:
    """Four; the last of them is gated, so three wait at Permit."""
    _group(world, name, 4, seconds=seconds)
    names = [f"{name}-{number}" for number in range(4)]
    _members(world, name, names[3:], gates=[{"name": "vcuda-e2e/later"}])
    _members(world, name, names[:3])
    wait_until(lambda: reservations(world) == 3, "three wait at Permit")
    assert bound(world) == 0
    return names


def _members(world: World, group: str, names: Sequence[str], *, gates: Sequence[Mapping[str, str]] = ()) -> None:
    create(world, [share(name, 60, 16) for name in names], labels={LABEL: group}, schedulingGates=list(gates))


def _group(world: World, name: str, count: int, *, seconds: int) -> None:
    world.admin.post(
        GROUPS,
        {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": count, "scheduleTimeoutSeconds": seconds},
        },
    )


def _singles(world: World, count: int) -> list[str]:
    names = [f"single-{number:02}" for number in range(count)]
    create(world, [share(name, 60, 16) for name in names])
    return names


def _open_gate(world: World, name: str) -> None:
    world.admin.merge(f"{pods.PODS}/{name}", {"spec": {"schedulingGates": []}})
