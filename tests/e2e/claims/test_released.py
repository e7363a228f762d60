"""Claims by the released chart: `helm install --set agent.dra.enabled=true`, and what its pages tell users to apply.

The agent runs in the chart's pod, under its account and probes. The tests are one story, in their order.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from sandbox.cluster import pods
from sandbox.cluster.agent import PROGRAM
from sandbox.cluster.claims import CLAIMS, DRIVER, SLICES, TEMPLATES
from sandbox.cluster.client import ApiError
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import PROFILES, REPOSITORY, EmulatedGpus
from tests.daemonset.chart import Object
from tests.daemonset.manifests import documents
from tests.e2e.claims.scene import pod_with
from tests.e2e.installed.published import published
from tests.e2e.installed.release import NAMESPACE, Release, released
from tests.e2e.node.greedy import GO, GreedyPod, import_image
from tests.e2e.node.limits import BLOCK_BYTES
from tests.e2e.node.view import SHOW_AND_STAY
from tests.e2e.node.workload import CORE, MEMORY, GpuContainer
from tests.fenced import fenced
from tests.programs import helm_program

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(900)]

VALUES = ("--set=agent.dra.enabled=true", "--set=webhook.translateToClaims=true")
FAILED = "FailedPrepareDynamicResources"
# Kubelet reads a claim before it calls a driver. The API server refuses that until its node authorizer knows the pod.
NODE_AUTHORIZER = "no relationship found between node"
INSIDE = Path("/run/vcuda/emulated")


def documented() -> list[Object]:
    """The first claim of docs/claims.md: its template and its pod."""
    text = fenced(REPOSITORY / "docs/claims.md", "yaml")[0]
    return list(yaml.safe_load_all(text))


def share_template(name: str, cores: int = 20, memory: str = "2Gi") -> Object:
    exactly = {"deviceClassName": "vcuda.tencent.com", "capacity": {"requests": {"cores": cores, "memory": memory}}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return {"kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": spec}}


def apply(release: Release, *objects: Object) -> None:
    for each in objects:
        release.admin.post(TEMPLATES if each["kind"] == "ResourceClaimTemplate" else pods.PODS, each)


def images(objects: list[Object]) -> set[str]:
    return {each["spec"]["containers"][0]["image"] for each in objects if each["kind"] == "Pod"}


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, programs: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    helm = helm_program(request)
    samples = images([*documented(), *documents("sample-claim.yaml")])
    with ExitStack() as undo:
        undo.callback(pods.delete_all, cluster.admin)
        folder = tmp_path_factory.mktemp("registry")
        source = undo.enter_context(published(cluster, programs, request, folder, samples=samples))
        installed = undo.enter_context(released(cluster, helm, source, *VALUES))
        undo.callback(end, installed)  # while the agent lives
        installed.wait_rolled_out()
        wait_until(lambda: slices(installed), "the slice is published", evidence=installed.evidence)
        yield installed


def end(release: Release) -> None:
    pods.delete_all(release.admin)
    wait_until(lambda: not release.admin.get(CLAIMS)["items"], "all claims are gone", evidence=release.evidence)
    # A claim can be gone before kubelet has unprepared it. What the agent holds then, the next release would find held.
    wait_until(lambda: not held(release), "the agent holds nothing", evidence=release.evidence)
    for each in release.admin.get(TEMPLATES)["items"]:
        release.admin.delete(f"{TEMPLATES}/{each['metadata']['name']}")
    for name in slices(release):
        release.admin.delete(f"{SLICES}/{name}")


def slices(release: Release) -> list[str]:
    found = release.admin.get(f"{SLICES}?fieldSelector=spec.driver={DRIVER}")["items"]
    return [each["metadata"]["name"] for each in found]


def held(release: Release) -> dict[str, tuple[int, int, str]]:
    """Cores, blocks and source by pod."""
    return {each.pod: (each.cores, each.blocks, each.source) for each in release.usage().containers}


def test_the_claim_of_the_page_and_the_sample_hold_what_they_say(release: Release) -> None:
    objects = [*documented(), *documents("sample-claim.yaml")]
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "Pod"]
    unique = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    apply(release, *unique.values())
    pods.wait_running(release.admin, names)
    assert held(release) == dict.fromkeys(names, (20, 16, "claim"))
    assert "/dev/nvidia0" in pods.log(release.admin, "vcuda-sample-claim", "main")


def said(release: Release, *words: str) -> Object:
    """What `vcuda WORDS -o json` says."""
    kubeconfig = release.cluster.control_plane.admin_kubeconfig
    command = [str(PROGRAM), *words, "-o", "json", f"--kubeconfig={kubeconfig}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: Object = json.loads(done.stdout)
    return found


def test_the_schedulers_views_show_the_claims(release: Release) -> None:
    node = release.cluster.kubelet.node
    wait_until(
        lambda: [each["cores_allocated"] for each in said(release, "nodes")["items"]] == [40],
        "the view has both claims",
        evidence=lambda: json.dumps(said(release, "nodes")),
    )
    (gpu, *free) = said(release, "node", node)["gpus"]
    assert (gpu["source"], gpu["cores_allocated"]) == ("claim", 40)
    assert {(each["pod"], each["source"]) for each in gpu["holders"]} == {
        ("share", "claim"),
        ("vcuda-sample-claim", "claim"),
    }
    assert not any(each["holders"] for each in free)
    assert "20 cores and 4 GiB of gpu-0" in json.dumps(said(release, "explain", "vcuda-sample-claim"))


def test_a_claim_that_fits_nowhere_is_explained(release: Release) -> None:
    apply(release, share_template("whole", 100, "1Gi"))
    names = [f"whole-{number}" for number in range(8)]
    for name in names:
        pods.create(release.admin, pod_with(name, resourceClaimTemplateName="whole"))
    wait_until(lambda: "allocate all claims" in _condition(release, names), "kube-scheduler has tried")
    wait_until(lambda: len(_without_node(release, names)) == 1, "seven of them have a node")
    (waiting,) = _without_node(release, names)
    assert "room on 0 of" in json.dumps(said(release, "explain", waiting))
    pods.delete(release.admin, names)
    pods.wait_gone(release.admin, names)


def _without_node(release: Release, names: list[str]) -> list[str]:
    states = pods.states(release.admin)
    return [name for name in names if not states[name].node]


def _condition(release: Release, names: list[str]) -> str:
    items = release.admin.get(pods.PODS)["items"]
    mine = [each for each in items if each["metadata"]["name"] in names]
    return json.dumps([each["status"].get("conditions", []) for each in mine if not each["spec"].get("nodeName")])


def test_a_greedy_program_of_the_demo_is_held_to_its_slice(release: Release) -> None:
    import_image(release.cluster)
    apply(release, share_template("greedy", 30, "4Gi"))
    pod = GreedyPod("greedy", GpuContainer("main", 30, 16), seconds=3)
    manifest = pod.manifest(EmulatedGpus(PROFILES / "hgx-a100.json", INSIDE / "state"))
    manifest["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    manifest["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "greedy"}]
    pods.create(release.admin, manifest)
    (release.cluster.layout.covers / "run-vcuda" / INSIDE.name / GO).touch()
    pods.wait_for(release.admin, [pod.name], lambda each: each.phase in ("Succeeded", "Failed"), what="over")
    (got,) = pod.got(release.admin)
    assert (got.total_bytes, got.refusal) == (16 * BLOCK_BYTES, "CUDA_ERROR_OUT_OF_MEMORY")
    assert got.got_bytes <= 16 * BLOCK_BYTES
    assert got.share_percent == pytest.approx(30, abs=4)


def test_a_pod_for_the_device_plugin_becomes_a_claim_and_leaves_nothing(release: Release) -> None:
    before = {each["metadata"]["name"] for each in release.admin.get(CLAIMS)["items"]}
    old = pods.pod("old", [pods.container("main", SHOW_AND_STAY, {CORE: 20, MEMORY: 8})])
    made = release.admin.post(f"{pods.PODS}?dryRun=All", old)
    (claim,) = made["spec"]["resourceClaims"]
    template = f"{TEMPLATES}/{claim['resourceClaimTemplateName']}"
    with pytest.raises(ApiError):
        release.admin.get(template)
    pods.create(release.admin, old)
    pods.wait_running(release.admin, ["old"])
    assert held(release)["old"] == (20, 8, "claim")
    assert release.admin.get(template)["spec"]["spec"]["devices"]["requests"]
    assert release.admin.get(f"{pods.PODS}/old")["spec"]["schedulerName"] == "default-scheduler"
    pods.delete(release.admin, ["old"])
    pods.wait_gone(release.admin, ["old"])
    wait_until(
        lambda: {each["metadata"]["name"] for each in release.admin.get(CLAIMS)["items"]} == before,
        "its claim is gone",
        evidence=release.evidence,
    )


def test_no_pod_waits_for_an_agent_that_is_updated(release: Release) -> None:
    """Kubelet would repeat a call that fails after a minute or more."""
    apply(release, share_template("small", 10, "1Gi"))
    (before,) = release.pods("vcuda-agent")
    ran = pods.states(release.admin)
    release.upgrade("--set=agent.podAnnotations.updated=once")
    names = pods_until(release, release.agents_have_rolled_out)
    (after,) = release.pods("vcuda-agent")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    pods.wait_running(release.admin, names)
    said = [each for name in names for each in pods.events(release.admin, name)]
    assert [each for each in said if each.startswith(FAILED) and NODE_AUTHORIZER not in each] == []
    assert {name: held(release).get(name) for name in names} == dict.fromkeys(names, (10, 4, "claim"))
    now = pods.states(release.admin)
    assert {name: now[name].containers for name in ran} == {name: each.containers for name, each in ran.items()}


def pods_until(release: Release, is_over: Callable[[], bool]) -> list[str]:
    """One pod after the other, for a moment longer."""
    names: list[str] = []
    end = None
    while end is None or time.monotonic() < end:
        names.append(f"small-{len(names)}")
        pods.create(release.admin, pod_with(names[-1], resourceClaimTemplateName="small"))
        if end is None and is_over():
            end = time.monotonic() + 2
        time.sleep(0.4)
        assert len(names) < 70, release.evidence()
    return names


def test_the_agent_is_alive(release: Release) -> None:
    (agent,) = release.pods("vcuda-agent")
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{agent['metadata']['name']}:5678/proxy/healthz"
    assert release.admin.text("GET", path) == "ok\n"
    assert release.restarts("vcuda-agent") == {"device-nodes": 0, "agent": 0}, release.evidence()
