"""What a newcomer does, from the README: the image of the Dockerfile, one `helm install`, his pods, and away again.

Everything of ours runs where it will run for him: in the chart's own pods, started by the real kubelet and containerd
from an image that the Dockerfile gave, under the chart's accounts. The chart is the one of scripts/release; it and the
image come from a registry on loopback. What differs: images of others come into containerd by import, because no other
registry can be reached; the GPUs are emulated (`agent.driver.from=emulated`).
"""

import asyncio
import base64
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3
import yaml
from playwright.async_api import expect

from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.units import BLOCK_MIB, MIB
from sandbox.cluster import pods
from sandbox.cluster.agent import PROGRAM
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.kubeconfig import write_kubeconfig
from sandbox.cluster.policies import POLICIES, WEBHOOKS, wait_until_in_force
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import PROFILES, REPOSITORY, EmulatedGpus
from scripts import manifests
from tests.daemonset.chart import Object
from tests.daemonset.manifests import documents
from tests.e2e.installed.asking import VIEW, VIEW_TOKEN, answer_to, says_all, showing
from tests.e2e.installed.audit import Asked, refused
from tests.e2e.installed.caller import Caller
from tests.e2e.installed.kubectl import Kubectl
from tests.e2e.installed.monitors import account, configuration, rules, scraped
from tests.e2e.installed.published import published
from tests.e2e.installed.release import AT_ONCE, NAMESPACE, Release, released
from tests.e2e.installed.release import EMULATED as EMULATED_VALUES
from tests.e2e.installed.rights import ELSEWHERE, granted
from tests.e2e.node.greedy import GO, GreedyPod, import_image
from tests.e2e.node.scene import everything, wait_offered
from tests.e2e.node.workload import CORE, MEMORY, GpuContainer
from tests.fenced import fenced
from tests.offered import blocks_of_each
from tests.programs import helm_program, need_chromium, need_prometheus
from tests.ui.browser import launched, visiting
from tests.ui.command import started

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(600)]

EMULATED = Path("/run/vcuda/emulated")
NAMES = AnnotationNames()
PLAIN: Object = pods.pod("plain", [pods.container("c", "sleep 1000")])


def readme_pod() -> Object:
    """The README's pod."""
    (text,) = fenced(REPOSITORY / "README.md", "yaml")
    pod: Object = yaml.safe_load(text)
    return pod


SAMPLES: dict[str, Object] = {
    pod["metadata"]["name"]: pod
    for pod in (readme_pod(), *documents("sample-pod.yaml"), *documents("sample-pod-hami.yaml"))
}


BLOCKS = {"share": 16, "vcuda-sample": 16, "vcuda-sample-hami": 16}
"""What each asks for; 4096 MiB in HAMi's words."""


def image_of(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["image"])


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, programs: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    helm = helm_program(request)
    images = {image_of(pod) for pod in SAMPLES.values()}
    with ExitStack() as undo:
        undo.callback(pods.delete_all, cluster.admin)
        folder = tmp_path_factory.mktemp("registry")
        source = undo.enter_context(published(cluster, programs, request, folder, samples=images))
        installed = undo.enter_context(released(cluster, helm, source))
        installed.wait_rolled_out()
        gpus = EmulatedGpus(PROFILES / "hgx-a100.json", _state(cluster))
        wait_offered(cluster.admin, everything(blocks_of_each(gpus.profile)))
        undo.callback(pods.delete_all, cluster.admin)  # while the agent lives
        yield installed


def _state(cluster: Cluster) -> Path:
    """The emulated driver's, as this machine sees the node's folder."""
    return cluster.layout.covers / "run-vcuda" / EMULATED.name / "state"


def test_one_command_brings_everything_up_without_a_crash(release: Release) -> None:
    assert len(release.pods("vcuda-scheduler")) == 2, "one node takes both replicas"
    assert release.restarts("vcuda-agent") == {"device-nodes": 0, "agent": 0}, release.evidence()
    assert release.restarts("vcuda-scheduler") == {"extender": 0, "kube-scheduler": 0}, release.evidence()


@pytest.fixture(scope="module")
def running(release: Release) -> Release:
    for pod in SAMPLES.values():
        pods.create(release.admin, pod)
    pods.wait_running(release.admin, SAMPLES)
    return release


def test_the_pods_of_readme_and_samples_run_and_hold_what_their_annotations_say(running: Release) -> None:
    for name in SAMPLES:
        wait_until(
            partial(_is_carried_out, running, name),
            f"the agent says that it has carried {name} out",
            evidence=running.evidence,
        )
        pod = running.admin.get(f"{pods.PODS}/{name}")
        annotations = pod["metadata"]["annotations"]
        assert pod["spec"]["schedulerName"] == "vcuda-scheduler"
        assert annotations[NAMES.predicate_node] == running.cluster.kubelet.node
        assert annotations[NAMES.allocation]
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert {name: int(count) for name, count in limits.items()} == {CORE: 20, MEMORY: BLOCKS[name]}
        assert any(line.startswith("GPUAllocated:") for line in pods.events(running.admin, name)), "describe says it"


def test_the_first_pod_runs_within_two_minutes_of_helm_install(running: Release) -> None:
    """The node fetches the image first, from a registry beside it."""
    installed = json.loads(running.say("status", "vcuda", "--output", "json"))["info"]["first_deployed"]
    pod = running.admin.get(f"{pods.PODS}/{readme_pod()['metadata']['name']}")
    started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    took = datetime.fromisoformat(started) - datetime.fromisoformat(installed)
    assert timedelta(0) < took < timedelta(minutes=2)


@pytest.fixture(scope="module")
def kubectl(cluster: Cluster, programs: Path) -> Kubectl:
    return Kubectl(programs / "kubectl", cluster.control_plane.admin_kubeconfig)


def test_what_the_guides_tell_to_type_shows_what_they_say(running: Release, kubectl: Kubectl) -> None:
    (block,) = fenced(REPOSITORY / "docs/troubleshooting.md")
    logs, forward, _ = block.replace("NODE", running.cluster.kubelet.node).partition(
        "kubectl -n kube-system port-forward"
    )
    assert forward
    assert _loggers(kubectl.shell(logs)) >= {"vcuda.agent", "vcuda.scheduler"}
    assert "vcuda.scheduler" in _loggers(kubectl("-n", NAMESPACE, "logs", "deployment/vcuda-scheduler"))
    agent = kubectl.shell(f"{logs.splitlines()[0]}; echo $AGENT").strip()
    with kubectl.forwarded("-n", NAMESPACE, agent, ":5678") as address:
        assert urllib3.request("GET", f"{address}/readyz", timeout=10).status == 200
        assert "default/vcuda-sample/" in urllib3.request("GET", f"{address}/graph", timeout=10).data.decode()
    assert "GPUAllocated" in kubectl("describe", "pod", "vcuda-sample")
    kubectl(
        "-n", NAMESPACE, "rollout", "status", "daemonset/vcuda-agent", "deployment/vcuda-scheduler", "--timeout=240s"
    )


def test_the_commands_of_the_runbooks_show_what_they_say(running: Release, kubectl: Kubectl) -> None:
    page, node = REPOSITORY / "docs/runbooks.md", running.cluster.kubelet.node
    (block,) = fenced(page)
    find_agent = block.replace("NODE", node).splitlines()[0]
    others = ("kubectl annotate ", "kubectl describe certificate ", "kubectl vcuda ")  # changes; cert-manager's; ours
    commands = [each for each in re.findall("`(kubectl [^`]+)`", page.read_text()) if not each.startswith(others)]
    said = {each: kubectl.shell(f"{find_agent}\n{each.replace('NODE', node)}") for each in commands}
    assert len(said) > 8
    for part, expected in (
        ("-l app.kubernetes.io/name=vcuda-agent -o wide", node),
        ("describe $AGENT", "Controlled By:  DaemonSet/vcuda-agent"),
        ("deployment/vcuda-scheduler -c extender", "vcuda.scheduler"),
        ("get lease", "holderIdentity: vcuda-scheduler-"),
        ("custom-columns", node),
        ("rollout status", "successfully rolled out"),
    ):
        (shown,) = (text for command, text in said.items() if part in command)
        assert expected in shown


def _loggers(text: str) -> set[str]:
    return {json.loads(line)["logger"] for line in text.splitlines() if line.startswith("{")}


@pytest.mark.parametrize(
    ("name", "memory", "mib"),
    [
        ("blocks", {MEMORY: "8"}, 8 * BLOCK_MIB),
        ("mib", {"tencent.com/vcuda-memory-mib": "1900"}, 1900),
        ("hami", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1900"}, 1900),
    ],
)
def test_a_program_that_takes_all_it_can_gets_its_share_of_the_memory(
    running: Release, name: str, memory: dict[str, str], mib: int
) -> None:
    cluster = running.cluster
    import_image(cluster)
    pod = GreedyPod(f"greedy-{name}", GpuContainer("main", 30, 8), seconds=1)
    manifest = pod.manifest(EmulatedGpus(PROFILES / "hgx-a100.json", EMULATED / "state"))
    cores = "nvidia.com/gpucores" if name == "hami" else CORE
    manifest["spec"]["containers"][0]["resources"] = {"limits": {cores: "30", **memory}}
    pods.create(cluster.admin, manifest)
    (_state(cluster).parent / GO).touch()
    pods.wait_for(cluster.admin, [pod.name], lambda state: state.phase == "Succeeded", what="over")
    assert "total_bytes" in pods.log(cluster.admin, pod.name, "main"), pods.log(cluster.admin, pod.name, "main")
    (got,) = pod.got(cluster.admin)
    assert (got.total_bytes, got.refusal) == (mib * MIB, "CUDA_ERROR_OUT_OF_MEMORY")


@pytest.fixture
def operator(running: Release, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of a user who has the Role `vcuda-explain` and nothing else."""
    admin, plane = running.admin, running.cluster.control_plane
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    running.upgrade("--set-json", 'operators.subjects=[{"kind":"ServiceAccount","name":"ops","namespace":"default"}]')
    admin.post(accounts, {"metadata": {"name": "ops"}})
    token = admin.post(f"{accounts}/ops/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    ca = running.cluster.ca.certificate
    yield write_kubeconfig(tmp_path / "ops", server=plane.server, ca=ca, identity=token)
    admin.delete(f"{accounts}/ops")


def test_an_operator_learns_where_a_pod_is_and_why_another_one_waits(running: Release, operator: Path) -> None:
    wants = pods.pod("wants-another", [pods.container("c", "true", {CORE: 20, MEMORY: 4})])
    wants["metadata"]["annotations"] = {"tencent.com/vcuda-use-models": "B200"}
    pods.create(running.admin, wants)
    pods.create(running.admin, pods.pod("too-large", [pods.container("c", "true", {CORE: 1000})]))
    for name, expected in (
        (
            "vcuda-sample",
            [
                f"the pod is bound to node {running.cluster.kubelet.node}",
                f"node {running.cluster.kubelet.node} is the only one that fits",
                "container main: GPU",
            ],
        ),
        (
            "wants-another",
            ["the pod does not fit on the one node that kube-scheduler asked about", "no GPU of a wanted model"],
        ),
        (
            "too-large",  # kube-scheduler's own sums refuse it, and the extender is never asked
            [
                "kube-scheduler has not asked about the pod; evaluated now, the pod does not fit on the one node",
                f"Insufficient {CORE}",
                "1 node: not enough matching GPUs",
            ],
        ),
        ("nobody", ["pod default/nobody not found"]),
    ):
        command = [str(PROGRAM), "explain", name, f"--kubeconfig={operator}"]

        wait_until(
            partial(says_all, command, expected),
            f"{name} is explained",
            evidence=partial(answer_to, command),
        )
    pods.delete(running.admin, ["wants-another", "too-large"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["nodes"], ["NAME", "NODE", "Ready"]),
        (["node", "NODE"], [" allocated", "default/vcuda-sample (main)"]),
        (["pods", "-A"], ["default", "vcuda-sample", "Bound", "NODE"]),
        (["pods", "-o", "name"], ["pod/vcuda-sample"]),
        (["top", "nodes", "--once"], ["NODE"]),
        (["top", "gpus", "--once"], ["NODE"]),
        (["top", "containers", "-A", "--once"], ["vcuda-sample", "main"]),
        (["top", "pods", "-o", "json"], ['"pod": "vcuda-sample"']),
        (["version"], ["Client Version: ", "Scheduler Version: "]),
    ],
    ids=" ".join,
)
def test_the_commands_of_kubectl_vcuda_answer_an_operator(
    running: Release, operator: Path, command: list[str], said: list[str]
) -> None:
    node = running.cluster.kubelet.node
    asked = [str(PROGRAM), *(node if word == "NODE" else word for word in command), f"--kubeconfig={operator}"]
    expected = [node if word == "NODE" else word for word in said]
    wait_until(partial(says_all, asked, expected), f"{command} answers", evidence=partial(answer_to, asked))


def _doctor(kubeconfig: Path) -> tuple[int, dict[str, dict[str, str]]]:
    return _checks("doctor", f"--kubeconfig={kubeconfig}")


def _checks(*words: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = subprocess.run([str(PROGRAM), *words, "-o", "json"], stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, {each["check"]: each for each in json.loads(done.stdout)["checks"]}


def test_doctor_finds_nothing_wrong_and_then_what_is(running: Release, operator: Path) -> None:
    admin = running.cluster.control_plane.admin_kubeconfig
    wait_until(
        lambda: {each["outcome"] for each in _doctor(admin)[1].values()} == {"ok"},
        "doctor finds all in order",
        evidence=lambda: str(_doctor(admin)),
    )
    status, found = _doctor(operator)
    skipped = {name for name, each in found.items() if each["outcome"] == "skipped"}
    assert (status, found["rights"]["outcome"], found["scheduler"]["outcome"]) == (0, "ok", "ok")
    assert skipped >= {"webhook", "admission", "agents", "inventories", "other-plugins"}, found
    assert {each["outcome"] for name, each in found.items() if name not in skipped} == {"ok"}, found
    running.admin.merge("/api/v1/namespaces/default", {"metadata": {"labels": {"tencent.com/vcuda-webhook": "ignore"}}})
    status, found = _doctor(admin)
    running.admin.merge("/api/v1/namespaces/default", {"metadata": {"labels": {"tencent.com/vcuda-webhook": None}}})
    assert (status, found["admission"]["outcome"]) == (0, "skipped"), found


def test_a_bundle_has_what_the_cluster_says_and_no_secret(running: Release, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    admin = running.cluster.control_plane.admin_kubeconfig
    command = [str(PROGRAM), "bundle", f"--kubeconfig={admin}", f"--file={file}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{file}\n")
    with tarfile.open(file) as tar:
        texts = {each.name: tar.extractfile(each) for each in tar.getmembers()}
        found = {name.removeprefix("vcuda-bundle/"): part.read() for name, part in texts.items() if part is not None}
    assert json.loads(found["index.json"])["notRead"] == []
    (agent,) = running.pods("vcuda-agent")
    assert b"vcuda.agent" in found[f"pods/{agent['metadata']['name']}/agent.log"]
    assert b"vcuda_build_info" in found[f"pods/{agent['metadata']['name']}/metrics.txt"]
    assert {json.loads(line)["metadata"]["name"] for line in found["pods.jsonl"].splitlines()} >= set(SAMPLES)
    secret = running.admin.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/vcuda-scheduler-tls")["data"]
    key = base64.b64decode(secret["ca.key"])
    whole = b"".join(found.values())
    assert secret["ca.key"].encode() not in whole
    assert key.splitlines()[1] not in whole
    assert not re.search(rb"eyJ[A-Za-z0-9_-]{20,}\.", whole), "no token"


def test_helm_test_passes_and_leaves_no_right_behind(running: Release) -> None:
    said = running.say("test", "vcuda", "--logs")
    assert "Phase:          Succeeded" in said, said
    lines = {
        line.split(":")[0] for line in said.splitlines() if line.startswith(("ok ", "warning ", "failed ", "skipped "))
    }
    assert "ok       admission" in lines, said
    assert not [line for line in lines if line.startswith(("failed", "skipped"))], said
    for path in ("clusterroles/vcuda-doctor", "namespaces/default/roles/vcuda-doctor"):
        with pytest.raises(ApiError, match="404"):
            running.admin.get(f"/apis/rbac.authorization.k8s.io/v1/{path}")


def test_the_account_of_helm_test_creates_no_pod(running: Release, kubectl: Kubectl, tmp_path: Path) -> None:
    shown = running.say(
        "template", "vcuda", str(manifests.CHART), *EMULATED_VALUES, "-s", "templates/tests/doctor.yaml"
    )
    objects = [each for each in yaml.safe_load_all(shown) if each and each["kind"] != "Pod"]
    file = tmp_path / "account.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    kubectl("apply", "-f", str(file))
    try:
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        token = running.admin.post(f"{accounts}/vcuda-doctor/token", {"spec": {}})["status"]["token"]
        doctor = Client.by_token(running.admin.server, running.cluster.ca.certificate, token)
        wait_until_in_force(running.admin)
        with pytest.raises(ApiError, match="pods that are not created"):
            doctor.post(pods.PODS, {**PLAIN, "metadata": {"name": "not-made"}})
        trial = {**SAMPLES["vcuda-sample"], "metadata": {"name": "not-made"}}
        assert doctor.post(f"{pods.PODS}?dryRun=All", trial)["spec"]["schedulerName"] == "vcuda-scheduler"
        with pytest.raises(ApiError, match="403: "):
            doctor.get(f"/api/v1/namespaces/{NAMESPACE}/secrets")
    finally:
        kubectl("delete", "-f", str(file), "--ignore-not-found")


def test_doctor_names_a_ca_that_the_scheduler_does_not_have(running: Release) -> None:
    path = f"{WEBHOOKS}/vcuda-scheduler"
    before = running.admin.get(path)["webhooks"]
    other = base64.b64encode(running.cluster.ca.certificate.read_bytes()).decode()
    wrong = {"webhooks": [{**before[0], "clientConfig": {**before[0]["clientConfig"], "caBundle": other}}]}
    admin = running.cluster.control_plane.admin_kubeconfig

    def told() -> dict[str, dict[str, str]] | None:
        running.admin.merge(path, wrong)
        status, found = _doctor(admin)
        outcomes = (status, found["webhook"]["outcome"], found["admission"]["outcome"])
        return found if outcomes == (1, "failed", "failed") else None

    try:
        found = wait_until(told, "doctor finds both failed", evidence=lambda: str(_doctor(admin)))
    finally:
        running.admin.merge(path, {"webhooks": before})
    assert "x509" in found["admission"]["message"], found
    wait_until(lambda: _doctor(admin)[1]["admission"]["outcome"] == "ok", "the webhook is trusted again")


def test_the_agent_starts_after_the_checks_of_its_node(running: Release) -> None:
    running.upgrade("--set=agent.doctor=true")
    running.wait_rolled_out()
    (agent,) = running.pods("vcuda-agent")
    said = running.log(agent["metadata"]["name"], "doctor")
    failed = [line for line in said.splitlines() if line.startswith("failed")]
    assert failed == [], said
    assert "ok       nvml: " in said
    assert "ok       images: " in said, said
    running.upgrade("--set=agent.doctor=false")
    running.wait_rolled_out()


def test_doctor_says_why_an_image_cannot_be_pulled(running: Release) -> None:
    admin = running.cluster.control_plane.admin_kubeconfig
    missing = f"{running.registry.image}:away"
    running.upgrade("--set=image.tag=away")
    try:
        wait_until(
            lambda: "not found" in _doctor(admin)[1]["agents"]["message"],
            "doctor repeats what containerd says of the registry",
            evidence=lambda: str(_doctor(admin)[1]["agents"]),
        )
        status, found = _doctor_of_node(running.cluster)
    finally:
        running.upgrade("--set=image.tag=")
        running.wait_rolled_out()
    assert (status, found["images"]["outcome"]) == (1, "failed"), found
    assert f"does not have {missing}, and kubelet says" in found["images"]["message"]
    assert _doctor_of_node(running.cluster)[1]["images"]["outcome"] == "ok"


def _doctor_of_node(cluster: Cluster) -> tuple[int, dict[str, dict[str, str]]]:
    """On the node's own file system, from a checkout: the agent's pod does not start."""
    return _checks(
        "doctor",
        "node",
        f"--kubeconfig={cluster.control_plane.admin_kubeconfig}",
        f"--hostname-override={cluster.kubelet.node}",
        f"--container-runtime-endpoint={cluster.layout.containerd_socket}",
    )


def test_the_view_shows_pods_only_to_those_who_may_read_about_them(running: Release, operator: Path) -> None:
    admin, ca = running.admin, running.cluster.ca.certificate
    (identity,) = yaml.safe_load(operator.read_text())["users"]
    ops = Client.by_token(admin.server, ca, identity["user"]["token"])
    shown = ops.post(VIEW_TOKEN, {"spec": {"audiences": ["vcuda"], "expirationSeconds": 600}})["status"]["token"]
    found = showing(ops, shown).get(f"{VIEW}/pods?stage=bound")
    assert {row["pod"] for row in found["items"]} == set(SAMPLES)
    with pytest.raises(ApiError, match=r"403: .*with a token only"):
        ops.get(f"{VIEW}/pods?stage=bound")
    with pytest.raises(ApiError, match="401: "):
        showing(ops, f"{shown}x").get(f"{VIEW}/pods")
    whole = ops.post(VIEW_TOKEN, {"spec": {"expirationSeconds": 600}})["status"]["token"]
    with pytest.raises(ApiError, match="cannot list resource"):
        Client.by_token(admin.server, ca, whole).get("/api/v1/pods")


def test_an_operator_sees_the_cluster_in_a_browser(running: Release, operator: Path) -> None:
    need_chromium()
    asyncio.run(_look(operator, running.cluster.kubelet.node))


async def _look(kubeconfig: Path, node: str) -> None:
    async with started(f"--kubeconfig={kubeconfig}") as address, launched() as browser, visiting(browser) as visit:
        await visit.open(address)
        await expect(visit.page.locator(".nodes > li")).to_have_count(1)
        await expect(visit.page.locator(".nodes .gpu")).to_have_count(8)
        await visit.page.click(f"text={node}")
        await expect(visit.page.locator("body")).to_contain_text("default/vcuda-sample")
        await visit.page.keyboard.press("3")
        await expect(visit.page.locator("tbody tr")).to_have_count(len(SAMPLES))
        assert (visit.strangers(f"http://{urlsplit(address).netloc}"), visit.problems) == ([], [])


def test_the_view_shows_what_is_used_now_as_the_agents_say_it(running: Release) -> None:
    token = running.admin.post(VIEW_TOKEN, {"spec": {"audiences": ["vcuda"]}})["status"]["token"]
    viewer = showing(running.admin, token)

    def live() -> Object:
        (row,) = viewer.get(f"{VIEW}/nodes?holders=1&live=1")["items"]
        return dict(row)

    wait_until(lambda: not live()["live_error"], "the agent is asked", evidence=lambda: str(live()))
    row = live()
    assert row["node"] == running.cluster.kubelet.node
    assert all(gpu["live"]["memory_used_bytes"] is not None for gpu in row["gpus"])
    held = [holder for gpu in row["gpus"] for holder in gpu["holders"]]
    assert len(held) == len(SAMPLES)
    assert all(holder["live"] is not None and holder["over_limit"] == [] for holder in held)


def test_what_the_monitors_select_is_scraped_and_raises_no_alert(running: Release, tmp_path: Path) -> None:
    need_prometheus()
    with account(running, tmp_path) as shown:
        seen = asyncio.run(scraped(configuration(running, shown, rules(running, tmp_path)), tmp_path / "prometheus"))
    assert seen["up"] == {"vcuda-agent": 1, "vcuda-scheduler": 2, "vcuda-kube-scheduler": 2}
    assert seen["pods"] == dict.fromkeys(SAMPLES, 1)
    assert seen["queues"], "these are of kube-scheduler itself"
    assert seen["alerts"].keys() <= {"VcudaShareIdle"}, "pending: the samples sleep, which is an alert after hours"


def test_on_a_cluster_without_the_prometheus_operator_monitors_are_refused(running: Release) -> None:
    with pytest.raises(AssertionError, match="enabled needs the API monitoring"):
        running.upgrade("--set=monitoring.enabled=true")


def _is_carried_out(release: Release, name: str) -> bool:
    return pods.states(release.admin)[name].annotations[NAMES.gpu_assigned] == "true"


def test_what_a_pod_held_is_free_when_it_is_gone(running: Release) -> None:
    assert {each.pod for each in running.usage().containers} >= SAMPLES.keys()
    pods.delete(running.admin, ["share", "greedy"])
    pods.wait_gone(running.admin, ["share", "greedy"])
    wait_until(
        lambda: {each.pod for each in running.usage().containers} == SAMPLES.keys() - {"share"},
        "the agent has taken the slices back",
        evidence=lambda: str(running.usage().containers),
    )


def test_every_right_is_used_and_none_is_missed(running: Release) -> None:
    assert [*map(str, refused(running.asked()))] == []
    used = {(each.account, each.verb, each.resource) for each in running.asked()}
    assert granted(running) - used <= ELSEWHERE.keys() <= granted(running)


LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/vcuda-scheduler"
OWN = (
    "--set=scheduler.leaderElection=own",
    "--set=scheduler.callers.ca.kind=ConfigMap",
    "--set=scheduler.callers.ca.name=callers",
)


@pytest.fixture
def elsewhere(running: Release, tmp_path: Path) -> Iterator[Caller]:
    """The leader's port, asked with the certificate of a kube-scheduler that is none of the release's own."""
    admin, ca = running.admin, running.cluster.ca
    maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    admin.post(maps, {"metadata": {"name": "callers"}, "data": {"ca.crt": ca.certificate.read_text()}})
    running.upgrade(*OWN)
    running.wait_rolled_out()
    wait_until(lambda: len(running.pods("vcuda-scheduler")) == 2, "the former pods are gone")
    admin.delete(LEASE)  # the former leader's, so that ours is made
    leader = wait_until(lambda: _leader(running), "one of the replicas leads", evidence=running.evidence)
    bundle = tmp_path / "ca.crt"
    secret = admin.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/vcuda-scheduler-tls")
    bundle.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    shown = ca.issue("elsewhere", common_name="system:kube-scheduler")
    yield Caller(f"https://{leader}:8443", bundle, shown)
    admin.delete(f"{maps}/callers")


def _leader(release: Release) -> str:
    """The address of the pod that vcuda's Lease names."""
    try:
        holder = release.admin.get(LEASE)["spec"].get("holderIdentity")
    except ApiError:
        return ""
    addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in release.pods("vcuda-scheduler")}
    return str(addresses.get(holder, ""))


def test_a_kube_scheduler_elsewhere_is_known_by_its_certificate_and_our_own_lease_needs_the_rights_it_has(
    running: Release, elsewhere: Caller
) -> None:
    assert elsewhere.filter(showing=False).startswith("403: /filter requires a client certificate")
    assert elsewhere.filter(showing=True).startswith("400: ")
    assert all(
        each["name"] == "extender" for pod in running.pods("vcuda-scheduler") for each in pod["spec"]["containers"]
    )
    wanted = {verb for account, verb, resource in granted(running) if resource == "leases"}
    wait_until(
        lambda: wanted == {each.verb for each in _of_our_lease(running) if each.status in (200, 201)},
        "each right to the Lease is used",
        evidence=lambda: str([*map(str, _of_our_lease(running))]),
    )
    answers = {each.status for each in _of_our_lease(running) if each.status < 500}  # a busy API server says 500
    assert answers <= {200, 201, 403, 404, 409}
    assert refused(_of_our_lease(running)) == []


def _of_our_lease(release: Release) -> list[Asked]:
    """What the extender asked of it; kube-scheduler has the same account."""
    return [each for each in release.asked() if (each.resource, each.program) == ("leases", "vcuda")]


def test_after_the_release_is_gone_pods_are_made_as_if_it_had_never_been(running: Release) -> None:
    running.say("uninstall", "vcuda", "--wait")
    pods.delete_all(running.admin)
    pods.create(running.admin, PLAIN)
    pods.wait_running(running.admin, ["plain"])
    made = running.admin.post(f"{pods.PODS}?dryRun=All", SAMPLES["vcuda-sample"])
    assert made["spec"]["schedulerName"] == "default-scheduler"
    for path in (WEBHOOKS, POLICIES):
        names = [item["metadata"]["name"] for item in running.admin.get(path)["items"]]
        assert not [name for name in names if "vcuda" in name]


def test_the_manifests_do_the_same_without_helm(running: Release, kubectl: Kubectl, tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "daemonset", tmp_path / "daemonset")
    (shown,) = fenced(REPOSITORY / "daemonset/README.md", "yaml")
    (tmp_path / "kustomization.yaml").write_text(shown.replace("your-registry/vcuda", running.registry.image))
    try:
        kubectl("apply", "-k", str(tmp_path))
        kubectl("-n", NAMESPACE, "rollout", "status", "deployment/vcuda-scheduler", "--timeout=240s")
        _wait_webhook(running)
    finally:
        kubectl("delete", "-k", str(tmp_path), "--ignore-not-found")


def test_it_can_be_installed_again_beside_what_was_left(running: Release) -> None:
    running.install(*AT_ONCE)
    running.wait_rolled_out()
    # One controller tells that pods are ready and another one where they are, each in its own time.
    _wait_webhook(running)


def _wait_webhook(release: Release) -> None:
    wait_until(
        lambda: _scheduler_name(release) == "vcuda-scheduler",
        "the webhook is asked",
        evidence=lambda: f"{_scheduler_name(release)}\n{release.evidence()}",
    )


def _scheduler_name(release: Release) -> str:
    """Or what is in the way."""
    try:
        made = release.admin.post(f"{pods.PODS}?dryRun=All", SAMPLES["vcuda-sample"])
    except ApiError as error:
        return str(error)
    return str(made["spec"]["schedulerName"])
