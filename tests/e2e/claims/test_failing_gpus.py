"""A GPU that fails under a claim: its holder is told, in the claim and in the pod, and nobody else gets it."""

from collections.abc import Iterator

import pytest

from sandbox.cluster import pods
from sandbox.cluster.claims import CLAIMS
from sandbox.cluster.cluster import Cluster
from tests.e2e.claims.scene import Scene, pod_with, serving_claims

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture
def scene(cluster: Cluster) -> Iterator[Scene]:
    with serving_claims(cluster) as scene:
        yield scene


def test_the_claim_says_what_was_prepared_and_when_its_gpu_fails(scene: Scene) -> None:
    scene.claim("told", scene.claim_spec())
    pods.create(scene.admin, pod_with("told", resourceClaimName="told"))
    pods.wait_running(scene.admin, ["told"])

    def said() -> tuple[str, str, str]:
        devices = scene.admin.get(f"{CLAIMS}/told")["status"].get("devices") or [{"conditions": [{}]}]
        (condition,) = devices[0]["conditions"]
        return condition.get("status", ""), condition.get("reason", ""), condition.get("message", "")

    scene.until(lambda: said()[:2] == ("True", "Prepared"), "the claim's status says that it is prepared")
    assert said()[2].startswith("20 cores and 2 GiB of GPU 0 (NVIDIA A100")
    scene.agent.gpus.lose(0)
    scene.until(lambda: said()[:2] == ("False", "GPUUnhealthy"), "the claim's status says that the GPU has failed")
    scene.until(lambda: "Unhealthy" in health(scene, "told"), "the pod's status says so too")
    scene.until(lambda: "taints" in scene.devices()[0], "no new pod gets the GPU")
    scene.run("elsewhere")
    assert scene.view("elsewhere").reachable_gpus == {1}


def health(scene: Scene, pod: str) -> str:
    """What kubelet heard from the health service about the devices of the pod's containers."""
    statuses = scene.admin.get(f"{pods.PODS}/{pod}")["status"]["containerStatuses"]
    return str(statuses[0].get("allocatedResourcesStatus"))
