"""Both ways to ask on one node, split by GPU: one ledger, and no GPU is given out twice."""

from collections.abc import Iterator

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from tests.e2e.claims.scene import Scene, serving_claims
from tests.e2e.node.scene import Offer, wait_offered
from tests.e2e.node.workload import WHOLE, share

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture
def scene(cluster: Cluster) -> Iterator[Scene]:
    with serving_claims(cluster, minors=(6, 7)) as scene:
        yield scene


def test_claims_get_their_gpus_and_the_device_plugin_the_others(scene: Scene) -> None:
    assert [each["name"] for each in scene.devices()] == ["gpu-6", "gpu-7"]
    blocks = scene.agent.usage().gpus[0].blocks
    wait_offered(scene.admin, Offer(6 * WHOLE, 6 * blocks))
    asked = [share(f"plugin-{number}", 50, 8) for number in range(4)]
    for pod in asked:
        pods.create(scene.admin, pod.manifest())
    scene.run(*(f"claim-{number}" for number in range(6)))
    pods.wait_running(scene.admin, [pod.name for pod in asked])
    held = scene.held()
    assert sum(cores for cores, _ in held.values()) == 4 * 50 + 6 * 20
    assert (held[6], held[7]) == ((100, 40), (20, 8))
    assert {each.source for each in scene.agent.usage().containers} <= {"pods", "podresources", "claim"}
    for pod in asked:
        assert scene.view(pod.name).reachable_gpus.isdisjoint({6, 7})


def test_a_node_changes_from_one_way_to_the_other_under_running_pods(scene: Scene) -> None:
    """Containers keep what they have; what they leave of a GPU is offered."""
    pods.create(scene.admin, share("plugin", 50, 8).manifest())
    pods.wait_running(scene.admin, ["plugin"])
    (gpu,) = scene.view("plugin").reachable_gpus
    scene.run("claim")
    scene.agent.process.stop()
    command = [each for each in scene.agent.process.command if not each.startswith("--dra-gpus")]
    scene.agent.process.command = command
    scene.agent.start()
    scene.until(lambda: len(scene.devices()) == 8, "all GPUs are offered to claims")
    left = {each["name"]: each["capacity"]["cores"]["value"] for each in scene.devices()}
    assert left == {f"gpu-{minor}": "50" if minor == gpu else "100" for minor in range(8)}
    pods.delete(scene.admin, ["plugin"])
    scene.until(lambda: scene.devices()[gpu]["capacity"]["cores"]["value"] == "100", "the pod's part is offered too")
    assert scene.held()[6] == (20, 8)
