"""Twenty claims at once, with kills in the middle: all run, nothing is over-committed, and nothing is left over."""

import time
from collections.abc import Iterator

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from tests.e2e.claims.scene import Scene, serving_claims
from tests.e2e.node.scene import scheduler_paused

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAMES = [f"burst-{number}" for number in range(20)]


@pytest.fixture
def scene(cluster: Cluster) -> Iterator[Scene]:
    with serving_claims(cluster, four=True) as scene:
        yield scene


def test_a_burst_fills_the_gpus_exactly(scene: Scene) -> None:
    burst(scene)
    pods.wait_running(scene.admin, NAMES)
    assert scene.held() == dict.fromkeys(range(4), (100, 40))


def test_the_agent_killed_in_the_middle_of_a_burst_loses_no_claim(scene: Scene) -> None:
    burst(scene)
    wait_some(scene, 8)
    scene.agent.process.kill()
    time.sleep(1)
    scene.agent.start()
    pods.wait_running(scene.admin, NAMES)
    assert scene.held() == dict.fromkeys(range(4), (100, 40))


def test_kubelet_killed_in_the_middle_of_a_burst_loses_no_claim(scene: Scene) -> None:
    burst(scene)
    wait_some(scene, 8)
    scene.cluster.kubelet.kill()
    scene.cluster.kubelet.start()
    pods.wait_running(scene.admin, NAMES)
    assert scene.held() == dict.fromkeys(range(4), (100, 40))


def burst(scene: Scene) -> None:
    with scheduler_paused(scene.cluster):
        scene.create(*NAMES)


def wait_some(scene: Scene, count: int) -> None:
    def running() -> bool:
        return sum(each.is_running for each in pods.states(scene.admin).values()) >= count

    scene.until(running, f"{count} pods run")
