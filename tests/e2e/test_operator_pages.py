"""The pages that an operator follows, from the released chart to its removal: every command, as it stands there.

The tests are one story, in their order; the last one names the commands that no test ran. The GPUs are emulated, and
images of others become busybox. Not here: the pages about moving (test_moving.py), and what the pages explain.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY
from tests.downloads import PUBLIC, downloads
from tests.e2e.installed.images import import_vcuda, vcuda_archive
from tests.e2e.installed.published import published, released_files
from tests.e2e.moving.page import Page
from tests.e2e.moving.scene import DEPLOYMENTS, SYSTEM, Scene, deployment, exists, moving, uuids
from tests.e2e.node.workload import CORE, MEMORY
from tests.fenced import fenced
from tests.programs import helm_program

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(900)]

AGENT = "app.kubernetes.io/name=vcuda-agent"
CORES = 100 * len(uuids())
CORDON = "tencent.com/vcuda-cordon"
KIND = "vcuda:0.1.0-emulated"


@pytest.fixture(scope="module")
def scene(
    cluster: Cluster, programs: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """A node with GPUs that nobody serves, and a release that is published."""
    folder = tmp_path_factory.mktemp("operator")
    helm = folder / "helm"
    helm.symlink_to(helm_program(request))
    with (
        published(cluster, programs, request, folder, samples=["busybox:1.36"]) as served,
        downloads(released_files(request)) as files,
        moving(cluster, served, "maintenance.md", kubectl=programs / "kubectl", helm=helm) as scene,
    ):
        scene.page.words.update({PUBLIC: files})
        yield scene


@pytest.fixture(scope="module")
def pages(scene: Scene) -> dict[str, Page]:
    """By name; each knows which of its commands were run."""
    words = {
        "install.md": {},
        "kubectl.md": scene.page.words,
        "claims.md": {},
        "scheduler.md": {"POD": "first", "NAMESPACE": "default"},
        "reference/http-api.md": {},
        "how-to/doctor.md": {"node-a": scene.node},
        "how-to/maintenance.md": {"GPU-...": uuids()[0]},
        "how-to/quotas.md": {},
        "how-to/time-slicing.md": {},
    }
    found = {name: scene.page.of(name, given) for name, given in words.items()}
    first_hour = {"kind-control-plane": scene.node}
    return {**found, "first-hour.md": scene.page.of("first-hour.md", first_hour, from_checkout=True)}


def rolled_out(scene: Scene) -> None:
    scene.page.shell("kubectl -n kube-system rollout status daemonset/vcuda-agent deployment/vcuda-scheduler")
    scene.wait_allocatable(CORE, CORES)


def test_a_release_is_installed_and_the_first_pod_gets_its_share(scene: Scene, pages: dict[str, Page]) -> None:
    page = pages["install.md"]
    first, *others = page.all()
    (label,) = re.findall(r"`(kubectl label node NODE \S+)`", (REPOSITORY / "docs/install.md").read_text())
    page.shell(label)
    page.shell("\n".join(line for line in first.commands if not line.startswith(BY_OTHERS["install.md"])))
    assert [each.text for each in others if not each.heading] == []
    scene.wait_allocatable(CORE, CORES)
    start, *rest = page.blocks("Check the installation")[0].partition("kubectl describe")
    page.shell(start)
    pods.wait_running(scene.admin, ["first"])
    assert "GPUAllocated" in page.shell("".join(rest))


def test_the_command_is_installed_from_the_release(pages: dict[str, Page], tmp_path: Path) -> None:
    page = pages["kubectl.md"]
    *_, install, at_once = page.blocks("Install")  # before these a clone's and krew's: tests/scripts/test_plugin.py
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    bin_ = tmp_path / "venv/bin"
    said = page.shell(f"PATH={bin_}:$PATH\n{install}\nhash -r\nwhich vcuda kubectl-vcuda\nkubectl vcuda version")
    assert f"{bin_}/vcuda\n" in said
    assert f"{bin_}/kubectl-vcuda\n" in said
    assert "Scheduler Version: " in said
    assert "Scheduler Version: " in page.shell(at_once)


def test_views_explanations_and_archives_are_had(pages: dict[str, Page], scene: Scene) -> None:
    assert scene.node in pages["scheduler.md"].run("Why is my pod Pending?")
    assert scene.node in pages["reference/http-api.md"].run("")
    page = pages["how-to/doctor.md"]
    archive, of_a_node = page.blocks("Gather what support needs")[0].splitlines()
    made = re.findall(r"^vcuda-bundle-\S+$", page.shell(archive), re.MULTILINE)
    (file,) = [REPOSITORY / name for name in made]
    assert file.stat().st_size > 0
    file.unlink()
    file = Path(of_a_node.split()[-1])
    page.shell(of_a_node)
    file.unlink()


def test_doctor_says_that_all_is_well_from_outside_on_the_node_and_in_the_chart(pages: dict[str, Page]) -> None:
    page = pages["how-to/doctor.md"]
    assert "ok       agents: " in page.run("")
    assert "ok       nvml: " in page.run("On a node")
    said = page.run("In the chart")
    assert "Phase:          Succeeded" in said
    assert "ok       admission: " in said


def test_the_page_is_opened_by_the_command_and_through_kubectl_proxy(scene: Scene, pages: dict[str, Page]) -> None:
    page = pages["kubectl.md"]
    command, proxy, token = page.blocks("The page")
    with page.serving(command, "--no-browser") as address:
        assert re.match(r"http://127\.0\.0\.1:\d+/", address)
        assert "<title>" in urllib3.request("GET", address.strip(), timeout=60).data.decode()
    (shown,) = re.findall(r"`(http://127\.0\.0\.1:8001/\S+)`", (REPOSITORY / "docs/kubectl.md").read_text())
    with page.serving(proxy, "--port=0") as said:
        found = re.search(r"127\.0\.0\.1:\d+", said)
        assert found, said
        ui = shown.replace("127.0.0.1:8001", found[0])
        assert "<title>" in urllib3.request("GET", ui, timeout=60).data.decode()
        (shown_token,) = [line for line in page.shell(token).splitlines() if line.startswith("eyJ")]
        view = urllib3.request("GET", f"{ui[:-3]}view/pods", headers={"X-Vcuda-Token": shown_token}, timeout=60).json()
    assert [row["pod"] for row in view["items"]] == ["first"]


def test_a_quota_is_described(scene: Scene, pages: dict[str, Page], tmp_path: Path) -> None:
    quota = tmp_path / "quota.yaml"
    quota.write_text(fenced(REPOSITORY / "docs/how-to/quotas.md", "yaml")[0])
    scene.page.shell(f"kubectl create namespace team-a; kubectl apply -f {quota}")
    assert "requests.tencent.com/vcuda-core" in pages["how-to/quotas.md"].run("")
    scene.page.shell("kubectl delete namespace team-a --wait=false")


def test_a_gpu_is_taken_out_and_comes_back(scene: Scene, pages: dict[str, Page]) -> None:
    page = pages["how-to/maintenance.md"]
    page.run("A GPU", block=0)
    wait_until(lambda: cordoned(scene) == {uuids()[0]}, "the GPU is out", evidence=lambda: str(cordoned(scene)))
    page.run("A GPU", block=1)
    wait_until(lambda: not cordoned(scene), "the GPU is in service again", evidence=lambda: str(cordoned(scene)))


def cordoned(scene: Scene) -> set[str]:
    return {gpu["uuid"] for gpu in scene.view("node", scene.node)["gpus"] if "cordon" in json.dumps(gpu)}


def test_a_drained_node_gets_its_pods_again_when_it_is_back(scene: Scene, pages: dict[str, Page]) -> None:
    pods.delete(scene.admin, ["first"])
    pods.wait_gone(scene.admin, ["first"])
    pod = pods.pod("web", [pods.container("main", "sleep 10000", {CORE: 20, MEMORY: 8})])
    scene.admin.post(DEPLOYMENTS, deployment("web", pod))
    before = scene.wait_one_runs("app=web")["metadata"]["uid"]
    page = pages["how-to/maintenance.md"]
    page.run("A node", block=0)
    assert len(scene.pods_of(AGENT, SYSTEM)) == 1, "the agent stays"
    assert scene.node_object()["spec"]["unschedulable"]
    page.run("A node", block=1)
    scene.wait_one_runs("app=web", other_than=before)


def test_vcuda_leaves_a_node_and_comes_to_one_that_time_slicing_left(scene: Scene, pages: dict[str, Page]) -> None:
    pages["how-to/maintenance.md"].run("A node", block=2)
    wait_until(lambda: scene.pods_of(AGENT, SYSTEM) == [], "the agent left")
    scene.wait_allocatable(CORE, 0)
    pages["how-to/time-slicing.md"].run("")
    assert scene.node_object()["metadata"]["labels"]["nvidia.com/gpu.deploy.device-plugin"] == "false"
    scene.wait_allocatable(CORE, CORES)
    scene.wait_one_runs("app=web")


def test_the_node_offers_its_gpus_to_claims_and_takes_them_back(scene: Scene, pages: dict[str, Page]) -> None:
    sample = "vcuda-sample-claim"
    assert "resourceslices" in pages["claims.md"].blocks("Install")[0]
    pages["claims.md"].run("Install")
    pods.wait_running(scene.admin, [sample])
    wait_until(lambda: "nvidia0" in pods.log(scene.admin, sample, "main"), "the container says what it was given")
    scene.wait_allocatable(CORE, 0)
    claims = f"/apis/resource.k8s.io/v1/namespaces/{pods.NAMESPACE}/resourceclaims"

    def said() -> str:
        (claim,) = scene.admin.get(claims)["items"]
        return str(claim["status"].get("devices"))

    wait_until(lambda: "20 cores and 4 GiB of GPU 0" in said(), "the claim says it too", evidence=said)
    pods.delete(scene.admin, [sample])
    pods.wait_gone(scene.admin, [sample])
    scene.page.shell("kubectl delete resourceclaimtemplate gpu-share")
    back = pages["claims.md"].blocks("Install")[0].splitlines()[0].replace("enabled=true", "enabled=false")
    scene.page.shell(back)
    rolled_out(scene)


def test_a_value_is_changed_and_the_release_removed_with_all_that_it_left(scene: Scene, pages: dict[str, Page]) -> None:
    scene.admin.delete(f"{DEPLOYMENTS}/web")
    wait_until(lambda: scene.pods_of("app=web") == [], "the GPU pods are gone")
    upgrade, remove = pages["install.md"].blocks("Upgrade and removal")
    pages["install.md"].shell(upgrade)
    rolled_out(scene)
    (extender,) = scene.admin.get(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/vcuda-scheduler")["spec"]["template"][
        "spec"
    ]["initContainers"]
    assert "--node-policy=binpack" in extender["args"]
    pages["install.md"].shell(remove)
    metadata = scene.node_object()["metadata"]
    assert [name for name in {**metadata["labels"], **metadata["annotations"]} if "tencent.com" in name] == []
    assert not exists(scene.admin, f"/api/v1/namespaces/{SYSTEM}/secrets/vcuda-scheduler-tls")


@pytest.fixture(scope="module")
def kind_image(cluster: Cluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The node has the image with the emulated driver."""
    import_vcuda(cluster, vcuda_archive(request), KIND, tmp_path_factory.mktemp("kind"))


def test_the_first_hour_ends_with_what_the_page_shows(scene: Scene, pages: dict[str, Page], kind_image: None) -> None:
    page = pages["first-hour.md"]
    (heading,) = {each.heading for each in page.all() if "Kubernetes" in each.heading}
    install, pod, big, look, ui = page.blocks(heading)
    page.shell(install)
    scene.wait_allocatable(CORE, CORES)
    apply, *rest = pod.partition("\n")
    page.shell(apply)
    pods.wait_running(scene.admin, ["vcuda-sample"])
    assert "GPUAllocated" in page.shell("".join(rest))
    create, explain = big.splitlines()
    page.shell(create)
    wait_until(lambda: "not enough matching GPUs" in page.shell(explain), "the pod is explained")
    said = page.shell(look)
    assert "\nfailed " not in said
    assert "ok       agents: " in said
    assert scene.node in said
    with page.serving(ui, "--no-browser") as address:
        assert address.startswith("http://127.0.0.1:")


PAGES = [
    "install.md",
    "claims.md",
    "kubectl.md",
    "scheduler.md",
    "reference/http-api.md",
    "how-to/doctor.md",
    "how-to/maintenance.md",
    "how-to/quotas.md",
    "how-to/time-slicing.md",
    "first-hour.md",
]
BY_OTHERS = {
    "install.md": ("docker ", "cosign ", "sha256sum "),  # test_first_commands.py, test_publishing.py
    "kubectl.md": ("kubectl krew ", "kubectl vcuda "),  # tests/scripts/test_plugin.py, tests/docs/test_kubectl.py
    "first-hour.md": ("scripts/demo", ".venv/bin/vcuda place ", ".venv/bin/vcuda simulate "),  # tests/docs/test_site.py
}


@pytest.mark.parametrize("name", PAGES)
def test_no_command_of_the_page_was_left_out(pages: dict[str, Page], name: str) -> None:
    assert [each for each in pages[name].not_run() if not each.startswith(BY_OTHERS.get(name, ("\n",)))] == []
    assert set(PAGES) == set(pages)
