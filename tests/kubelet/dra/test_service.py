"""The driver as kubelet sees it: two sockets, registration, and an answer for every claim."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import pytest

from deviceplugin.kubelet.dra.link import DraLink
from deviceplugin.kubelet.dra.service import DraService
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.claims import ClaimRef
from deviceplugin.model.gpu import Health, Inventory
from deviceplugin.structs import replace
from deviceplugin.wire import dra_health_pb2 as health
from deviceplugin.wire import dra_health_pb2_grpc as health_rpc
from deviceplugin.wire import dra_pb2 as pb
from deviceplugin.wire import dra_pb2_grpc as rpc
from deviceplugin.wire import pluginregistration_pb2 as registry
from deviceplugin.wire import pluginregistration_pb2_grpc as registry_rpc
from sandbox.claims import ClaimCallError, DriverConnection
from tests.kubelet.dra.test_prepare import DRIVER, NODE, POOL, Scene, beside_networks, device
from tests.ledger.makers import open_ledger, uuid
from tests.waiting import until


@dataclass
class Node:
    """`told`: how often the driver learned that kubelet has taken it."""

    scene: Scene
    link: DraLink
    inventory: list[Inventory] = field(default_factory=lambda: [NODE])
    told: list[None] = field(default_factory=list)

    @property
    def registry_socket(self) -> Path:
        return self.link.sockets[1]

    def serve(self) -> None:
        self.link.serve(self.scene.claims, lambda: self.inventory[0], on_registered=lambda: self.told.append(None))

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
            return await prepared(channel, *refs)

    async def unprepare(self, *refs: ClaimRef) -> dict[str, pb.NodeUnprepareResourceResponse]:
        async with self.calling() as channel:
            request = pb.NodeUnprepareResourcesRequest(claims=map(_claim, refs))
            return dict((await rpc.DRAPluginStub(channel).NodeUnprepareResources(request, timeout=10)).claims)


async def prepared(channel: grpc.aio.Channel, *refs: ClaimRef) -> dict[str, pb.NodePrepareResourceResponse]:
    request = pb.NodePrepareResourcesRequest(claims=map(_claim, refs))
    return dict((await rpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=10)).claims)


def _claim(ref: ClaimRef) -> pb.Claim:
    return pb.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name)


@asynccontextmanager
async def starting(folder: Path, scene: Scene | None = None) -> AsyncIterator[Node]:
    """An agent that does not serve claims yet. `scene`: that of its predecessor, which has the same journal."""
    link = DraLink(driver=DRIVER, root=folder, pool=POOL)
    node = Node(scene or Scene(folder, open_ledger(folder)), link)
    link.start()
    try:
        await until(node.registry_socket.exists)
        yield node
    finally:
        await link.stop()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Node]:
    async with starting(folder) as node:
        node.serve()
        yield node


@pytest.fixture
async def node(short_tmp: Path) -> AsyncIterator[Node]:
    async with running(short_tmp) as node:
        yield node


async def test_kubelet_finds_the_driver_and_tells_when_it_has_taken_it(node: Node, short_tmp: Path) -> None:
    info = await node.register()
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
    assert Path(info.endpoint).parent == short_tmp / "plugins" / DRIVER
    assert Path(info.endpoint).exists()
    await node.register()
    assert len(node.told) == 2, "a kubelet that has started again"


async def test_the_sockets_come_back_when_somebody_removes_them(node: Node, short_tmp: Path) -> None:
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


async def test_a_claim_is_prepared_and_ended(node: Node) -> None:
    ref = node.scene.put("one")
    (found,) = (await node.prepare(ref))[ref.uid].devices
    (held,) = node.scene.ledger.grants()
    assert (list(found.request_names), found.pool_name, found.device_name) == (["gpu"], POOL, "gpu-0")
    assert (found.share_id, list(found.cdi_device_ids)) == ("s", [f"tencent.com/vcuda={held.id}"])
    assert {uid: each.error for uid, each in (await node.unprepare(ref)).items()} == {ref.uid: ""}
    assert node.scene.ledger.grants() == ()


async def test_each_claim_of_a_pod_has_its_own_answer(node: Node) -> None:
    good, bad = node.scene.put("good"), node.scene.put("bad", device(0, 150))
    answers = await node.prepare(good, bad)
    assert len(answers[good.uid].devices) == 1
    assert "claim research/bad, request gpu: " in answers[bad.uid].error
    assert not answers[bad.uid].devices


async def test_kubelet_prepares_and_ends_all_claims_of_a_pod_in_one_call(short_tmp: Path) -> None:
    """If one fails, kubelet asks for both again; what was prepared stays as it is."""
    async with running(short_tmp) as node, node.calling() as channel:
        kubelet = DriverConnection(rpc.DRAPluginStub(channel))
        good, bad, other = node.scene.put("good"), node.scene.put("bad", device(0, 150)), node.scene.put("other")
        with pytest.raises(
            ClaimCallError, match=r"^NodePrepareResources failed for ResourceClaim bad: claim research/bad"
        ):
            await kubelet.prepare(good, bad)
        (held,) = node.scene.ledger.grants()
        answers = await kubelet.prepare(good, other)
        assert [list(answers[ref.uid].devices[0].cdi_device_ids) for ref in (good, other)] == [
            [f"tencent.com/vcuda={grant.id}"] for grant in (held, node.scene.ledger.of_pod(PodUid(other.uid))[0])
        ]
        await kubelet.unprepare(good, bad, other)
        assert node.scene.ledger.grants() == ()


async def test_a_bug_is_one_general_sentence(node: Node) -> None:
    ref = node.scene.put("one")
    node.scene.faults.append(ZeroDivisionError("secret"))
    assert (await node.prepare(ref))[ref.uid].error == "internal error of the vcuda agent; its log has the details"


async def test_unknown_claims_have_ended_already(node: Node) -> None:
    ref = node.scene.put("never")
    assert {uid: each.error for uid, each in (await node.unprepare(ref)).items()} == {ref.uid: ""}


async def test_health_is_told_at_once_again_and_when_it_changes(short_tmp: Path) -> None:
    async with running(short_tmp) as node, node.calling() as channel:
        stream = health_rpc.DRAResourceHealthStub(channel).NodeWatchResources(health.NodeWatchResourcesRequest())
        first = await stream.read()
        assert [(each.device.device_name, each.health, each.message) for each in first.devices] == [
            (f"gpu-{minor}", health.HEALTHY, "") for minor in range(4)
        ]
        assert await asyncio.wait_for(stream.read(), 15), "kubelet forgets what is not repeated"
        node.inventory[0] = replace(NODE, health={uuid(1): Health(healthy=False, reason="Xid 79")})
        node.link.health.changed()
        while (seen := (await stream.read()).devices[1]).health == health.HEALTHY:
            pass
        assert (seen.health, seen.message, seen.device.pool_name) == (health.UNHEALTHY, "Xid 79", POOL)


@pytest.mark.parametrize("count", [40])
async def test_a_burst_of_claims(node: Node, count: int) -> None:
    """All of four GPUs, by claims of one tenth."""
    refs = [node.scene.put(f"c{number}", device(number % 4, 10, 4)) for number in range(count)]
    answers = await asyncio.gather(*(node.prepare(ref) for ref in refs))
    assert all(answer[ref.uid].devices for ref, answer in zip(refs, answers, strict=True))
    assert node.scene.held() == dict.fromkeys(range(4), 100)
    await asyncio.gather(*(node.unprepare(ref) for ref in refs))
    assert (node.scene.ledger.grants(), node.scene.files.written) == ((), {})


async def test_calls_wait_for_an_agent_that_starts(short_tmp: Path) -> None:
    """Kubelet would repeat one that fails only after a minute."""
    async with starting(short_tmp) as node:
        ref = node.scene.put("one")
        early = asyncio.create_task(node.prepare(ref))
        await until(lambda: node.link.is_registered)
        assert not early.done()
        node.serve()
        assert (await early)[ref.uid].devices
        assert node.told, "kubelet had taken it before"


async def test_the_time_before_the_agent_was_ready_counts_for_the_limit_of_the_call(short_tmp: Path) -> None:
    """Kubelet ends the call 45 s after it made it, and its own sentence says nothing."""
    async with starting(short_tmp) as node:
        early = asyncio.create_task(node.prepare(node.scene.put("large", device(0, 150))))
        await until(lambda: node.link.is_registered)
        await asyncio.sleep(0.5)
        node.serve()
        await early
        (took_s,) = node.scene.report.took_s
        assert took_s >= 0.3, "on a busy machine it arrives up to 0.2 s late"


async def test_an_agent_that_does_not_get_ready_says_so_in_time(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deviceplugin.kubelet.dra.link.DraService", partial(DraService, wait_s=0.1))
    async with starting(short_tmp) as node:
        ref = node.scene.put("one")
        assert (await node.prepare(ref))[ref.uid].error == (
            "the vcuda agent of this node is not ready yet; its log says what it waits for"
        )


async def test_the_next_agent_gives_calls_to_the_one_that_still_serves(short_tmp: Path) -> None:
    async with running(short_tmp) as old, starting(short_tmp, old.scene) as new:
        ref = old.scene.put("one")
        assert (await new.prepare(ref))[ref.uid].devices
        assert {uid: each.error for uid, each in (await new.unprepare(ref)).items()} == {ref.uid: ""}
        assert old.scene.ledger.grants() == ()


async def test_no_call_fails_while_one_agent_takes_over_from_another(short_tmp: Path) -> None:
    """On one connection, as kubelet has it: it dials the agent that registered last, once."""
    async with running(short_tmp) as old, starting(short_tmp, old.scene) as new, new.calling() as channel:
        refs = [old.scene.put(f"c{number}", device(number % 4, 5, 2)) for number in range(60)]
        calls = []
        for number, ref in enumerate(refs):
            calls.append(asyncio.create_task(prepared(channel, ref)))
            await asyncio.sleep(0.005)
            if number == 20:
                ended = asyncio.create_task(old.link.stop())
            if number == 40:
                await ended
                new.serve()
        for ref, answer in zip(refs, await asyncio.gather(*calls), strict=True):
            assert answer[ref.uid].devices, answer[ref.uid].error
        assert old.scene.held() == dict.fromkeys(range(4), 75)


async def test_a_call_under_way_is_answered_before_the_agent_ends(node: Node) -> None:
    ref = node.scene.put("one")
    node.scene.slow_s = 0.5
    call = asyncio.create_task(node.prepare(ref))
    await until(lambda: node.scene.reads > 0)
    await node.link.stop()
    assert (await call)[ref.uid].devices


async def test_a_stream_does_not_hold_up_the_end(short_tmp: Path) -> None:
    async with running(short_tmp) as node, node.calling() as channel:
        stream = health_rpc.DRAResourceHealthStub(channel).NodeWatchResources(health.NodeWatchResourcesRequest())
        assert await stream.read()
        async with asyncio.timeout(3):
            await node.link.stop()


async def test_two_agents_that_wait_do_not_send_a_call_to_and_fro(short_tmp: Path) -> None:
    async with starting(short_tmp) as one, starting(short_tmp, one.scene) as other:
        ref = one.scene.put("one")
        calls = [asyncio.create_task(each.prepare(ref)) for each in (one, other)]
        await until(lambda: one.link.is_registered and other.link.is_registered)
        await asyncio.sleep(0.2)
        one.serve()
        other.serve()
        for answer in await asyncio.gather(*calls):
            assert answer[ref.uid].devices


async def test_sockets_of_killed_agents_are_removed_and_those_of_living_ones_stay(short_tmp: Path) -> None:
    async with running(short_tmp) as old, starting(short_tmp, old.scene) as new:
        dead = [short_tmp / "plugins" / DRIVER / "dra-0.sock", short_tmp / "plugins_registry" / f"{DRIVER}-0-reg.sock"]
        for path in dead:
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        new.link.remove_dead()
        assert not any(path.exists() for path in dead)
        assert all(path.exists() for each in (old, new) for path in each.link.sockets)


async def test_a_claim_that_many_claims_of_a_call_stand_beside_is_read_once(node: Node) -> None:
    answers = await node.prepare(*beside_networks(node.scene, ours=10, networks=20))
    assert {each.error for each in answers.values()} == {""}
    assert node.scene.reads == 10 + 20
