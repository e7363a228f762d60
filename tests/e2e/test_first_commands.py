"""README's commands from a clone to the first pod, exactly as they stand there, by Helm 3 and Helm 4, and back.

In: the block below "Install", the first pod of README. Out: the image in an empty registry on loopback, agent,
scheduler and pod on the cluster; after `helm uninstall` nothing of it. Programs of the reader's stand-ins: `docker` is
buildah, which builds the target with the emulated driver on a base that can be reached from here, and `helm` adds that
there is no GPU. The node has the label that GPU Feature Discovery sets.
"""

import platform
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import yaml

from sandbox.cluster import pods
from sandbox.cluster.client import ApiError
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.service_address import api_server_for_pods
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import PROFILES, REPOSITORY, EmulatedGpus
from scripts import manifests
from tests.daemonset.chart import Object
from tests.e2e.installed.images import image_builder, import_images
from tests.e2e.installed.registry import Registry, registry
from tests.e2e.installed.unpacked import MACHINES
from tests.e2e.moving.page import EMULATED, READERS, Page
from tests.e2e.node.scene import everything, wait_offered
from tests.fenced import fenced
from tests.offered import blocks_of_each
from tests.programs import helm4_program, helm_program

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(900)]

README = "../README.md"
LABEL = "nvidia.com/gpu.present"
WITHIN_S = 180
HELMS = {"Helm 3": helm_program, "Helm 4": helm4_program}
DOCKER = """#!/bin/bash
set -euo pipefail
case $1 in
    build) shift; flock {LOCK} env BUILDAH_LAYERS=true {BUILDAH} bud --isolation chroot --target emulated \\
        --build-arg BUILDPLATFORM={platform} --build-arg PYTHON_IMAGE={PYTHON_IMAGE} --platform {platform} \\
        --timestamp "$(git log -1 --format=%ct)" "$@" ;;
    push) {BUILDAH} push --tls-verify=false "$2" ;;
    *) echo "docker $1: not of the README" >&2; exit 1 ;;
esac
"""
HELM = """#!/bin/bash
case $1 in
    install) exec {helm} "$@" {values} ;;
    *) exec {helm} "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def served(
    cluster: Cluster, programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Registry, Path]]:
    """An empty registry, and a folder for the reader's programs."""
    node = f"/api/v1/nodes/{cluster.kubelet.node}"
    text = manifests.render(manifests.helm(), "--show-only=templates/scheduler/deployment.yaml")
    (kube_scheduler,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    image = readme_pod()["spec"]["containers"][0]["image"]
    import_images(cluster, kube_scheduler=(kube_scheduler["image"], programs / "kube-scheduler"), samples=[image])
    cluster.admin.merge(node, {"metadata": {"labels": {LABEL: "true"}}})
    with ExitStack() as undo:
        undo.callback(cluster.admin.merge, node, {"metadata": {"labels": {LABEL: None, "nvidia-device-enable": None}}})
        undo.enter_context(api_server_for_pods(cluster))
        yield undo.enter_context(registry(tmp_path_factory.mktemp("registry"))), tmp_path_factory.mktemp("bin")


@pytest.fixture(scope="module", params=list(HELMS))
def readme(
    request: pytest.FixtureRequest, cluster: Cluster, programs: Path, served: tuple[Registry, Path]
) -> Iterator[Page]:
    """For a reader with one of the two Helms."""
    empty, folder = served
    machines = {machine: architecture for architecture, machine in MACHINES.items()}
    architecture = f"linux/{machines[platform.machine()]}"
    _program(folder / "docker", DOCKER.format(**image_builder(request), platform=architecture))
    _program(folder / "helm", HELM.format(helm=HELMS[request.param](request), values=EMULATED))
    yield Page(
        README,
        cluster.kubelet.node,
        cluster.control_plane.admin_kubeconfig,
        empty,
        programs / "kubectl",
        folder / "helm",
        from_checkout=True,
    )
    (folder / "helm").unlink()


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def readme_pod() -> Object:
    pod: Object = yaml.safe_load(fenced(REPOSITORY / "README.md", "yaml")[0])
    return pod


def test_three_commands_lead_from_a_clone_to_the_first_pod(readme: Page, cluster: Cluster) -> None:
    (block,) = readme.blocks("Install")
    (registry, image, install) = re.split(r"^(?=docker |helm )", block, flags=re.MULTILINE)
    assert registry.strip() == READERS
    assert "docker build" in image
    assert "docker push" in image
    readme.shell(registry + image)
    began = time.monotonic()
    readme.shell(registry + install)
    pod = readme_pod()
    wait_until(partial(_created, cluster, pod), "the webhook takes the pod")
    wait_offered(cluster.admin, everything(blocks_of_each(_gpus(cluster).profile)))
    pods.wait_running(cluster.admin, [pod["metadata"]["name"]])
    assert time.monotonic() - began < WITHIN_S
    assert any(line.startswith("GPUAllocated:") for line in pods.events(cluster.admin, pod["metadata"]["name"]))


def _created(cluster: Cluster, pod: Object) -> bool:
    """A reader whose pod is refused, because nobody is there yet, types the command again."""
    try:
        pods.create(cluster.admin, pod)
    except ApiError:
        return False
    else:
        return True


def _gpus(cluster: Cluster) -> EmulatedGpus:
    return EmulatedGpus(PROFILES / "hgx-a100.json", cluster.layout.covers / "run-vcuda" / "emulated" / "state")


def test_helm_uninstall_leaves_nothing(readme: Page, cluster: Cluster) -> None:
    pods.delete_all(cluster.admin)
    readme.shell("helm uninstall vcuda -n kube-system --wait")
    wait_until(lambda: not _left(readme), "all objects are gone", evidence=lambda: str(_left(readme)))


def _left(page: Page) -> list[str]:
    """Names of objects of every kind that can be listed, which the release or its programs made."""
    kinds = "kubectl api-resources --verbs=list --output=name"
    said = page.shell(
        f"for kind in $({kinds} | grep -v '^events'); do kubectl get $kind --all-namespaces --output=name; done"
    )
    return [line for line in said.splitlines() if re.match(r"\S+/\S*vcuda", line) and not line.endswith(page.node)]


def test_gpus_of_another_device_plugin_are_refused_by_helm_install(readme: Page, cluster: Cluster) -> None:
    node = f"/api/v1/nodes/{cluster.kubelet.node}"

    def offering(count: str | None) -> None:
        amount = {"nvidia.com/gpu": count}
        cluster.admin.merge(f"{node}/status", {"status": {"capacity": amount, "allocatable": amount}})

    def refused(*values: str) -> bool:
        words = " ".join(values)
        command = f"helm install vcuda daemonset/chart -n kube-system --dry-run=server {words} 2>&1 || true"
        return "another device plugin offers its GPUs as nvidia.com/gpu" in readme.shell(command)

    offering("1")
    try:
        wait_until(refused, "Helm refuses")
        assert not refused("--set 'gpuNodes={chosen=yes}'")
        assert not refused("--set agent.enabled=false")
    finally:
        offering(None)
    wait_until(lambda: not refused(), "Helm does not refuse any more")
