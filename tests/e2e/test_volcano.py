"""The real Volcano asks vcuda about each GPU: gangs of mixed sizes, gangs too large, queues, evictions, a death.

Volcano's scheduler and controllers with the lines of docs/volcano.md, over one real node with four GPUs. What it binds,
the agent carries out exactly.
"""

import contextlib
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from sandbox.cluster import pods
from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.control_plane import ControlPlane
from sandbox.cluster.kubeconfig import write_kubeconfig
from sandbox.cluster.kubelet import NODE
from sandbox.cluster.policies import ADMISSION_PATHS, POLICIES, wait_until_in_force
from sandbox.cluster.processes import Process, free_ports
from sandbox.cluster.volcano import GROUPS, JOBS, QUEUES, Volcano, volcano_running
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY
from scripts import manifests
from tests.e2e.admission.requests import as_account
from tests.e2e.installed.kubectl import Kubectl
from tests.e2e.node.scene import wait_ledger_empty
from tests.e2e.node.view import SHOW_AND_STAY
from tests.e2e.node.workload import CORE, MEMORY, share
from tests.e2e.scheduling.expectations import NAMES, check_no_gpu_is_given_out_twice, wait_agents_agree
from tests.e2e.scheduling.installation import PROGRAM, RBAC
from tests.e2e.scheduling.steps import bound, create, wait_all, wait_nothing_reserved
from tests.e2e.scheduling.world import GPUS, World, everybody
from tests.fenced import fenced

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(600)]

NAMESPACE, ACCOUNT = "volcano-system", "volcano-scheduler"
_NAMESPACES = "/api/v1/namespaces"
_PATHS = {
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{NAMESPACE}/rolebindings",
    **ADMISSION_PATHS,
}


@dataclass(frozen=True, slots=True)
class Beside:
    """`port` is the one that Volcano's scheduler asks."""

    process: Process
    port: int


@contextmanager
def beside_volcano(plane: ControlPlane, folder: Path, *flags: str) -> Iterator[Beside]:
    """`flags` come after the chart's. The process is the caller's to start, when Volcano runs."""
    rendered = manifests.by_template(manifests.render(manifests.helm(), "--set=volcano.enabled=true"))
    port, secure = free_ports(2)
    with ExitStack() as undo:
        _make(plane.admin, _NAMESPACES, {"metadata": {"name": NAMESPACE}}, undo)
        accounts = f"{_NAMESPACES}/{NAMESPACE}/serviceaccounts"
        _make(plane.admin, accounts, {"metadata": {"name": ACCOUNT}}, undo)
        for item in yaml.safe_load_all(rendered["volcano/rbac.yaml"]):
            _make(plane.admin, _PATHS[item["kind"]], item, undo)
        for item in yaml.safe_load_all(rendered["scheduler/policy.yaml"]):
            if item["kind"] == "ValidatingAdmissionPolicy":
                plane.admin.merge(f"{POLICIES}/{item['metadata']['name']}", {"spec": item["spec"]})
        wait_until_in_force(plane.admin)
        token = plane.admin.post(f"{accounts}/{ACCOUNT}/token", {"spec": {"expirationSeconds": 7200}})
        kubeconfig = write_kubeconfig(
            folder / "beside.kubeconfig",
            server=plane.server,
            ca=plane.files.ca.certificate,
            identity=str(token["status"]["token"]),
        )
        here = (
            f"--kubeconfig={kubeconfig}",
            f"--namespace={NAMESPACE}",
            f"--identity={socket.gethostname()}",
            "--listen-addr=127.0.0.1",
            f"--listen-port={secure}",
            f"--loopback-port={port}",
            "--drain=0s",
            "--log-level=debug",
        )
        command = [str(PROGRAM), *_arguments(rendered["volcano/configmap.yaml"]), *here, *flags]
        log = plane.files.layout.logs / "vcuda-beside-volcano.log"
        process = Process("vcuda beside Volcano", plane.files.cgroup.joining(command), log)
        undo.callback(process.stop)
        yield Beside(process, port)


def patch_of(text: str) -> str:
    """What the page tells to apply, from the chart's ConfigMap."""
    return str(yaml.safe_load(text)["data"]["deployment-patch.yaml"])


def _arguments(text: str) -> list[str]:
    """Of the container that the chart's patch adds."""
    (container,) = yaml.safe_load(patch_of(text))["spec"]["template"]["spec"]["initContainers"]
    return [str(each) for each in container["args"]]


def _make(admin: Client, path: str, body: JsonObject, undo: ExitStack) -> None:
    admin.post(path, body)
    undo.callback(_remove, admin, f"{path}/{body['metadata']['name']}")


def _remove(admin: Client, path: str) -> None:
    with contextlib.suppress(ApiError):
        admin.delete(path)


BLOCKS = 16
RESERVATION = 20
"""Seconds; longer than Volcano takes from a choice to its Binding."""
AGENT_FLAGS = ("--volcano-scheduler=volcano",)
"""As the chart gives them with `volcano.enabled`."""

PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def configuration(port: int) -> str:
    """volcano-scheduler.conf of docs/volcano.md, with this test's port."""
    blocks = fenced(REPOSITORY / "docs" / "volcano.md", "yaml")
    (found,) = (each for each in blocks if "extender.urlPrefix" in each)
    return found.replace("127.0.0.1:8180", f"127.0.0.1:{port}")


@dataclass(frozen=True, slots=True)
class Scene:
    """The node, our scheduler, Volcano, and our container beside that."""

    world: World
    volcano: Volcano
    beside: Beside

    def job(self, name: str, *sizes: int, queue: str = "default", priority: str = "") -> list[str]:
        """A gang with one member of each size, in cores; answers the names of the pods."""
        tasks = [_task(f"w{number}", cores) for number, cores in enumerate(sizes)]
        spec: JsonObject = {"schedulerName": "volcano", "queue": queue, "minAvailable": len(sizes), "tasks": tasks}
        if priority:
            spec["priorityClassName"] = priority
        self.world.admin.post(
            JOBS, {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
        )
        return [f"{name}-w{number}-0" for number in range(len(sizes))]

    def end(self, name: str) -> None:
        self.world.admin.delete(f"{JOBS}/{name}?propagationPolicy=Background")

    def run(self, names: Sequence[str]) -> None:
        def running() -> bool:
            states = pods.states(self.world.admin)
            return all(name in states and states[name].is_running for name in names)

        wait_until(running, f"{', '.join(names)} run", evidence=self.evidence)

    def wait_tried(self, job: str) -> None:
        """Volcano has found no room for the gang."""

        def tried() -> bool:
            groups = self.world.admin.get(GROUPS)["items"]
            mine = [each for each in groups if each["metadata"]["name"].startswith(f"{job}-")]
            conditions = [one for each in mine for one in each.get("status", {}).get("conditions", [])]
            return any(each["type"] == "Unschedulable" and each["status"] == "True" for each in conditions)

        wait_until(tried, f"Volcano has tried {job}", evidence=self.evidence)

    def evidence(self) -> str:
        states = [str(each) for each in pods.states(self.world.admin).values()]
        return f"{states}\n{self.beside.process.log_tail()}\n{self.volcano.evidence()}"


def _task(name: str, cores: int) -> JsonObject:
    limits = {CORE: cores} if cores >= 100 else {CORE: cores, MEMORY: BLOCKS}
    container = pods.container("main", SHOW_AND_STAY, limits)
    template = {"spec": {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 1}}
    return {"name": name, "replicas": 1, "template": template}


@pytest.fixture(scope="module")
def serving(cluster: Cluster, programs: Path, volcano: Path) -> Iterator[Scene]:
    folder = cluster.layout.root / "volcano"
    folder.mkdir()
    plane = cluster.control_plane
    elected = ("--leader-elect=true", f"--leader-elect-resource-namespace={NAMESPACE}")
    try:
        with (
            everybody(cluster, programs, real=(NODE,), hollow=(), agent_flags=AGENT_FLAGS) as world,
            beside_volcano(plane, folder, f"--reservation-time={RESERVATION}s") as beside,
        ):
            beside.process.start()
            with volcano_running(plane, volcano, folder, configuration(beside.port), *elected) as running:
                yield Scene(world, running, beside)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def scene(serving: Scene) -> Iterator[Scene]:
    """Without jobs and pods, in the beginning and in the end."""
    yield serving
    admin = serving.world.admin
    for item in admin.get(JOBS)["items"]:
        admin.delete(f"{JOBS}/{item['metadata']['name']}?propagationPolicy=Background")
    wait_until(lambda: not admin.get(JOBS)["items"], "the jobs are gone", evidence=serving.evidence)
    pods.delete_all(admin)
    wait_ledger_empty(serving.world.agents[NODE])
    wait_nothing_reserved(serving.world)


def test_a_mixed_gang_fills_every_gpu(scene: Scene) -> None:
    """By sums, Volcano could put two of 40 on one GPU and have no room for one of 60."""
    gang = scene.job("mixed", *[60, 40] * GPUS)
    scene.run(gang)
    wait_agents_agree(scene.world, gang)
    check_no_gpu_is_given_out_twice(scene.world)
    gpus = scene.world.agents[NODE].usage().gpus
    assert [each.cores_allocated for each in gpus] == [100] * GPUS


def test_a_gang_that_fits_by_sums_only_is_not_bound_and_keeps_nothing_from_others(scene: Scene) -> None:
    gang = scene.job("sums", *[60] * (GPUS + 1))
    scene.wait_tried("sums")
    assert bound(scene.world) == 0
    others = [share(f"other-{number}", 100, 0) for number in range(GPUS)]
    create(scene.world, others)
    wait_all(scene.world, [each.name for each in others])
    states = pods.states(scene.world.admin)
    assert not [name for name in gang if states[name].node]


def test_a_gang_runs_when_another_one_has_ended(scene: Scene) -> None:
    first = scene.job("first", *[60] * GPUS)
    scene.run(first)
    second = scene.job("second", *[50] * GPUS)
    scene.wait_tried("second")
    scene.end("first")
    scene.run(second)
    wait_agents_agree(scene.world, second)
    assert "gpus_not_promised" not in scene.world.agents[NODE].log()


def test_nobody_binds_with_annotations_of_ours_nor_does_volcanos_account(scene: Scene) -> None:
    """A copy of another pod's, and any for a pod of its own: Volcano copies what it finds."""
    waits, *_ = scene.job("waits", *[60] * (GPUS + 1))
    scene.wait_tried("waits")
    path = f"{pods.PODS}/{waits}"
    metadata = {"name": waits, "annotations": {NAMES.allocation: "{}"}}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": NODE}}
    account = as_account(scene.world.admin, ACCOUNT, NAMESPACE)
    for client in (scene.world.admin, account):
        with pytest.raises(ApiError, match="is written by vcuda alone"):
            client.post(f"{path}/binding?dryRun=All", binding)
    assert not any(map(NAMES.is_machine_written, scene.world.admin.get(path)["metadata"]["annotations"]))


def test_volcano_and_kube_scheduler_share_the_gpus(scene: Scene) -> None:
    gang = scene.job("gang", *[70] * GPUS)
    scene.run(gang)
    ours = [share(f"ours-{number}", 30, BLOCKS) for number in range(GPUS)]
    create(scene.world, ours)
    wait_all(scene.world, [each.name for each in ours])
    wait_agents_agree(scene.world, [*gang, *(each.name for each in ours)])
    check_no_gpu_is_given_out_twice(scene.world)


def test_a_queue_has_its_limit(scene: Scene) -> None:
    kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    queue = {**kind, "metadata": {"name": "small"}, "spec": {"weight": 1, "capability": {CORE: "100"}}}
    scene.world.admin.post(QUEUES, queue)
    try:
        scene.run(scene.job("within", 60, queue="small"))
        over = scene.job("over", 60, queue="small")
        free = scene.job("free", 60)
        scene.run(free)
        states = pods.states(scene.world.admin)
        assert not any(states[name].node for name in over if name in states)
    finally:
        for job in ("within", "over", "free"):
            scene.end(job)
        wait_until(lambda: _removed(scene, f"{QUEUES}/small"), "the queue is gone", evidence=scene.evidence)


def test_promises_of_a_scheduler_that_died_end(scene: Scene) -> None:
    """It is killed while it tries a gang again and again."""
    scene.job("sums", *[60] * (GPUS + 1))
    scene.wait_tried("sums")
    scene.volcano.scheduler.kill()
    try:
        others = [share(f"other-{number}", 100, 0) for number in range(GPUS)]
        create(scene.world, others)
        wait_all(scene.world, [each.name for each in others])
    finally:
        scene.volcano.scheduler.start()


def test_a_gang_of_higher_priority_evicts_those_that_make_room_on_a_gpu(scene: Scene) -> None:
    for name, value in (("low", 1), ("high", 1000)):
        scene.world.admin.post(PRIORITIES, {"metadata": {"name": name}, "value": value})
    try:
        low = [scene.job(f"low-{number}", 50, priority="low")[0] for number in range(2 * GPUS)]
        scene.run(low)
        high = scene.job("high", 100, priority="high")
        scene.run(high)
        wait_agents_agree(scene.world, high)
        check_no_gpu_is_given_out_twice(scene.world)
        states = pods.states(scene.world.admin)
        assert len([name for name in low if name in states and states[name].is_running]) == 2 * GPUS - 2
    finally:
        for name in ("low", "high"):
            scene.world.admin.delete(f"{PRIORITIES}/{name}")


def _removed(scene: Scene, path: str) -> bool:
    """Volcano refuses to delete a queue in which pods are left."""
    try:
        scene.world.admin.delete(path)
        scene.world.admin.get(path)
    except ApiError as error:
        return "404" in str(error)
    return False


def test_the_charts_patch_fits_the_deployment_of_volcanos_scheduler(
    scene: Scene, programs: Path, tmp_path: Path
) -> None:
    """By `kubectl patch`, as docs/volcano.md says. The Deployment has no replicas: its image cannot be had here."""
    admin, path = scene.world.admin, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    labels = {"app": "volcano-scheduler"}
    container = {"name": "volcano-scheduler", "image": "volcanosh/vc-scheduler:v1.14.1"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    admin.post(path, {"metadata": {"name": "volcano-scheduler"}, "spec": spec})
    try:
        rendered = manifests.by_template(manifests.render(manifests.helm(), "--set=volcano.enabled=true"))
        (tmp_path / "patch.yaml").write_text(patch_of(rendered["volcano/configmap.yaml"]))
        kubectl = Kubectl(programs / "kubectl", scene.world.nodes[NODE].control_plane.admin_kubeconfig)
        kubectl.shell(
            f"kubectl -n {NAMESPACE} patch deployment volcano-scheduler --patch-file {tmp_path / 'patch.yaml'}"
        )
        found = admin.get(f"{path}/volcano-scheduler")["spec"]["template"]["spec"]
        assert [each["name"] for each in found["containers"]] == ["volcano-scheduler"]
        (vcuda,) = found["initContainers"]
        assert (vcuda["name"], vcuda["restartPolicy"]) == ("vcuda", "Always")
    finally:
        admin.delete(f"{path}/volcano-scheduler")
