"""A node of gpu-manager moves to vcuda and back, by the commands of docs/how-to/from-gpu-manager.md.

gpu-manager itself is a stand-in (moving/stand_in.py): it registers, answers and annotates as gpu-manager does.
The tests are one story, in their order.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.daemonset.chart import Object
from tests.e2e.installed.published import published
from tests.e2e.moving.scene import (
    DEPLOYMENTS,
    PROFILE,
    PROGRAM,
    STAND_INS,
    SYSTEM,
    Scene,
    applied,
    deployment,
    exists,
    moving,
    uuids,
)
from tests.e2e.node.workload import CORE, MEMORY
from tests.offered import blocks_of_each
from tests.programs import helm_program

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(900)]

LABEL = "nvidia-device-enable"
DAEMON_SET = f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/gpu-manager-daemonset"
CORES = 100 * len(uuids())
UNTIL_ENDED = "until [ -e /tmp/end ]; do sleep 1; done"
WEB: Object = pods.pod("web", [pods.container("main", UNTIL_ENDED, {CORE: 20, MEMORY: 8})])
ALONE: Object = pods.pod("alone", [pods.container("main", UNTIL_ENDED, {CORE: 30, MEMORY: 16})])


def gpu_manager(image: str) -> list[Object]:
    """Its objects, with the stand-in's program and the emulated machine's GPUs."""
    objects = list(yaml.safe_load_all((STAND_INS / "gpu-manager.yaml").read_text()))
    found: dict[str, Any] = {each["kind"]: each for each in objects}
    found["ConfigMap"]["data"] = {PROGRAM.name: PROGRAM.read_text()}
    (container,) = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    container["image"] = image
    blocks = sum(blocks_of_each(PROFILE))
    container["env"] += [{"name": "GPU_UUIDS", "value": ",".join(uuids())}, {"name": "BLOCKS", "value": str(blocks)}]
    return objects


@pytest.fixture(scope="module")
def scene(
    cluster: Cluster,
    programs: Path,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """gpu-manager serves the node, and two pods run on it."""
    folder = tmp_path_factory.mktemp("old")
    helm = folder / "helm"
    helm.symlink_to(helm_program(request))
    page = "from-gpu-manager.md"
    with (
        published(cluster, programs, request, folder) as served,
        moving(cluster, served, page, kubectl=programs / "kubectl", helm=helm) as scene,
    ):
        scene.admin.merge(f"/api/v1/nodes/{scene.node}", {"metadata": {"labels": {LABEL: "enable"}}})
        with applied(scene, gpu_manager(f"{served.image}:{served.version}"), folder):
            scene.wait_allocatable(CORE, CORES)
            scene.admin.post(DEPLOYMENTS, deployment("web", WEB))
            pods.create(scene.admin, ALONE)
            yield scene


@pytest.fixture(scope="module")
def old(scene: Scene) -> dict[str, Object]:
    """The two pods, as gpu-manager started them."""
    pods.wait_running(scene.admin, ["alone"])
    found = {"web": scene.wait_one_runs("app=web"), "alone": scene.admin.get(f"{pods.PODS}/alone")}
    for pod in found.values():
        assert pod["metadata"]["annotations"]["tencent.com/gpu-assigned"] == "true"
        assert pod["spec"]["schedulerName"] == "default-scheduler"
    return found


def restarts(pod: Object) -> int:
    counts: list[int] = [each["restartCount"] for each in pod["status"]["containerStatuses"]]
    return sum(counts)


def test_vcuda_is_installed_beside_it_and_changes_nothing_for_running_pods(
    scene: Scene, old: dict[str, Object]
) -> None:
    said = scene.page.run("Before you start")
    assert f"{scene.node}" in said
    assert str(CORES) in said
    scene.page.run("Install vcuda beside it")
    assert scene.pods_of("app.kubernetes.io/name=vcuda-agent", SYSTEM) == []
    assert len(scene.pods_of("name=gpu-manager-ds", SYSTEM)) == 1
    assert scene.wait_one_runs("app=web")["metadata"]["uid"] == old["web"]["metadata"]["uid"]


def test_new_pods_wait_until_a_node_has_moved(scene: Scene, old: dict[str, Object]) -> None:
    pods.create(scene.admin, pods.pod("new", [pods.container("main", "sleep 10000", {CORE: 60, MEMORY: 8})]))
    assert scene.admin.get(f"{pods.PODS}/new")["spec"]["schedulerName"] == "vcuda-scheduler"
    reason = wait_until(partial(_waits_for, scene, "new"), "the new pod waits")
    assert "1 node has no vcuda GPU inventory" in reason


def _waits_for(scene: Scene, name: str) -> str:
    """Why it is not scheduled."""
    conditions = scene.admin.get(f"{pods.PODS}/{name}")["status"].get("conditions", [])
    found = [each.get("message", "") for each in conditions if each["type"] == "PodScheduled"]
    return str(found[0]) if found else ""


def test_a_node_that_cannot_be_drained_moves_with_its_pods(scene: Scene, old: dict[str, Object]) -> None:
    _, label, rollout, _ = scene.page.blocks("Move a node")[0].splitlines()
    scene.page.shell(f"{label}\n{rollout}")
    wait_until(lambda: scene.pods_of("name=gpu-manager-ds", SYSTEM) == [], "gpu-manager left")
    pods.wait_running(scene.admin, ["new"])
    for name, pod in old.items():
        now = scene.admin.get(f"{pods.PODS}/{pod['metadata']['name']}")
        assert (now["metadata"]["uid"], restarts(now)) == (pod["metadata"]["uid"], 0), name
    held = {row["pod"]: row["stage"] for row in scene.view("pods", "-A")["items"]}
    assert held == dict.fromkeys(("alone", "new", old["web"]["metadata"]["name"]), "bound")
    assert taken(scene) == [(50, 24), (60, 8), *[(0, 0)] * (len(uuids()) - 2)], "what runs is counted, nothing twice"


def taken(scene: Scene) -> list[tuple[int, int]]:
    """Cores and blocks of each GPU that pods hold, as the scheduler counts them."""
    gpus = scene.view("node", scene.node)["gpus"]
    return [
        (sum(each["cores"] for each in gpu["holders"]), sum(each["blocks"] for each in gpu["holders"])) for gpu in gpus
    ]


def test_a_container_that_ends_starts_again_with_vcudas_library(scene: Scene, old: dict[str, Object]) -> None:
    for pod in old.values():
        assert "libcuda-control.so" in libraries(scene, pod)
        scene.page.shell(f"kubectl exec {pod['metadata']['name']} -- touch /tmp/end")
    for pod in old.values():
        name = pod["metadata"]["name"]
        wait_until(partial(_runs_again, scene, name), f"{name} runs again", evidence=partial(_told, scene, name))
        assert scene.admin.get(f"{pods.PODS}/{name}")["metadata"]["uid"] == pod["metadata"]["uid"]
        assert "libvcuda.so.1" in libraries(scene, pod)
        assert "vcuda.config" in scene.page.shell(f"kubectl exec {name} -- ls /etc/vcuda")


def _runs_again(scene: Scene, name: str) -> bool:
    pod = scene.admin.get(f"{pods.PODS}/{name}")
    return restarts(pod) == 1 and all("running" in each["state"] for each in pod["status"]["containerStatuses"])


def _told(scene: Scene, name: str) -> str:
    return "\n".join(pods.events(scene.admin, name))


def libraries(scene: Scene, pod: Object) -> str:
    """That its container has mounted."""
    return scene.page.shell(f"kubectl exec {pod['metadata']['name']} -- ls /usr/local/nvidia/lib64")


def test_the_node_goes_back_and_gpu_manager_serves_pods_again(scene: Scene, old: dict[str, Object]) -> None:
    pods.delete(scene.admin, ["alone", "new"])
    pods.wait_gone(scene.admin, ["alone", "new"])
    node, cluster = scene.page.blocks("The way back")
    scene.page.shell(node)
    wait_until(lambda: scene.pods_of("app.kubernetes.io/name=vcuda-agent", SYSTEM) == [], "the agent left")
    scene.page.shell(cluster)
    waiting = {each["metadata"]["uid"] for each in scene.pods_of("app=web")}
    for each in scene.pods_of("app=web"):
        pods.delete(scene.admin, [each["metadata"]["name"]])
    wait_until(lambda: {each["metadata"]["uid"] for each in scene.pods_of("app=web")} - waiting, "another one is made")
    pod = scene.wait_one_runs("app=web")
    assert pod["metadata"]["annotations"]["tencent.com/gpu-assigned"] == "true"
    assert pod["spec"]["schedulerName"] == "default-scheduler"


def test_a_drained_node_moves_and_nothing_of_gpu_manager_is_left(scene: Scene, old: dict[str, Object]) -> None:
    before = scene.wait_one_runs("app=web")["metadata"]["uid"]
    scene.page.run("Install vcuda beside it")
    scene.page.run("Move a node")
    pod = scene.wait_one_runs("app=web", other_than=before)
    assert pod["spec"]["schedulerName"] == "vcuda-scheduler"
    assert scene.allocatable(CORE) == CORES
    scene.page.run("When all nodes have moved")
    assert not exists(scene.admin, DAEMON_SET)
    checks = {each["check"]: each for each in scene.view("doctor")["checks"]}
    wrong = {name: each for name, each in checks.items() if each["outcome"] not in ("ok", "skipped")}
    assert wrong == {}
