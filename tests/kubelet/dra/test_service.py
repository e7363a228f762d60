"""The driver as kubelet sees it: two sockets, registration, and an answer for every claim."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest

from deviceplugin.kubelet.dra.link import DraLink
from deviceplugin.kubelet.dra.service import DraService, HealthService
from deviceplugin.model.claims import ClaimRef
from deviceplugin.model.gpu import Health, Inventory
from deviceplugin.wire import dra_health_pb2 as health
from deviceplugin.wire import dra_health_pb2_grpc as health_rpc
from deviceplugin.wire import dra_pb2 as pb
from deviceplugin.wire import dra_pb2_grpc as rpc
from deviceplugin.wire import pluginregistration_pb2 as registry
from deviceplugin.wire import pluginregistration_pb2_grpc as registry_rpc
from tests.kubelet.dra.test_prepare import DRIVER, NODE, POOL, Scene, device
from tests.ledger.makers import open_ledger, uuid
from tests.waiting import in_background, until


@dataclass
class Node:
    """`told`: how often the driver learned that kubelet has taken it."""

    root: Path
    scene: Scene
    health: HealthService
    inventory: list[Inventory]
    told: list[None] = field(default_factory=list)

    @property
    def registry_socket(self) -> Path:
        return self.root / "plugins_registry" / f"{DRIVER}-reg.sock"

    async def register(self) -> registry.PluginInfo:
        """As kubelet's plugin watcher does it."""
        async with grpc.aio.insecure_channel(f"unix:{self.registry_socket}") as channel:
            stub = registry_rpc.RegistrationStub(channel)
            info: registry.PluginInfo = await stub.GetInfo(registry.InfoRequest(), timeout=5)
            await stub.NotifyRegistrationStatus(registry.RegistrationStatus(plugin_registered=True), timeout=5)
            return info

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[grpc.aio.Channel]:
        info = await self.register()
        async with grpc.aio.insecure_channel(f"unix:{info.endpoint}") as channel:
            yield channel

    async def prepare(self, *refs: ClaimRef) -> dict[str, pb.NodePrepareResourceResponse]:
        async with self.calling() as channel:
            request = pb.NodePrepareResourcesRequest(claims=map(_claim, refs))
            return dict((await rpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=10)).claims)

    async def unprepare(self, *refs: ClaimRef) -> dict[str, pb.NodeUnprepareResourceResponse]:
        async with self.calling() as channel:
            request = pb.NodeUnprepareResourcesRequest(claims=map(_claim, refs))
            return dict((await rpc.DRAPluginStub(channel).NodeUnprepareResources(request, timeout=10)).claims)


def _claim(ref: ClaimRef) -> pb.Claim:
    return pb.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Node]:
    scene, inventory = Scene(folder, open_ledger(folder)), [NODE]
    told: list[None] = []
    service = HealthService(lambda: inventory[0], POOL, again_s=0.2)
    link = DraLink(
        DraService(scene.claims), service, driver=DRIVER, root=folder, on_registered=lambda: told.append(None)
    )
    node = Node(folder, scene, service, inventory, told)
    async with in_background(link.run()):
        await until(node.registry_socket.exists)
        yield node


async def test_kubelet_finds_the_driver_and_tells_when_it_has_taken_it(short_tmp: Path) -> None:
    async with running(short_tmp) as node:
        info = await node.register()
        assert (info.type, info.name) == ("DRAPlugin", DRIVER)
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        assert info.endpoint == str(short_tmp / "plugins" / DRIVER / "dra.sock")
        assert Path(info.endpoint).exists()
        await node.register()
        assert len(node.told) == 2, "a kubelet that has started again"


async def test_the_sockets_come_back_when_somebody_removes_them(short_tmp: Path) -> None:
    async with running(short_tmp) as node:
        for _ in range(2):
            shutil.rmtree(short_tmp / "plugins")
            node.registry_socket.unlink()
            await until(node.registry_socket.exists)
            ref = node.scene.put("one")
            assert (await node.prepare(ref))[ref.uid].devices[0].device_name == "gpu-0"


async def test_sockets_are_gone_when_the_driver_has_ended(short_tmp: Path) -> None:
    async with running(short_tmp) as node:
        pass
    assert not node.registry_socket.exists()


async def test_a_claim_is_prepared_and_ended(short_tmp: Path) -> None:
    async with running(short_tmp) as node:
        ref = node.scene.put("one")
        (found,) = (await node.prepare(ref))[ref.uid].devices
        (held,) = node.scene.ledger.grants()
        assert (list(found.request_names), found.pool_name, found.device_name) == (["gpu"], POOL, "gpu-0")
        assert (found.share_id, list(found.cdi_device_ids)) == ("s", [f"tencent.com/vcuda={held.id}"])
        assert {uid: each.error for uid, each in (await node.unprepare(ref)).items()} == {ref.uid: ""}
        assert node.scene.ledger.grants() == ()


async def test_each_claim_of_a_pod_has_its_own_answer(short_tmp: Path) -> None:
    async with running(short_tmp) as node:
        good, bad = node.scene.put("good"), node.scene.put("bad", device(0, 150))
        answers = await node.prepare(good, bad)
        assert len(answers[good.uid].devices) == 1
        assert "claim research/bad, request gpu: " in answers[bad.uid].error
        assert not answers[bad.uid].devices


async def test_a_bug_is_one_general_sentence(short_tmp: Path) -> None:
    async with running(short_tmp) as node:
        ref = node.scene.put("one")
        node.scene.faults.append(ZeroDivisionError("secret"))
        assert (await node.prepare(ref))[ref.uid].error == "internal error of the vcuda agent; its log has the details"


async def test_unknown_claims_have_ended_already(short_tmp: Path) -> None:
    async with running(short_tmp) as node:
        ref = node.scene.put("never")
        assert {uid: each.error for uid, each in (await node.unprepare(ref)).items()} == {ref.uid: ""}


async def test_health_is_told_at_once_again_and_when_it_changes(short_tmp: Path) -> None:
    async with running(short_tmp) as node, node.calling() as channel:
        stream = health_rpc.DRAResourceHealthStub(channel).NodeWatchResources(health.NodeWatchResourcesRequest())
        first = await stream.read()
        assert [(each.device.device_name, each.health, each.message) for each in first.devices] == [
            (f"gpu-{minor}", health.HEALTHY, "") for minor in range(4)
        ]
        assert await asyncio.wait_for(stream.read(), 5), "kubelet forgets what is not repeated"
        node.inventory[0] = replace(NODE, health={uuid(1): Health(healthy=False, reason="Xid 79")})
        node.health.changed()
        while (seen := (await stream.read()).devices[1]).health == health.HEALTHY:
            pass
        assert (seen.health, seen.message, seen.device.pool_name) == (health.UNHEALTHY, "Xid 79", POOL)


@pytest.mark.parametrize("count", [40])
async def test_a_burst_of_claims(short_tmp: Path, count: int) -> None:
    """All of four GPUs, by claims of one tenth."""
    async with running(short_tmp) as node:
        refs = [node.scene.put(f"c{number}", device(number % 4, 10, 4)) for number in range(count)]
        answers = await asyncio.gather(*(node.prepare(ref) for ref in refs))
        assert all(answer[ref.uid].devices for ref, answer in zip(refs, answers, strict=True))
        assert node.scene.held() == dict.fromkeys(range(4), 100)
        await asyncio.gather(*(node.unprepare(ref) for ref in refs))
        assert (node.scene.ledger.grants(), node.scene.files.written) == ((), {})
