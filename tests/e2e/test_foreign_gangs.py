"""A gang scheduler that knows nothing of vcuda, on a node of vcuda: a second kube-scheduler with gangs and no extender.

It stands where Volcano would: it sums up a node's cores and blocks, decides about a gang as a whole, binds all members
or none, and calls nobody. Volcano itself is not run here (docs/volcano.md says why).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.client import ApiError, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.control_plane import Component
from sandbox.cluster.kubelet import NODE
from sandbox.cluster.schedulers import scheduler_with
from sandbox.cluster.waiting import wait_until
from tests.e2e.node.scene import wait_ledger_empty
from tests.e2e.node.view import SHOW_AND_STAY
from tests.e2e.node.workload import CORE, MEMORY, share
from tests.e2e.scheduling.expectations import NAMES, check_no_gpu_is_given_out_twice, placed, wait_agents_agree
from tests.e2e.scheduling.gangs import GROUPS, make_gang, wait_unschedulable
from tests.e2e.scheduling.steps import (
    NOT_BY_TIME,
    bound,
    check,
    create,
    delete_gangs,
    is_refused,
    wait_all,
    wait_nothing_reserved,
)
from tests.e2e.scheduling.world import GPUS, World, everybody

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(600)]

FOREIGN = "foreign"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
HALVES = 2 * GPUS
HALF = 50
"""Cores."""


@dataclass(frozen=True, slots=True)
class Both:
    """Two schedulers, one real node with an agent."""

    world: World
    foreign: Component


@pytest.fixture(scope="module")
def schedulers(cluster: Cluster, programs: Path) -> Iterator[Both]:
    with everybody(cluster, programs, real=(NODE,), hollow=(), flags=(NOT_BY_TIME,)) as world:
        foreign = scheduler_with(cluster.control_plane, FOREIGN, None)
        foreign.start()
        try:
            yield Both(world, foreign)
        finally:
            foreign.kill()


@pytest.fixture
def both(schedulers: Both) -> Iterator[Both]:
    """With no jobs, pods and gangs, in the beginning and in the end."""
    yield schedulers
    admin = schedulers.world.admin
    for item in admin.get(JOBS)["items"]:
        admin.delete(f"{JOBS}/{item['metadata']['name']}?propagationPolicy=Background")
    delete_gangs(admin, GROUPS)
    wait_ledger_empty(schedulers.world.agents[NODE])
    wait_nothing_reserved(schedulers.world)


@pytest.fixture
def world(both: Both) -> World:
    return both.world


def test_the_webhook_completes_and_checks_pods_of_other_schedulers_and_keeps_the_scheduler(world: World) -> None:
    manifest = pods.pod("volcanos", [pods.container("main", SHOW_AND_STAY, {CORE: 30})], schedulerName="volcano")
    created = world.admin.post(pods.PODS, manifest)

    assert created["spec"]["schedulerName"] == "volcano"
    assert set(created["spec"]["containers"][0]["resources"]["limits"]) == {CORE, MEMORY}
    with pytest.raises(ApiError, match="write 100 or 200"):
        create(world, [share("never", 150, 4)], schedulerName="volcano")


def test_a_gang_that_fits_is_adopted_and_the_rest_stays_available(world: World) -> None:
    gang = make_gang(world, "fits", 6, cores=HALF, scheduler=FOREIGN)
    wait_all(world, gang)
    wait_agents_agree(world, gang)
    check_no_gpu_is_given_out_twice(world)

    mine = [share(f"mine-{number}", 50, 16) for number in range(HALVES - len(gang))]
    create(world, mine)
    wait_all(world, [each.name for each in mine])
    create(world, [share("no-room", 50, 16)])
    wait_until(lambda: is_refused(world, "no-room"), "the node is full")
    check(world, [*gang, *(each.name for each in mine)], waiting=["no-room"])


def test_a_gang_too_large_leaves_nothing_behind(world: World) -> None:
    gang = make_gang(world, "large", HALVES + 1, cores=HALF, scheduler=FOREIGN)
    wait_unschedulable(world, "large")

    assert bound(world) == 0
    states = pods.states(world.admin)
    assert not [name for name in gang if any(NAMES.domain in each for each in states[name].annotations)]
    wait_ledger_empty(world.agents[NODE])
    mine = [share(f"mine-{number:02}", 50, 16) for number in range(HALVES)]
    create(world, mine)
    wait_all(world, [each.name for each in mine])
    check(world, [each.name for each in mine], waiting=gang)


def test_of_two_gangs_that_need_more_than_half_one_waits_for_the_other(world: World) -> None:
    first = make_gang(world, "first", HALVES // 2 + 1, cores=HALF, scheduler=FOREIGN)
    wait_all(world, first)
    second = make_gang(world, "second", HALVES // 2 + 1, cores=HALF, scheduler=FOREIGN)
    wait_unschedulable(world, "second")
    wait_agents_agree(world, first)
    check(world, first, waiting=second)

    pods.delete(world.admin, first)
    wait_all(world, second)
    wait_agents_agree(world, second)
    check_no_gpu_is_given_out_twice(world)


def test_both_schedulers_at_the_same_moment_never_fill_a_gpu_twice(both: Both) -> None:
    """Of 60 cores the node's sum has room for all of them and its GPUs for 4: who comes too late is told why."""
    world = both.world
    theirs = [f"theirs-{number}" for number in range(3)]
    mine = [f"mine-{number}" for number in range(3)]
    with both.foreign.process.paused(), world.kube_scheduler.process.paused():
        create(world, [share(name, 60, 16) for name in theirs], schedulerName=FOREIGN)
        create(world, [share(name, 60, 16) for name in mine])

    wait_until(lambda: _running(world) == GPUS, "every GPU has one", evidence=lambda: _all(world))
    wait_until(lambda: not _on_their_way(world), "nobody is on the way")
    running = [name for name, state in pods.states(world.admin).items() if state.is_running]
    wait_agents_agree(world, running)
    check_no_gpu_is_given_out_twice(world)
    late = [state for state in pods.states(world.admin).values() if state.phase == "Failed"]
    assert {state.reason for state in late} <= {"UnexpectedAdmissionError"}
    assert all("short of cores" in state.message for state in late), [state.message for state in late]


def test_a_pod_that_fits_the_sum_and_no_gpu_is_refused_and_made_again_until_it_fits(world: World) -> None:
    mine = [f"mine-{number}" for number in range(GPUS)]
    create(world, [share(name, 60, 16) for name in mine])
    wait_all(world, mine)
    world.admin.post(JOBS, _job("fragmented", cores=50, blocks=16))

    wait_until(lambda: _failed(world, "fragmented") >= 1, "the node has refused it")
    said = [each for each in _events(world) if each.startswith("fragmented") and "UnexpectedAdmissionError" in each]
    assert said, _events(world)
    assert "50" in said[0], said
    check_no_gpu_is_given_out_twice(world)

    pods.delete(world.admin, mine[:1])
    wait_until(lambda: _of_job(world, "fragmented", "Running"), "the job runs")
    names = _of_job(world, "fragmented", "Running")
    wait_agents_agree(world, names)
    assert placed(world, names)


def _job(name: str, *, cores: int, blocks: int) -> JsonObject:
    manifest = pods.pod(name, [pods.container("main", SHOW_AND_STAY, {CORE: cores, MEMORY: blocks})])
    spec = {**manifest["spec"], "restartPolicy": "Never", "schedulerName": FOREIGN}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 20, "template": {"spec": spec}},
    }


def _running(world: World) -> int:
    return sum(state.is_running for state in pods.states(world.admin).values())


def _on_their_way(world: World) -> list[str]:
    """Bound, and neither running nor refused."""
    return [
        name
        for name, state in pods.states(world.admin).items()
        if state.node and not state.is_running and state.phase != "Failed"
    ]


def _all(world: World) -> str:
    return "\n".join(str(state) for state in pods.states(world.admin).values())


def _failed(world: World, job: str) -> int:
    return int(world.admin.get(f"{JOBS}/{job}").get("status", {}).get("failed", 0))


def _of_job(world: World, job: str, phase: str) -> list[str]:
    items: Sequence[JsonObject] = world.admin.get(f"{pods.PODS}?labelSelector=job-name={job}")["items"]
    return [each["metadata"]["name"] for each in items if each["status"].get("phase") == phase]


def _events(world: World) -> list[str]:
    items = world.admin.get(f"/api/v1/namespaces/{pods.NAMESPACE}/events")["items"]
    return [f"{each['involvedObject'].get('name')}: {each.get('reason')}: {each.get('message')}" for each in items]
