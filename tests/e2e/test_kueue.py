"""docs/how-to/kueue.md with the real Kueue: what waits for the quota, what runs with which GPUs, and what is counted.

Kueue's controllers with their chart, beside vcuda's webhook and scheduler, over one real node with four GPUs.
"""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml

from sandbox.cluster import pods
from sandbox.cluster.agent import PROGRAM
from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.images import BUSYBOX
from sandbox.cluster.kubelet import NODE
from sandbox.cluster.kueue import FLAVORS, NAMESPACE, kueue_running
from sandbox.cluster.processes import Process
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY
from tests.e2e.admission.requests import applied
from tests.e2e.node.scene import wait_ledger_empty
from tests.e2e.node.view import SHOW_AND_STAY
from tests.e2e.node.workload import CORE, MEMORY
from tests.e2e.released import Helm
from tests.e2e.scheduling.expectations import check_no_gpu_is_given_out_twice
from tests.e2e.scheduling.steps import check, is_refused, wait_nothing_reserved
from tests.e2e.scheduling.world import GPUS, World, everybody
from tests.fenced import fenced
from tests.programs import helm_program

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(600)]

QUEUES, JOB, POD, POLICY, CONFIGURATION = fenced(REPOSITORY / "docs" / "how-to" / "kueue.md", "yaml")
CORES, BLOCKS = 200, 640
"""The quota: half of what the node has."""
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_LOCAL = f"{_KUEUE}/namespaces/default"
_PATHS = {
    "ResourceFlavor": FLAVORS,
    "ClusterQueue": f"{_KUEUE}/clusterqueues",
    "LocalQueue": f"{_LOCAL}/localqueues",
}
_NAMESPACES = "/api/v1/namespaces"


@dataclass(frozen=True, slots=True)
class Queues:
    """The queue `gpu`, and what waits in it."""

    process: Process
    admin: Client

    def counted(self) -> dict[str, int]:
        """GPUs' cores and blocks that Kueue has counted of those that it admitted."""
        admitted = [each for each in self._workloads() if "admission" in each.get("status", {})]
        sets = [one["resourceUsage"] for each in admitted for one in each["status"]["admission"]["podSetAssignments"]]
        return {name: sum(int(each.get(name, 0)) for each in sets) for name in (CORE, MEMORY)}

    def waits_for(self, owner: str) -> str:
        """Why Kueue has not admitted it; empty where it has, or has not looked at it."""
        for each in self._workloads():
            if any(one["name"] == owner for one in each["metadata"].get("ownerReferences", [])):
                for condition in each.get("status", {}).get("conditions", []):
                    if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                        return str(condition["message"])
        return ""

    def clear(self) -> None:
        """Kueue ends a group of pods with its Workload; its pods that are deleted alone may stay."""
        wait_until(lambda: not self._delete_workloads(), "no Workload is left", evidence=self.process.log_tail)

    def _delete_workloads(self) -> bool:
        found = [each["metadata"]["name"] for each in self._workloads()]
        for name in found:
            with contextlib.suppress(ApiError):
                self.admin.delete(f"{_LOCAL}/workloads/{name}")
        return bool(found)

    def _workloads(self) -> list[JsonObject]:
        found: list[JsonObject] = self.admin.get(f"{_LOCAL}/workloads")["items"]
        return found

    def set_quota(self, cores: int) -> None:
        path = f"{_PATHS['ClusterQueue']}/gpu"
        groups = self.admin.get(path)["spec"]["resourceGroups"]
        for each in groups[0]["flavors"][0]["resources"]:
            each["nominalQuota"] = {CORE: str(cores), MEMORY: str(BLOCKS)}.get(each["name"], each["nominalQuota"])
        self.admin.merge(path, {"spec": {"resourceGroups": groups}})


@contextlib.contextmanager
def queues(cluster: Cluster, programs: Path, helm: str, folder: Path) -> Iterator[Queues]:
    admin, install = cluster.admin, Helm(helm, cluster.control_plane.admin_kubeconfig, NAMESPACE)
    with contextlib.ExitStack() as undo:
        admin.post(_NAMESPACES, {"metadata": {"name": NAMESPACE}})
        undo.callback(_remove, admin, f"{_NAMESPACES}/{NAMESPACE}")
        undo.callback(install, "uninstall", "kueue")
        install("install", "kueue", str(programs / "charts" / "kueue"), "--set=controllerManager.replicas=0")
        (node,) = admin.get("/api/v1/nodes")["items"]
        (address,) = (each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP")
        process = undo.enter_context(
            kueue_running(
                cluster.control_plane,
                programs / "kueue",
                folder,
                address=address,
                settings=yaml.safe_load(CONFIGURATION),
            )
        )
        for item in documents(QUEUES):
            admin.post(_PATHS[item["kind"]], item)
            undo.callback(_remove, admin, f"{_PATHS[item['kind']]}/{item['metadata']['name']}")
        yield Queues(process, admin)


def documents(text: str) -> list[JsonObject]:
    return [*yaml.safe_load_all(text.replace("team-a", "default"))]


def at_home(spec: JsonObject, limits: JsonObject | None) -> None:
    """The page's pod with an image that is there, on a node with two cores; with other limits, if there are any."""
    (container,) = spec["containers"]
    container |= {"image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", SHOW_AND_STAY]}
    container["resources"]["requests"] = {"cpu": "20m", "memory": "16Mi"}
    if limits is not None:
        container["resources"]["limits"] = limits
    spec |= {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}


def _remove(admin: Client, path: str) -> None:
    """Until it is gone: a finalizer may be on it."""
    with contextlib.suppress(ApiError):
        admin.delete(path)
    wait_until(lambda: _is_gone(admin, path), f"{path} is gone")


def _is_gone(admin: Client, path: str) -> bool:
    try:
        admin.get(path)
    except ApiError as error:
        return error.status == 404
    return False


JOBS = "/apis/batch/v1/namespaces/default/jobs"
GATE = "kueue.x-k8s.io/admission"
HAMI = {"nvidia.com/gpu": 2, "nvidia.com/gpucores": 30, "nvidia.com/gpumem": 5000}
EXACT = {CORE: 20, "tencent.com/vcuda-memory-mib": 5000}


@dataclass(frozen=True, slots=True)
class Scene:
    """The node, our scheduler and webhook, Kueue."""

    world: World
    queues: Queues
    token: str

    def job(self, name: str, limits: JsonObject | None = None, *, pods: int | None = None) -> str:
        """The page's job under this name."""
        (job,) = documents(JOB)
        job["metadata"] |= {"name": name, "generateName": None}
        if pods:
            job["spec"] |= {"parallelism": pods, "completions": pods}
        at_home(job["spec"]["template"]["spec"], limits)
        return str(self.world.admin.post(JOBS, job)["metadata"]["name"])

    def end(self, job: str) -> None:
        self.world.admin.delete(f"{JOBS}/{job}?propagationPolicy=Background")

    def members(self, job: str) -> list[str]:
        selector = f"?labelSelector=batch.kubernetes.io/job-name={job}"
        return [each["metadata"]["name"] for each in self.world.admin.get(pods.PODS + selector)["items"]]

    def run(self, job: str, size: int) -> list[str]:
        wait_until(lambda: len(self.members(job)) == size, f"{job} has its pods", evidence=self.evidence)
        names = self.members(job)
        pods.wait_running(self.world.admin, names)
        return names

    def granted(self, names: Sequence[str]) -> dict[str, int]:
        """What the pods ask for together, as the webhook left them; `check` compares it with the agent's ledger."""
        specs = [self.world.admin.get(f"{pods.PODS}/{name}")["spec"] for name in names]
        limits = [each["containers"][0]["resources"]["limits"] for each in specs]
        return {name: sum(int(each[name]) for each in limits) for name in (CORE, MEMORY)}

    def explain(self, name: str) -> str:
        command = [str(PROGRAM), "explain", f"default/{name}", f"--url={self.world.ours.url}"]
        command.append(f"--ca-file={self.world.ours.bundle}")
        env = {**os.environ, "VCUDA_TOKEN": self.token}
        done = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.stdout

    def evidence(self) -> str:
        return f"{[str(each) for each in pods.states(self.world.admin).values()]}\n{self.queues.process.log_tail()}"


def _viewer(admin: Client) -> str:
    """A token of an account that may list all pods."""
    binding = {
        "metadata": {"name": "viewer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": "default"}],
    }
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    admin.post(accounts, {"metadata": {"name": "viewer"}})
    return str(admin.post(f"{accounts}/viewer/token", {"spec": {"audiences": ["vcuda"]}})["status"]["token"])


@pytest.fixture(scope="module")
def serving(cluster: Cluster, programs: Path, kueue: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    helm, folder = helm_program(request), cluster.layout.root / "kueue"
    folder.mkdir()
    try:
        with (
            everybody(cluster, programs, real=(NODE,), hollow=()) as world,
            queues(cluster, kueue, helm, folder) as found,
        ):
            yield Scene(world, found, _viewer(world.admin))
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def scene(serving: Scene) -> Iterator[Scene]:
    """Without jobs and pods, in the beginning and in the end."""
    serving.queues.set_quota(CORES)
    yield serving
    admin = serving.world.admin
    for item in admin.get(JOBS)["items"]:
        serving.end(item["metadata"]["name"])
    wait_until(lambda: not admin.get(JOBS)["items"], "the jobs are gone", evidence=serving.evidence)
    serving.queues.clear()
    pods.delete_all(admin)
    wait_ledger_empty(serving.world.agents[NODE])
    wait_nothing_reserved(serving.world)


def test_a_job_runs_with_its_shares_and_the_next_one_waits_for_the_quota(scene: Scene) -> None:
    first = scene.run(scene.job("first"), 4)
    check(scene.world, first)
    assert scene.queues.counted() == {CORE: 200, MEMORY: 160}
    second = scene.job("second")
    why = wait_until(lambda: scene.queues.waits_for(second), "Kueue has looked at it", evidence=scene.evidence)
    assert f"insufficient unused quota for {CORE} in flavor a100, 200 more needed" in why
    assert not scene.members(second)
    assert "pod default/second not found: it does not exist" in scene.explain("second")
    scene.end("first")
    check(scene.world, scene.run(second, 4))


def test_pods_of_a_group_wait_with_a_gate_and_start_together(scene: Scene) -> None:
    scene.run(scene.job("first"), 4)
    names = [f"sweep-{number}" for number in range(3)]
    for name in names:
        (pod,) = documents(POD)
        pod["metadata"] |= {"name": name, "generateName": None}
        at_home(pod["spec"], None)
        scene.world.admin.post(pods.PODS, pod)
    wait_until(lambda: scene.queues.waits_for(names[0]), "Kueue has looked at the group", evidence=scene.evidence)
    for name in names:
        wait_until(partial(_gate_is_named, scene, name), f"the gate of {name} is named")
    scene.end("first")
    pods.wait_running(scene.world.admin, names)
    check(scene.world, names)
    assert scene.queues.counted() == scene.granted(names)
    assert scene.granted(names)[MEMORY] > 0, "the webhook has added it, and Kueue has counted it"


@pytest.mark.parametrize(
    ("limits", "cores", "blocks"), [(HAMI, 60, 40), (EXACT, 20, 20)], ids=["HAMi", "memory in MiB"]
)
def test_names_that_the_webhook_translates_are_counted_as_what_is_granted(
    scene: Scene, limits: JsonObject, cores: int, blocks: int
) -> None:
    names = scene.run(scene.job("other", limits, pods=3), 3)
    check(scene.world, names)
    assert scene.queues.counted() == scene.granted(names) == {CORE: 3 * cores, MEMORY: 3 * blocks}


def test_a_job_with_a_name_that_kueue_does_not_count_waits(scene: Scene) -> None:
    """The page has no transformation for it."""
    job = scene.job("percent", {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}, pods=1)
    why = wait_until(lambda: scene.queues.waits_for(job), "Kueue has looked at it", evidence=scene.evidence)
    assert "nvidia.com/gpumem-percentage" in why
    assert not scene.members(job)


def test_what_the_template_leaves_out_is_granted_and_not_counted(scene: Scene) -> None:
    names = scene.run(scene.job("bare", {CORE: 30}, pods=1), 1)
    assert scene.queues.counted() == {CORE: 30, MEMORY: 0}
    assert scene.granted(names)[MEMORY] > 0


@pytest.mark.parametrize(("limits", "missing"), [({CORE: 30}, MEMORY), ({MEMORY: 8}, CORE)])
def test_the_policy_refuses_a_job_that_leaves_something_out(scene: Scene, limits: JsonObject, missing: str) -> None:
    with applied(scene.world.admin, *documents(POLICY)):
        assert missing in _refusal(scene, limits)
        scene.run(scene.job("whole", {CORE: 100}, pods=1), 1)


def test_a_job_that_kueue_admits_by_sums_waits_and_is_explained(scene: Scene) -> None:
    scene.queues.set_quota(100 * GPUS)
    scene.run(scene.job("wide", {CORE: 60, MEMORY: 8}, pods=GPUS), GPUS)
    (name,) = [*_made(scene, scene.job("late", {CORE: 50, MEMORY: 8}, pods=1))]
    wait_until(lambda: is_refused(scene.world, name), "kube-scheduler has tried it", evidence=scene.evidence)
    said = scene.explain(name)
    assert "10 more cores must become free" in said
    check_no_gpu_is_given_out_twice(scene.world)


def _gate_is_named(scene: Scene, name: str) -> bool:
    said = scene.explain(name)
    return bool(re.search(f"the pod is Pending until its scheduling gates? .*{GATE}.* (is|are) removed", said))


def _made(scene: Scene, job: str) -> list[str]:
    return wait_until(lambda: scene.members(job), f"{job} is admitted", evidence=scene.evidence)


def _refusal(scene: Scene, limits: JsonObject) -> str:
    try:
        scene.end(scene.job("refused", limits, pods=1))
    except ApiError as error:
        return str(error)
    return ""
