"""The status of a claim says what was prepared, once, and says it again when a GPU fails or the claim could not be
written; other drivers' words stay. The API server is a real local one."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deviceplugin.agent.claim_reconciler import ClaimStatus
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.ledger.grant import Source
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import ContainerRef, PodRef, PodUid
from deviceplugin.model.gpu import Health, Inventory
from deviceplugin.structs import replace
from sandbox.apiserver import ApiServer, JsonObject
from tests.kube.kubeconfigs import open_transport
from tests.ledger.makers import grant, inventory, open_ledger, uuid
from tests.waiting import until

DRIVER, POOL = "gpu.vcuda.tencent.com", "node-a"
OTHERS: JsonObject = {"driver": "net.example.org", "pool": "p", "device": "d"}


@dataclass
class Scene:
    """`writes` counts what the API server was asked to change."""

    server: ApiServer
    ledger: Ledger
    status: ClaimStatus
    gpus: list[Inventory] = field(default_factory=list)
    now: list[float] = field(default_factory=list)

    def claim(self, name: str = "one", **status: object) -> str:
        result = {"request": "gpu", "driver": DRIVER, "pool": POOL, "device": "gpu-1", "shareID": "s-1"}
        whole = {"allocation": {"devices": {"results": [result]}}, **status}
        made = self.server.store.create(
            "resourceclaims", {"metadata": {"name": name}, "spec": {}, "status": whole}, namespace="default"
        )
        return str(made["metadata"]["uid"])

    def give(self, uid: str, name: str = "one", cores: int = 20) -> None:
        made = grant(name, cores=cores, blocks=1 if cores < 20 else 8, on=(1,))
        owner = ContainerRef(PodRef(PodUid(uid), "default", name), "gpu")
        allocation = replace(made.allocation, owner=owner)
        self.ledger.grant(replace(made, source=Source.CLAIM, allocation=allocation), self.gpus[0])

    def devices(self, name: str = "one") -> list[JsonObject]:
        found = self.server.store.get("resourceclaims", name, namespace="default")
        devices: list[JsonObject] = found["status"].get("devices") or []
        return devices

    def writes(self) -> int:
        return sum(method == "PATCH" for method, _ in self.server.requests)


@asynccontextmanager
async def telling(folder: Path) -> AsyncIterator[Scene]:
    gpus, ledger, now = [inventory(2)], open_ledger(folder), [time.time()]
    async with ApiServer() as server:
        credentials = Credentials(server.kubeconfig(folder / "kubeconfig"))
        async with KubeClient(await open_transport(None, credentials=credentials)) as client:
            status = ClaimStatus(
                ledger,
                inventory=lambda: gpus[0],
                get_claim=client.get_claim,
                show=client.show_devices,
                driver=DRIVER,
                pool=POOL,
                clock=lambda: now[0],
            )
            yield Scene(server, ledger, status, gpus, now)
    ledger.close()


@pytest.fixture
async def scene(short_tmp: Path) -> AsyncIterator[Scene]:
    async with telling(short_tmp) as found:
        yield found


async def test_a_claim_is_left_alone_while_its_containers_start(scene: Scene) -> None:
    scene.give(scene.claim())
    (held,) = scene.ledger.grants()
    scene.now[0] = held.created + 1
    await scene.status.write()
    assert scene.writes() == 0
    scene.now[0] = held.created + 6
    await scene.status.write()
    assert scene.devices()[0]["conditions"][0]["reason"] == "Prepared"


async def test_what_was_prepared_is_said_once_beside_the_words_of_other_drivers(scene: Scene) -> None:
    scene.give(scene.claim(devices=[OTHERS]))
    for _ in range(3):
        await scene.status.write()
    others, device = scene.devices()
    (condition,) = device["conditions"]
    assert others["driver"] == OTHERS["driver"]
    assert (device["driver"], device["pool"], device["device"], device["shareID"]) == (DRIVER, POOL, "gpu-1", "s-1")
    assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "Prepared")
    assert condition["message"].startswith("20 cores and 2 GiB of GPU 1 (")
    scene.status._written.clear()  # as an agent that starts again
    await scene.status.write()
    assert scene.devices() == [others, device], "not the time either, which is that of the change"
    assert scene.writes() == 1


async def test_a_gpu_that_fails_is_said(scene: Scene) -> None:
    scene.give(scene.claim())
    await scene.status.write()
    scene.gpus[0] = replace(scene.gpus[0], health={uuid(1): Health(healthy=False, reason="XID 79")})
    await scene.status.write()
    (condition,) = scene.devices()[0]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "GPUUnhealthy")
    assert condition["message"].endswith("is unhealthy: XID 79")


async def test_a_claim_that_ends_while_others_are_written_is_not_written_as_prepared(scene: Scene) -> None:
    """Few are written in a second."""
    for at in range(12):
        scene.give(scene.claim(f"c{at}"), f"c{at}", cores=5)
    writing = asyncio.create_task(scene.status.write())
    await until(lambda: scene.writes() == 10)
    scene.ledger.release([each.id for each in scene.ledger.grants()][-1:], why="its claim was unprepared")
    await writing
    assert (scene.writes(), scene.devices("c11")) == (11, [])


async def test_another_claim_of_the_name_is_not_written(scene: Scene) -> None:
    scene.claim()
    scene.give("uid-of-the-claim-before")
    await scene.status.write()
    assert scene.devices() == []
