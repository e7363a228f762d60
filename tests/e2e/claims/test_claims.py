"""Shares by ResourceClaim on a real node: the stock scheduler chooses, and containers have exactly what it chose."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from sandbox.cluster import pods
from sandbox.cluster.claims import CLAIMS
from sandbox.cluster.cluster import Cluster
from tests.e2e.claims.scene import Scene, pod_with, serving_claims
from tests.e2e.node import greedy
from tests.e2e.node.inside import processes_of
from tests.e2e.node.limits import BLOCK_BYTES
from tests.e2e.node.view import SHOW_AND_STAY
from tests.e2e.node.workload import GpuContainer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def serving(cluster: Cluster) -> Iterator[Scene]:
    with serving_claims(cluster) as scene:
        yield scene


@pytest.fixture
def scene(serving: Scene) -> Iterator[Scene]:
    yield serving
    serving.delete_all()
    serving.wait_all_released()


def test_the_slice_has_every_gpu_and_is_not_written_again(scene: Scene) -> None:
    names = [each["name"] for each in scene.devices()]
    assert names == [f"gpu-{minor}" for minor in range(8)]
    (before,) = scene.slices()
    scene.run("one")
    scene.until(lambda: scene.devices()[0]["attributes"]["inUse"]["bool"], "the first GPU is in use")
    time.sleep(4)
    (after,) = scene.slices()
    assert after["spec"]["pool"]["generation"] == before["spec"]["pool"]["generation"] + 1


def test_a_container_has_its_share_and_no_other_gpu(scene: Scene) -> None:
    scene.run("one")
    view = scene.view("one")
    assert view.reachable_gpus == {0}
    assert view.driver_flavour == "nvidia", "vcuda's library is in front of the driver's"
    assert view.limits is not None
    assert (view.limits.cores, view.limits.memory_bytes) == (20, 8 * BLOCK_BYTES)
    (held,) = scene.agent.usage().containers
    assert (held.pod, held.container, held.source) == ("one", "main", "claim")


def test_shares_fill_one_gpu_after_the_other_and_end_with_their_pods(scene: Scene) -> None:
    names = [f"share-{number}" for number in range(7)]
    scene.run(*names)
    assert scene.held() == {0: (100, 40), 1: (40, 16)}
    assert len({scene.view(name).grant_folder for name in names}) == 7
    scene.delete_all()
    scene.wait_all_released()
    assert scene.held() == {}


def test_whole_gpus_run_on_the_untouched_driver(scene: Scene) -> None:
    scene.run("pair", capacity=None, count=2)
    view = scene.view("pair")
    assert view.reachable_gpus == {0, 1}
    assert view.driver_flavour == "origin"
    assert scene.held()[0][0] == 100


def test_what_the_scheduler_rounds_up_is_what_is_enforced(scene: Scene) -> None:
    scene.run("odd", capacity={"cores": "1500m", "memory": "2100Mi"})
    limits = scene.view("odd").limits
    assert limits is not None
    assert (limits.cores, limits.memory_bytes) == (2, 9 * BLOCK_BYTES)


def test_several_pods_on_one_claim_have_one_grant(scene: Scene) -> None:
    scene.claim("shared", scene.claim_spec())
    names = ["first", "second"]
    for name in names:
        pods.create(scene.admin, pod_with(name, resourceClaimName="shared"))
    pods.wait_running(scene.admin, names)
    assert len({scene.view(name).grant_folder for name in names}) == 1
    assert scene.held() == {0: (20, 8)}
    (held,) = scene.agent.usage().containers
    assert (held.pod, held.container) == ("shared", "gpu")
    pods.delete(scene.admin, ["first"])
    pods.wait_gone(scene.admin, ["first"])
    assert scene.held() == {0: (20, 8)}
    pods.delete(scene.admin, ["second"])
    scene.wait_all_released()


def test_each_container_has_the_request_that_it_names(scene: Scene) -> None:
    scene.template("two", scene.claim_spec(requests=("train", "serve")))
    containers = []
    for request in ("train", "serve"):
        (container,) = pod_with("p", request=request, resourceClaimTemplateName="two")["spec"]["containers"]
        containers.append({**container, "name": request})
    claims = [{"name": "gpu", "resourceClaimTemplateName": "two"}]
    pods.create(scene.admin, pods.pod("two", containers, resourceClaims=claims))
    pods.wait_running(scene.admin, ["two"])
    assert scene.held() == {0: (40, 16)}
    assert scene.view("two", "train").grant_folder != scene.view("two", "serve").grant_folder
    assert {each.container for each in scene.agent.usage().containers} == {"train", "serve"}


def test_a_container_with_two_parts_never_starts_and_the_pod_says_why(scene: Scene) -> None:
    scene.template("two", scene.claim_spec(requests=("train", "serve")))
    pods.create(scene.admin, pod_with("greedy", resourceClaimTemplateName="two"))

    def told() -> bool:
        events = scene.admin.get(f"/api/v1/namespaces/{pods.NAMESPACE}/events")["items"]
        return any("would have 2 parts of GPUs" in each["message"] for each in events)

    scene.until(told, "kubelet's event says why")
    assert scene.held() == {}


def test_a_pod_that_asks_for_whole_gpus_by_count_needs_no_claim(scene: Scene) -> None:
    container = pods.container("main", SHOW_AND_STAY, {"tencent.com/vcuda-gpu": 2})
    pods.create(scene.admin, pods.pod("counted", [container]))
    pods.wait_running(scene.admin, ["counted"])
    assert scene.view("counted").reachable_gpus == {0, 1}
    (held,) = scene.agent.usage().containers
    assert (held.pod, held.container) == ("counted", "main")


def test_after_a_start_of_kubelet_the_slice_is_back_and_pods_go_on(scene: Scene) -> None:
    scene.run("before")
    uid = scene.slices()[0]["metadata"]["uid"]
    scene.cluster.kubelet.kill()
    scene.cluster.kubelet.start()
    scene.until(
        lambda: [each["metadata"]["uid"] for each in scene.slices()] not in ([], [uid]),
        "kubelet deleted the slice, and it is there again",
    )
    scene.run("after")
    pods.wait_running(scene.admin, ["before", "after"])
    assert scene.held() == {0: (40, 16)}


def test_a_killed_agent_loses_nothing_and_containers_start_again_without_it(scene: Scene) -> None:
    scene.run("one")
    before = scene.view("one")
    scene.agent.process.kill()
    for path in scene.cluster.layout.cdi.glob("vcuda-*.json"):
        path.unlink()  # as a reboot does, whose tmpfs is empty
    scene.agent.start()
    assert scene.held() == {0: (20, 8)}
    (container,) = pods.states(scene.admin)["one"].containers
    for pid in processes_of(container.container_id):
        with contextlib.suppress(ProcessLookupError):  # a child that ended with its parent
            os.kill(pid, signal.SIGKILL)
    pods.wait_for(
        scene.admin, ["one"], lambda pod: pod.is_running and pod.containers[0].restarts > 0, what="started again"
    )
    assert scene.view("one").grant_folder == before.grant_folder


def test_the_former_holder_of_a_gpu_that_still_ends_is_waited_for(scene: Scene) -> None:
    """After a deletion by force the claim is free at once, while the container still stops.

    A driver that refuses the next claim loses a minute: kubelet asks again so late.
    """
    stubborn = "trap '' TERM; while :; do sleep 1; done"
    scene.template("all", scene.claim_spec(None, count=8))
    pod = pod_with("former", script=stubborn, resourceClaimTemplateName="all")
    pod["spec"]["terminationGracePeriodSeconds"] = 5
    pods.create(scene.admin, pod)
    pods.wait_running(scene.admin, ["former"])
    pods.create(scene.admin, pod_with("later", resourceClaimTemplateName="all"))
    began = time.monotonic()
    pods.delete(scene.admin, ["former"], grace_s=0)
    pods.wait_running(scene.admin, ["later"])
    assert time.monotonic() - began < 55, "kubelet's second try is a minute later"


def test_a_claim_that_kubelet_forgot_is_ended_when_it_is_gone(scene: Scene) -> None:
    scene.run("kept", "lost")
    scene.cluster.kubelet.kill()
    (scene.cluster.layout.kubelet / "dra_manager_state").unlink()
    scene.cluster.kubelet.start()
    time.sleep(3)
    assert scene.held() == {0: (40, 16)}, "its containers run"
    pods.delete(scene.admin, ["lost"])
    scene.until(lambda: scene.held() == {0: (20, 8)}, "the lost claim has ended")
    assert pods.states(scene.admin)["kept"].is_running
    assert len(scene.admin.get(CLAIMS)["items"]) == 1


def test_a_greedy_program_gets_its_share_and_no_more(scene: Scene) -> None:
    """In a container that has its share by a claim, on a GPU of which others could have the rest."""
    gpus = scene.agent.gpus
    greedy.import_image(scene.cluster)
    greedy.hold(gpus)
    scene.template("greedy", scene.claim_spec({"cores": "30", "memory": "4Gi"}))
    pod = greedy.GreedyPod("greedy", GpuContainer("app", 30, 16), seconds=4)
    manifest = pod.manifest(gpus)
    manifest["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    manifest["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "greedy"}]
    pods.create(scene.admin, manifest)
    pods.wait_running(scene.admin, ["greedy"])
    greedy.begin(gpus)
    pods.wait_for(scene.admin, ["greedy"], lambda each: each.phase in ("Succeeded", "Failed"), what="ended")
    (got,) = pod.got(scene.admin)
    assert got.total_bytes == 16 * BLOCK_BYTES
    assert got.got_bytes <= 16 * BLOCK_BYTES
    assert got.refusal == "CUDA_ERROR_OUT_OF_MEMORY"
    assert got.share_percent == pytest.approx(30, abs=4)
