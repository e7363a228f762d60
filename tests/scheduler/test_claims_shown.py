"""The scheduler as a process shows what claims hold, from the API server's slices, claims and pods."""

from pathlib import Path
from typing import Any

from deviceplugin.kube.resource_slices import slice_spec
from deviceplugin.kubelet.dra.slice_publisher import published_devices
from deviceplugin.model.claims import ClaimNames
from sandbox.apiserver.objects import container, pod
from tests.cluster.extender.makers import inventory
from tests.scheduler.scene import Scene, Scheduler, cluster, gpu_node

NAMES = ClaimNames("tencent.com")
Json = dict[str, Any]


def claims_node(name: str) -> Json:
    """As an agent with --dra writes it: the device plugin has no GPU."""
    found = gpu_node(name, gpus=0)
    found["status"]["allocatable"] = {}
    return found


def offers(scene: Scene, name: str) -> None:
    spec = slice_spec(NAMES.driver, name, published_devices(inventory(name), NAMES), 1)
    scene.api.store.create("resourceslices", {"metadata": {"name": f"{name}-vcuda-1"}, "spec": spec})


def claim(scene: Scene, name: str, *, cores: str = "20") -> Json:
    request = {"deviceClassName": NAMES.shares, "capacity": {"requests": {"cores": cores, "memory": "2Gi"}}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
    return scene.api.store.create("resourceclaims", {"metadata": {"name": name}, "spec": spec}, namespace="default")


def claiming(scene: Scene, name: str, of: str, *, on: str = "") -> Json:
    made = pod(name, container() | {"resources": {"claims": [{"name": "gpu"}]}}, node=on)
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": of}]
    return scene.api.store.create("pods", made, namespace="default")


def allocate(scene: Scene, name: str, node: str, minor: int, for_pod: Json) -> None:
    """As kube-scheduler does it."""
    result = {
        "request": "gpu",
        "driver": NAMES.driver,
        "pool": node,
        "device": f"gpu-{minor}",
        "shareID": "1",
        "consumedCapacity": {"cores": "20", "memory": "2Gi"},
    }
    meta = for_pod["metadata"]
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": meta["name"], "uid": meta["uid"]}],
    }
    scene.api.store.patch("resourceclaims", name, {"status": status}, namespace="default", status=True)


async def ready(scene: Scene, *flags: str) -> Scheduler:
    replica = await scene.replica("replica-a", *flags)
    await scene.until_ready(replica)
    return replica


async def test_claims_are_in_one_view_with_the_device_plugin_explained_and_change_no_placement(short_tmp: Path) -> None:
    async with cluster(short_tmp, gpu_node("n1"), claims_node("n2")) as scene:
        offers(scene, "n2")
        claim(scene, "mine")
        runs = claiming(scene, "runs", "mine", on="n2")
        allocate(scene, "mine", "n2", 0, runs)
        replica = await ready(scene, "--dra")
        found = await scene.until(
            replica, "/view/cluster", lambda status, view: status == 200 and view["pods_bound"] == 1
        )
        assert (found["nodes"], found["nodes_with_problem"], found["gpus"], found["free_gpus"]) == (2, 0, 4, 3)
        assert (found["cores_allocated"], found["blocks_allocated"]) == (20, 8)
        status, nodes = await scene.ask(replica, "/view/nodes/n2")
        gpu = nodes["item"]["gpus"][0]
        assert (status, gpu["source"], gpu["uuid"], gpu["holders"][0]["source"]) == (200, "claim", "GPU-n2-0", "claim")
        status, explained = await scene.ask(replica, "/explain?pod=default/runs")
        assert (status, explained["node"]) == (200, "n2")
        assert explained["asked"] == [
            "claim mine, request gpu: 20 cores and 2 GiB of gpu-0 (GPU-n2-0), for container main"
        ]

        scene.api.store.delete("pods", "runs", namespace="default", grace=0)
        scene.api.store.delete("resourceclaims", "mine", namespace="default")
        await scene.until(replica, "/view/cluster", lambda _, view: view["free_gpus"] == 4)
        scene.api.store.delete("resourceslices", "n2-vcuda-1")
        found = await scene.until(replica, "/view/cluster", lambda _, view: view["gpus"] == 2)
        assert found["nodes_with_problem"] == 1

        offers(scene, "n2")
        claim(scene, "huge", cores="101")
        claiming(scene, "waits", "huge")
        claiming(scene, "lost", "nowhere")
        rows = await scene.until(replica, "/view/pods?stage=pending", lambda _, view: len(view["items"]) == 1)
        assert rows["items"][0]["containers"][0]["source"] == "claim"
        found = await scene.until(
            replica, "/explain?pod=default/waits", lambda status, view: status == 200 and view["nodes"]
        )
        assert found["sentence"].endswith("the one node has no room for its claims")
        lost = await scene.until(replica, "/explain?pod=default/lost", lambda status, _: status == 200)
        assert "ResourceClaim default/nowhere does not exist; create it" in lost["sentence"]
        asks = scene.create_pod("asks")
        status, answer = await scene.filter(replica, asks, "n1", "n2")
        assert (status, answer["NodeNames"]) == (200, ["n1"])
