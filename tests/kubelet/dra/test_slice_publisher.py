"""The node has one slice that says what the driver offers, whatever kubelet, others and the API server do."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.reflector import Reflector, WatchTiming
from deviceplugin.kube.resource_slices import NodeSlice, slices_of
from deviceplugin.kubelet.dra.slice_publisher import SlicePublisher, SliceTiming
from deviceplugin.model.claims import PublishedDevice, Taint
from deviceplugin.model.node import ClusterNode
from deviceplugin.structs import replace
from sandbox.apiserver import ApiServer, Harm, JsonObject
from tests.kube.kubeconfigs import open_transport
from tests.waiting import in_background

DRIVER, NODE = "gpu.vcuda.tencent.com", "node-a"
PACE = SliceTiming(apart=0.05, check=0.2, first_wait=0.02, most_wait=0.1)
WATCH = WatchTiming(watch=20.0, first_wait=0.01, most_wait=0.02)


@dataclass
class Scene:
    """`devices` is what the driver offers; `node` what its watch shows."""

    server: ApiServer
    publisher: SlicePublisher
    devices: list[PublishedDevice]
    node: list[ClusterNode] = field(default_factory=list)

    def slices(self) -> list[JsonObject]:
        return self.server.store.objects("resourceslices")

    def names(self) -> list[str]:
        return [each["name"] for found in self.slices() for each in found["spec"]["devices"]]

    def writes(self) -> int:
        return sum(method != "GET" and "resourceslices" in path for method, path in self.server.requests)

    def put(self, *devices: PublishedDevice) -> None:
        self.devices[:] = devices
        self.publisher.soon()


def device(minor: int, **changes: object) -> PublishedDevice:
    made = PublishedDevice(f"gpu-{minor}", {"uuid": f"GPU-{minor}", "inUse": False}, 100, 320)
    return replace(made, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def publishing(folder: Path, *, registered: bool = True) -> AsyncIterator[Scene]:
    async with ApiServer(bookmark_seconds=0.05) as server:
        credentials = Credentials(server.kubeconfig(folder / "kubeconfig"))
        async with KubeClient(await open_transport(None, credentials=credentials)) as client:
            slices: Reflector[str, NodeSlice] = Reflector(client, slices_of(DRIVER, NODE), pace=WATCH)
            devices, node = [device(0), device(1)], [ClusterNode(name=NODE, uid="node-uid")]

            def now() -> ClusterNode | None:
                return node[0] if node else None

            def offered() -> Sequence[PublishedDevice]:
                return tuple(devices)

            made = SlicePublisher(client, slices, driver=DRIVER, node=now, devices=offered, pace=PACE)
            if registered:
                made.registered()
            async with in_background(slices.run()), in_background(made.run()):
                yield Scene(server, made, devices, node)


async def test_one_slice_says_what_is_offered_and_goes_with_its_node(tmp_path: Path) -> None:
    async with publishing(tmp_path) as scene:
        await scene.server.until(lambda: len(scene.slices()) == 1)
        (found,) = scene.slices()
        assert found["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
        assert found["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        assert (found["spec"]["driver"], found["spec"]["nodeName"]) == (DRIVER, NODE)
        first = found["spec"]["devices"][0]
        assert first["allowMultipleAllocations"] is True
        assert first["attributes"] == {"uuid": {"string": "GPU-0"}, "inUse": {"bool": False}}
        assert first["capacity"]["memory"]["value"] == "80Gi"
        assert first["capacity"]["memory"]["requestPolicy"]["validRange"]["step"] == "256Mi"


async def test_nothing_is_published_before_kubelet_knows_the_driver(tmp_path: Path) -> None:
    async with publishing(tmp_path, registered=False) as scene:
        await asyncio.sleep(0.3)
        assert scene.slices() == []
        scene.publisher.registered()
        await scene.server.until(lambda: len(scene.slices()) == 1)


async def test_what_changes_is_written_once_and_what_does_not_never(tmp_path: Path) -> None:
    async with publishing(tmp_path) as scene:
        await scene.server.until(lambda: len(scene.slices()) == 1)
        await asyncio.sleep(0.5)
        assert scene.writes() == 1
        ill = device(1, taints=(Taint("vcuda.tencent.com/unhealthy", "Xid-79"),))
        scene.put(device(0), ill)
        await scene.server.until(lambda: "taints" in scene.slices()[0]["spec"]["devices"][1])
        (found,) = scene.slices()
        assert found["spec"]["pool"]["generation"] == 2
        assert found["spec"]["devices"][1]["taints"] == [
            {"key": "vcuda.tencent.com/unhealthy", "value": "Xid-79", "effect": "NoSchedule"}
        ]
        # The API server adds the time; that is no difference.
        found["spec"]["devices"][1]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
        scene.server.store.patch("resourceslices", found["metadata"]["name"], {"spec": found["spec"]})
        scene.publisher.soon()
        await asyncio.sleep(0.5)
        assert scene.writes() == 2


async def test_a_slice_that_kubelet_deleted_is_made_again(tmp_path: Path) -> None:
    async with publishing(tmp_path) as scene:
        for _ in range(3):
            await scene.server.until(lambda: len(scene.slices()) == 1)
            scene.server.store.delete("resourceslices", scene.slices()[0]["metadata"]["name"])
            await scene.server.until(lambda: len(scene.slices()) == 1)
        assert scene.names() == ["gpu-0", "gpu-1"]


async def test_what_somebody_else_wrote_into_it_is_put_right(tmp_path: Path) -> None:
    async with publishing(tmp_path) as scene:
        await scene.server.until(lambda: len(scene.slices()) == 1)
        name = scene.slices()[0]["metadata"]["name"]
        scene.server.store.patch("resourceslices", name, {"spec": {"devices": []}})
        await scene.server.until(lambda: scene.names() == ["gpu-0", "gpu-1"])


async def test_of_several_slices_one_is_kept(tmp_path: Path) -> None:
    """Two agents side by side, or an answer that was lost on its way."""
    async with publishing(tmp_path, registered=False) as scene:
        for generation in (3, 1, 2):
            spec = {"driver": DRIVER, "nodeName": NODE, "pool": {"name": NODE, "generation": generation}, "devices": []}
            scene.server.store.create("resourceslices", {"metadata": {"generateName": "x-"}, "spec": spec})
        scene.publisher.registered()
        await scene.server.until(lambda: len(scene.slices()) == 1 and scene.names() == ["gpu-0", "gpu-1"])
        assert scene.slices()[0]["spec"]["pool"]["generation"] == 4


async def test_slices_of_other_nodes_and_drivers_are_left_alone(tmp_path: Path) -> None:
    async with publishing(tmp_path, registered=False) as scene:
        for driver, node in ((DRIVER, "node-b"), ("gpu.nvidia.com", NODE)):
            spec = {"driver": driver, "nodeName": node, "pool": {"name": node, "generation": 9}, "devices": []}
            scene.server.store.create("resourceslices", {"metadata": {"generateName": "x-"}, "spec": spec})
        scene.publisher.registered()
        await scene.server.until(lambda: len(scene.slices()) == 3)
        await asyncio.sleep(0.3)
        assert sorted(each["spec"]["pool"]["generation"] for each in scene.slices()) == [1, 9, 9]


async def test_a_node_without_gpus_has_an_empty_slice(tmp_path: Path) -> None:
    async with publishing(tmp_path) as scene:
        await scene.server.until(lambda: len(scene.slices()) == 1)
        scene.put()
        await scene.server.until(lambda: scene.slices()[0]["spec"]["devices"] == [])


async def test_the_slice_waits_until_the_node_is_known(tmp_path: Path) -> None:
    async with publishing(tmp_path, registered=False) as scene:
        node = scene.node.pop()
        scene.publisher.registered()
        await asyncio.sleep(0.2)
        assert scene.slices() == []
        scene.node.append(node)
        await scene.server.until(lambda: len(scene.slices()) == 1)


@pytest.mark.parametrize("status", [403, 409, 500])
async def test_a_refused_write_is_tried_again(tmp_path: Path, status: int) -> None:
    async with publishing(tmp_path, registered=False) as scene:
        scene.server.faults.fail(status, times=3, method="POST")
        scene.publisher.registered()
        await scene.server.until(lambda: len(scene.slices()) == 1)
        assert scene.names() == ["gpu-0", "gpu-1"]


async def test_a_slice_whose_answer_was_lost_does_not_stay_beside_the_next_one(tmp_path: Path) -> None:
    async with publishing(tmp_path, registered=False) as scene:
        scene.server.faults.add(Harm.LOST, method="POST")
        scene.publisher.registered()
        await scene.server.until(lambda: scene.writes() >= 1 and len(scene.slices()) == 1)
        await asyncio.sleep(0.5)
        assert (len(scene.slices()), scene.names()) == (1, ["gpu-0", "gpu-1"])
