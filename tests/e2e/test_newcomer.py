"""What a newcomer does, from the README: the image of the Dockerfile, one `helm install`, his pods, and away again.

Everything of ours runs where it will run for him: in the chart's own pods, started by the real kubelet and containerd
from an image that the Dockerfile gave, under the chart's accounts. What differs: images come into containerd by import,
because there is no registry; the GPUs are emulated (`agent.driver.from=emulated`); what kubectl would send is sent here.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from deviceplugin.model.annotation_names import AnnotationNames
from scripts import manifests
from tests.daemonset.chart import Object, helm_program
from tests.daemonset.manifests import documents
from tests.e2e.cluster import pods
from tests.e2e.cluster.client import ApiError
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.service_address import api_server_for_pods
from tests.e2e.cluster.waiting import wait_until
from tests.e2e.installed.audit import asked
from tests.e2e.installed.images import import_images, vcuda_archive
from tests.e2e.installed.release import Release, released
from tests.e2e.node.agent import PROGRAM
from tests.e2e.node.greedy import GO, GreedyPod, import_image
from tests.e2e.node.scene import everything, offered, wait_offered
from tests.e2e.node.workload import CORE, GpuContainer
from tests.fakes.emulated_gpus import PROFILES, REPOSITORY, EmulatedGpus

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600, func_only=True)]

EMULATED = Path("/run/vcuda/emulated")
NAMES = AnnotationNames()
PLAIN: Object = pods.pod("plain", [pods.container("c", "sleep 1000")])


def readme_pod() -> Object:
    """The one YAML document of the README."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    pod: Object = yaml.safe_load(text)
    return pod


SAMPLES: dict[str, Object] = {
    pod["metadata"]["name"]: pod
    for pod in (readme_pod(), *documents("sample-pod.yaml"), *documents("sample-pod-hami.yaml"))
}


def image_of(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["image"])


@pytest.fixture(scope="module")
def release(cluster: Cluster, programs: Path, request: pytest.FixtureRequest) -> Iterator[Release]:
    helm, archive = helm_program(request), vcuda_archive(request)
    text = manifests.render(helm, "--show-only=templates/scheduler/deployment.yaml")
    (kube_scheduler,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    import_images(
        cluster,
        archive,
        kube_scheduler=(kube_scheduler["image"], programs / "kube-scheduler"),
        samples={image_of(pod) for pod in SAMPLES.values()},
    )
    with ExitStack() as undo:
        undo.callback(pods.delete_all, cluster.admin)
        undo.enter_context(api_server_for_pods(cluster))
        installed = undo.enter_context(released(cluster, helm))
        installed.wait_rolled_out()
        gpus = EmulatedGpus(PROFILES / "hgx-a100.json", _state(cluster))
        wait_offered(cluster.admin, everything(gpus.blocks_of_each()))
        undo.callback(pods.delete_all, cluster.admin)  # while the agent lives
        yield installed


def _state(cluster: Cluster) -> Path:
    """The emulated driver's, as this machine sees the node's folder."""
    return cluster.layout.covers / "run-vcuda" / EMULATED.name / "state"


def test_one_command_brings_everything_up_and_nothing_had_to_be_tried_twice(release: Release) -> None:
    assert len(release.pods("vcuda-scheduler")) == 2, "one node takes both replicas"
    assert release.restarts("vcuda-agent") == {"device-nodes": 0, "agent": 0}, release.evidence()
    assert release.restarts("vcuda-scheduler") == {"extender": 0, "kube-scheduler": 0}, release.evidence()


@pytest.fixture(scope="module")
def running(release: Release) -> Release:
    for pod in SAMPLES.values():
        pods.create(release.admin, pod)
    pods.wait_running(release.admin, SAMPLES, seconds=120)
    return release


def test_the_pods_of_readme_and_samples_run_and_hold_what_their_annotations_say(running: Release) -> None:
    for name in SAMPLES:
        pod = running.admin.get(f"{pods.PODS}/{name}")
        annotations = pod["metadata"]["annotations"]
        assert pod["spec"]["schedulerName"] == "vcuda-scheduler"
        assert annotations[NAMES.predicate_node] == running.cluster.kubelet.node
        assert annotations[NAMES.gpu_assigned] == "true", "the agent has carried it out"
        assert annotations[NAMES.allocation]
        assert pod["spec"]["containers"][0]["resources"]["limits"][CORE] == "20"
        assert any(line.startswith("GPUAllocated:") for line in pods.events(running.admin, name)), "describe says it"
