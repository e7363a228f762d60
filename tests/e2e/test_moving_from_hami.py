"""A node of HAMi moves to vcuda and back, by the commands of docs/how-to/from-hami.md.

HAMi itself is a stand-in (moving/hami, moving/stand_in.py), installed by Helm: it changes new pods, registers, binds
and annotates as HAMi does. Its webhook stays until the end. The tests are one story, in their order.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.policies import WEBHOOKS
from sandbox.cluster.waiting import wait_until
from tests.daemonset.chart import Object
from tests.e2e.installed.published import published
from tests.e2e.moving.scene import (
    DEPLOYMENTS,
    PROGRAM,
    STAND_INS,
    SYSTEM,
    Scene,
    deployment,
    exists,
    moving,
    uuids,
)
from tests.e2e.node.workload import CORE, MEMORY
from tests.programs import helm_program

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(900)]

COUNT = "nvidia.com/gpu"
SPLIT = 10
HAMI, VCUDA = "hami-scheduler", "vcuda-scheduler"
LIMITS = {"nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 20, "nvidia.com/priority": 1}
WEB: Object = pods.pod(
    "web", [pods.container("main", "sleep 10000", LIMITS), pods.container("side", "sleep 10000", {})]
)
PLUGIN = f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/hami-device-plugin"
WEBHOOK = f"{WEBHOOKS}/hami-webhook"
REGISTERED = "hami.io/node-nvidia-register"


@pytest.fixture(scope="module")
def scene(
    cluster: Cluster, programs: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """HAMi serves the node, and a pod in its words runs on it."""
    folder = tmp_path_factory.mktemp("old")
    helm = folder / "helm"
    helm.symlink_to(helm_program(request))
    with (
        published(cluster, programs, request, folder) as served,
        moving(cluster, served, "from-hami.md", kubectl=programs / "kubectl", helm=helm) as scene,
    ):
        node = f"/api/v1/nodes/{scene.node}"
        scene.admin.merge(node, {"metadata": {"labels": {"gpu": "on"}}})
        gpus = r"\,".join(uuids())
        values = f"--set image={served.image}:{served.version} --set 'uuids={gpus}' --set-file script={PROGRAM}"
        try:
            scene.page.shell(f"helm install hami {STAND_INS / 'hami'} -n {SYSTEM} {values}")
            scene.wait_allocatable(COUNT, SPLIT * len(uuids()))
            wait_until_answered(scene, HAMI)
            scene.admin.post(DEPLOYMENTS, deployment("web", WEB))
            yield scene
        finally:
            scene.page.shell(f"helm uninstall hami -n {SYSTEM} --ignore-not-found")
            labels = dict.fromkeys(("gpu", "nvidia-device-enable"))
            scene.admin.merge(node, {"metadata": {"labels": labels, "annotations": {REGISTERED: None}}})


def wait_until_answered(scene: Scene, by: str) -> None:
    """Webhooks may fail, and then a pod is created as it is. The last that answers names its scheduler."""
    labels = {"tencent.com/vcuda-webhook": "ignore"} if by == HAMI else {}
    tried = {**WEB, "metadata": {"name": "tried", "labels": labels}}

    def changed() -> bool:
        return scheduler_of(scene.admin.post(f"{pods.PODS}?dryRun=All", tried)) == by

    wait_until(changed, f"a new pod is for {by}")


def make_again(scene: Scene, by: str) -> None:
    """A drain may evict webhooks before the last pod was made again: that pod is deleted, as the page says."""
    wait_until_answered(scene, by)
    for each in scene.pods_of("app=web"):
        if scheduler_of(each) != by:
            pods.delete(scene.admin, [each["metadata"]["name"]])


def scheduler_of(pod: Object) -> str:
    return str(pod["spec"]["schedulerName"])


def variables(pod: Object) -> dict[str, dict[str, str]]:
    """Those of each container, by its name."""
    return {
        each["name"]: {one["name"]: one["value"] for one in each.get("env", [])} for each in pod["spec"]["containers"]
    }


CHANGED_BY_HAMI = {"main": {"CUDA_TASK_PRIORITY": "1"}, "side": {"NVIDIA_VISIBLE_DEVICES": "none"}}


@pytest.fixture(scope="module")
def old(scene: Scene) -> Object:
    """The pod, as HAMi started it."""
    pod = scene.wait_one_runs("app=web")
    assert pod["metadata"]["annotations"]["hami.io/bind-phase"] == "success"
    return pod


def test_vcuda_is_installed_beside_it_and_leaves_hamis_pods_alone(scene: Scene, old: Object) -> None:
    said = scene.page.run("Before you start")
    assert f"{scene.node}" in said
    assert str(SPLIT * len(uuids())) in said
    scene.page.run("Install vcuda beside HAMi")
    assert scene.pods_of("app.kubernetes.io/name=vcuda-agent", SYSTEM) == []
    assert scene.wait_one_runs("app=web")["metadata"]["uid"] == old["metadata"]["uid"]
    pods.create(scene.admin, {**WEB, "metadata": {"name": "later"}})
    pods.wait_running(scene.admin, ["later"])
    later = scene.admin.get(f"{pods.PODS}/later")
    assert scheduler_of(later) == HAMI
    assert variables(later) == CHANGED_BY_HAMI
    limits = {name: str(count) for name, count in {COUNT: 1, **LIMITS}.items()}
    assert later["spec"]["containers"][0]["resources"]["limits"] == limits
    pods.delete(scene.admin, ["later"])
    pods.wait_gone(scene.admin, ["later"])


def moved(scene: Scene) -> None:
    """What the page says of a node that has moved."""
    wait_until(lambda: scene.pods_of("app.kubernetes.io/component=hami-device-plugin", SYSTEM) == [], "HAMi left")
    scene.wait_allocatable(CORE, 100 * len(uuids()))
    scene.wait_allocatable(COUNT, 0)
    assert REGISTERED not in scene.node_object()["metadata"]["annotations"]


def test_a_node_moves_and_its_pods_are_placed_by_vcuda_when_it_may(scene: Scene, old: Object) -> None:
    scene.page.run("Move a node")
    moved(scene)
    scene.page.run("Let vcuda place the pods")
    wait_until_answered(scene, HAMI)
    make_again(scene, VCUDA)  # it waits for HAMi's scheduler
    pod = scene.wait_one_runs("app=web", other_than=old["metadata"]["uid"])
    assert scheduler_of(pod) == VCUDA
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {CORE: "20", MEMORY: "16"}, "4096 MiB"
    assert variables(pod) == CHANGED_BY_HAMI, "HAMi's webhook was called first"


def test_the_way_back_and_forth_and_nothing_of_hami_is_left(scene: Scene, old: Object) -> None:
    cluster, node, gone = scene.page.blocks("The way back")
    scene.page.shell(cluster)
    scene.page.shell(node)
    scene.wait_allocatable(COUNT, SPLIT * len(uuids()))
    wait_until(lambda: scene.pods_of("app.kubernetes.io/name=vcuda-agent", SYSTEM) == [], "the agent left")
    make_again(scene, HAMI)
    pod = scene.wait_one_runs("app=web")
    assert pod["metadata"]["annotations"]["hami.io/bind-phase"] == "success"
    scene.page.shell(gone)

    scene.page.run("Install vcuda beside HAMi")
    scene.page.run("Let vcuda place the pods")
    scene.page.run("Move a node")
    moved(scene)
    make_again(scene, VCUDA)
    new = scene.wait_one_runs("app=web", other_than=pod["metadata"]["uid"])
    assert new["spec"]["schedulerName"] == VCUDA
    scene.page.run("When all nodes have moved")
    assert not exists(scene.admin, PLUGIN)
    assert not exists(scene.admin, WEBHOOK)
    checks = {each["check"]: each for each in scene.view("doctor")["checks"]}
    assert {name: each for name, each in checks.items() if each["outcome"] not in ("ok", "skipped")} == {}
