"""Gangs of kube-scheduler (1.36, alpha) whose members have claims: all run, or none holds anything.

The scheduler is a stock one with the gates for gangs and no extender: nothing of ours is asked.
"""

from collections.abc import Iterator, Sequence

import pytest

from sandbox.cluster import pods
from sandbox.cluster.claims import CLAIMS
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.schedulers import scheduler_with
from tests.e2e.claims.scene import Scene, pod_with, serving_claims
from tests.e2e.scheduling.gangs import GROUPS, gang_is_unschedulable, group
from tests.e2e.scheduling.steps import delete_gangs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SCHEDULER = "gangs"
GPUS = 8
SHARE = {"cores": "60", "memory": "2Gi"}
"""No GPU has room for two."""


@pytest.fixture(scope="module")
def serving(cluster: Cluster) -> Iterator[Scene]:
    with serving_claims(cluster) as scene:
        scene.template("member", scene.claim_spec(SHARE))
        scheduler = scheduler_with(cluster.control_plane, SCHEDULER, None)
        scheduler.start()
        try:
            yield scene
        finally:
            scheduler.kill()


@pytest.fixture
def scene(serving: Scene) -> Iterator[Scene]:
    yield serving
    delete_gangs(serving.admin, GROUPS)
    serving.wait_all_released()


def make_gang(scene: Scene, name: str, count: int) -> list[str]:
    scene.admin.post(GROUPS, group(name, count))
    names = [f"{name}-{number}" for number in range(count)]
    add_members(scene, name, names)
    return names


def add_members(scene: Scene, gang: str, names: Sequence[str]) -> None:
    for each in names:
        pod = pod_with(each, resourceClaimTemplateName="member")
        pod["spec"] |= {"schedulerName": SCHEDULER, "schedulingGroup": {"podGroupName": gang}}
        pods.create(scene.admin, pod)


def allocated(scene: Scene) -> list[str]:
    return [
        each["metadata"]["name"] for each in scene.admin.get(CLAIMS)["items"] if "allocation" in each.get("status", {})
    ]


def test_a_gang_that_fits_runs_whole_and_each_member_has_its_share(scene: Scene) -> None:
    names = make_gang(scene, "fits", GPUS)
    pods.wait_running(scene.admin, names)
    assert scene.held() == dict.fromkeys(range(GPUS), (60, 8))


def test_a_gang_too_large_holds_nothing_and_another_one_runs(scene: Scene) -> None:
    """By the sums of cores there is room for one more."""
    large = make_gang(scene, "large", GPUS + 1)
    scene.until(lambda: gang_is_unschedulable(scene.admin, "large"), "the gang does not fit")
    assert allocated(scene) == []
    small = make_gang(scene, "small", GPUS)
    pods.wait_running(scene.admin, small)
    assert scene.held() == dict.fromkeys(range(GPUS), (60, 8))
    states = pods.states(scene.admin)
    assert not any(states[name].is_running for name in large)
