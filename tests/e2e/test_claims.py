"""Shares by ResourceClaim, with the real API server, kube-scheduler and kubelet: slices, registration, prepare, end.

The driver's parts run in this process. What a container sees of its claim is not looked at: this machine's containerd
may be older than CDI.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.reflector import Reflector
from deviceplugin.kube.resource_slices import NodeSlice, slices_of
from deviceplugin.kube.transport import Transport
from deviceplugin.kubelet.dra.link import DraLink
from deviceplugin.kubelet.dra.prepare import Claims
from deviceplugin.kubelet.dra.published import DriverNames, published_devices
from deviceplugin.kubelet.dra.service import DraService, HealthService
from deviceplugin.kubelet.dra.slice_publisher import SlicePublisher, SliceTiming
from deviceplugin.kubelet.dra.state_file import STATE_NAME, StateFile
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.gpu import GpuUuid, Health, Inventory
from deviceplugin.simulate.gpu_profile import parse_profile
from sandbox.cluster import pods
from sandbox.cluster.client import Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import PROFILES
from tests.daemonset.chart import Object
from tests.kubelet.dra.test_prepare import MemoryFiles
from tests.ledger.makers import open_ledger

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAMES = DriverNames("tencent.com")
API = "/apis/resource.k8s.io/v1"
TEMPLATES = f"{API}/namespaces/{pods.NAMESPACE}/resourceclaimtemplates"
CLAIMS = f"{API}/namespaces/{pods.NAMESPACE}/resourceclaims"
CLASS: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": NAMES.device_class},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{NAMES.driver}'"}}]},
}
SHARE = {"cores": "20", "memory": "2Gi"}


@dataclass
class Driver:
    """The parts of the driver on the cluster's node."""

    cluster: Cluster
    ledger: Ledger
    files: MemoryFiles
    inventory: list[Inventory]
    publisher: SlicePublisher
    state: StateFile

    @property
    def admin(self) -> Client:
        return self.cluster.admin

    def slices(self) -> list[Object]:
        found = self.admin.get(f"{API}/resourceslices?fieldSelector=spec.driver={NAMES.driver}")["items"]
        assert isinstance(found, list)
        return found

    def held(self) -> dict[int, tuple[int, int]]:
        """Cores and blocks by minor."""
        found: dict[int, tuple[int, int]] = {}
        for each in self.ledger.allocations():
            for share in each.shares:
                gpu = self.inventory[0].gpu(share.uuid)
                assert gpu is not None
                cores, blocks = found.get(gpu.minor, (0, 0))
                found[gpu.minor] = (cores + share.cores, blocks + share.blocks)
        return found

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await asyncio.to_thread(wait_until, condition, what, evidence=self._evidence)

    def _evidence(self) -> str:
        states = [str(each) for each in pods.states(self.admin).values()]
        return f"{states}\n{self.held()}\n{self.cluster.kubelet.process.log_tail()}"

    async def create(self, *names: str, capacity: dict[str, str] | None = None, count: int = 1) -> None:
        """Each pod with a claim of its own, of one request."""
        exactly: Object = {"deviceClassName": NAMES.device_class, "count": count}
        if capacity is not None:
            exactly["capacity"] = {"requests": capacity}
        for name in names:
            spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
            template = {"metadata": {"name": name}, "spec": {"spec": spec}}
            pod = pods.pod(name, [pods.container("main", "sleep 10000")])
            pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": name}]
            pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
            await asyncio.to_thread(self.admin.post, TEMPLATES, template)
            await asyncio.to_thread(pods.create, self.admin, pod)

    async def delete_all(self) -> None:
        await asyncio.to_thread(pods.delete_all, self.admin)
        for each in self.admin.get(TEMPLATES)["items"]:
            self.admin.delete(f"{TEMPLATES}/{each['metadata']['name']}")


@asynccontextmanager
async def running(cluster: Cluster, folder: Path) -> AsyncIterator[Driver]:
    inventory = [parse_profile((PROFILES / "hgx-a100.json").read_bytes()).inventory]
    name = cluster.kubelet.node
    found = cluster.admin.get(f"/api/v1/nodes/{name}")["metadata"]
    node = ClusterNode(name=name, uid=str(found["uid"]))
    ledger, files = open_ledger(folder), MemoryFiles()
    async with AsyncExitStack() as undo:
        client = KubeClient(Transport(Credentials(cluster.control_plane.admin_kubeconfig)))
        await undo.enter_async_context(client)
        slices: Reflector[str, NodeSlice] = Reflector(client, slices_of(NAMES.driver, name))
        publisher = SlicePublisher(
            client,
            slices,
            driver=NAMES.driver,
            node=lambda: node,
            devices=lambda: published_devices(inventory[0], NAMES),
            pace=SliceTiming(check=1.0),
        )
        claims = Claims(
            ledger=ledger,
            inventory=lambda: inventory[0],
            get_claim=client.get_claim,
            files=files,
            driver=NAMES.driver,
            pool=name,
        )
        link = DraLink(
            DraService(claims),
            HealthService(lambda: inventory[0], name),
            driver=NAMES.driver,
            root=cluster.layout.kubelet,
            on_registered=publisher.registered,
        )
        tasks = [asyncio.create_task(each) for each in (slices.run(), publisher.run(), link.run())]
        state = StateFile(cluster.layout.kubelet / STATE_NAME, NAMES.driver)
        driver = Driver(cluster, ledger, files, inventory, publisher, state)
        try:
            yield driver
            await driver.delete_all()
        finally:
            await asyncio.to_thread(pods.delete_all, cluster.admin)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in driver.slices():
                cluster.admin.delete(f"{API}/resourceslices/{each['metadata']['name']}")
            ledger.close()


@pytest.fixture
async def driver(cluster: Cluster, short_tmp: Path) -> AsyncIterator[Driver]:
    cluster.admin.post(f"{API}/deviceclasses", CLASS)
    try:
        async with running(cluster, short_tmp) as found:
            yield found
    finally:
        cluster.admin.delete(f"{API}/deviceclasses/{NAMES.device_class}")


async def test_the_slice_is_accepted_as_it_is_and_not_written_again(driver: Driver) -> None:
    await driver.until(lambda: len(driver.slices()) == 1, "the slice is published")
    ill = {driver.inventory[0].gpus[3].uuid: Health(healthy=False, reason="Xid 79")}
    driver.inventory[0] = Inventory(
        driver.inventory[0].gpus, driver.inventory[0].topology, driver.inventory[0].driver, ill
    )
    driver.publisher.soon()
    await driver.until(lambda: "taints" in driver.slices()[0]["spec"]["devices"][3], "the taint is there")
    await asyncio.sleep(4)  # four checks
    (found,) = driver.slices()
    assert found["spec"]["pool"]["generation"] == 2, "the API server writes quantities and times in its own way"
    assert [each["name"] for each in found["spec"]["devices"]] == [f"gpu-{minor}" for minor in range(8)]


async def test_shares_fill_one_gpu_after_the_other_and_end_with_their_pods(driver: Driver) -> None:
    names = [f"share-{number}" for number in range(7)]
    await driver.create(*names, capacity=SHARE)
    await asyncio.to_thread(pods.wait_running, driver.admin, names)
    assert driver.held() == {0: (100, 40), 1: (40, 16)}
    prepared = driver.state.read().claims
    assert {each for one in prepared.values() for each in one.cdi} == {
        f"tencent.com/vcuda={grant.id}" for grant in driver.ledger.grants()
    }
    assert len(driver.files.written) == 7
    await driver.delete_all()
    await driver.until(lambda: driver.ledger.grants() == () and not driver.state.read().claims, "all have ended")
    assert driver.files.written == {}


async def test_a_request_without_capacity_is_a_whole_gpu_and_rounding_is_what_is_enforced(driver: Driver) -> None:
    whole = driver.inventory[0].gpus[0].blocks
    await driver.create("whole")
    await driver.create("odd", capacity={"cores": "1500m", "memory": "2100Mi"})
    await driver.create("pair", count=2)
    await asyncio.to_thread(pods.wait_running, driver.admin, ["whole", "odd", "pair"])
    requests = {grant.allocation.owner.pod.name[:4]: grant.allocation.request for grant in driver.ledger.grants()}
    assert (requests["whol"].is_share, requests["pair"].gpus) == (False, 2)
    assert (requests["odd-"].cores, requests["odd-"].blocks) == (2, 9)
    assert sorted(driver.held().values()) == [(2, 9), (100, whole), (100, whole), (100, whole)]


async def test_after_a_start_of_kubelet_the_slice_is_back_and_pods_go_on(driver: Driver) -> None:
    await driver.create("before", capacity=SHARE)
    await asyncio.to_thread(pods.wait_running, driver.admin, ["before"])
    uid = driver.slices()[0]["metadata"]["uid"]
    await asyncio.to_thread(driver.cluster.kubelet.kill)
    await asyncio.to_thread(driver.cluster.kubelet.start)

    def is_new() -> bool:
        return [each["metadata"]["uid"] for each in driver.slices()] not in ([], [uid])

    await driver.until(is_new, "kubelet deleted the slice, and it is there again")
    await driver.create("after", capacity=SHARE)
    await asyncio.to_thread(pods.wait_running, driver.admin, ["before", "after"])
    assert driver.held() == {0: (40, 16)}


async def test_the_former_holder_of_a_gpu_that_still_ends_is_waited_for(driver: Driver) -> None:
    """After a deletion by force the claim is free at once, while the container still stops.

    A driver that refuses the next claim loses a minute: kubelet asks again so late.
    """
    driver.inventory[0] = _only(driver.inventory[0], driver.inventory[0].gpus[0].uuid)
    driver.publisher.soon()
    await driver.until(lambda: [len(each["spec"]["devices"]) for each in driver.slices()] == [1], "one GPU is offered")
    await driver.create("former")
    await asyncio.to_thread(pods.wait_running, driver.admin, ["former"])
    (held,) = driver.ledger.grants()
    await driver.create("later")
    await asyncio.sleep(1)
    assert pods.states(driver.admin)["later"].phase == "Pending"
    began = time.monotonic()
    await asyncio.to_thread(partial(pods.delete, driver.admin, ["former"], grace_s=0))
    await asyncio.to_thread(pods.wait_running, driver.admin, ["later"])
    assert time.monotonic() - began < 45
    (now,) = driver.ledger.grants()
    assert now.id != held.id


def _only(inventory: Inventory, uuid: GpuUuid) -> Inventory:
    gpus = tuple(gpu for gpu in inventory.gpus if gpu.uuid == uuid)
    return Inventory(gpus, inventory.topology, inventory.driver)
