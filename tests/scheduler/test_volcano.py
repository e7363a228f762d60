"""A gang scheduler that asks as Volcano does, the real `vcuda scheduler`, and the stand-in API server between them."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deviceplugin.model.annotations import parse_allocation
from sandbox.apiserver.objects import container, pod
from sandbox.program import free_port
from sandbox.vc_scheduler import PodGroup, VcScheduler
from tests.scheduler.scene import Json, Scene, Scheduler, cluster, gpu_node

ALLOCATION, NODE = "tencent.com/vcuda-allocation", "tencent.com/predicate-node"
NODES = ("n1", "n2")


class VolcanoScene:
    """The cluster of a test, one replica of ours, and the other scheduler."""

    def __init__(self, scene: Scene, replica: Scheduler, port: int) -> None:
        self.scene = scene
        self.replica = replica
        nodes = scene.api.store.objects("nodes")
        self.url = f"http://127.0.0.1:{port}/volcano"
        self.volcano = VcScheduler(self.url, nodes, self.bind)

    def gang(self, name: str, *sizes: int) -> PodGroup:
        made = []
        for number, cores in enumerate(sizes):
            body = pod(f"{name}-{number}", container(cores=cores, blocks=8))
            body["spec"]["schedulerName"] = "volcano"
            body["metadata"]["annotations"] = {"scheduling.volcano.sh/group-name": name}
            made.append(self.scene.api.store.create("pods", body, namespace="default"))
        return PodGroup(name, tuple(made))

    async def bind(self, wanted: Json, node: str) -> None:
        """Without annotations, as Volcano does it."""
        meta = wanted["metadata"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"metadata": {"name": meta["name"], "uid": meta["uid"]}, "target": target}
        path = f"{self.scene.api.url}/api/v1/namespaces/default/pods/{meta['name']}/binding"
        async with aiohttp.ClientSession() as client, client.post(path, json=body) as answer:
            assert answer.status < 300, await answer.text()

    async def gpus(self, gang: PodGroup) -> dict[str, set[str]]:
        """By pod, as soon as all of them say it."""
        names = [each["metadata"]["name"] for each in gang.pods]
        async with asyncio.timeout(60):
            while True:
                found = {name: self._annotated(name) for name in names}
                if all(found.values()):
                    return found
                await asyncio.sleep(0.05)

    def _annotated(self, name: str) -> set[str]:
        stored = self.scene.stored(name)
        annotations = stored["metadata"].get("annotations") or {}
        if ALLOCATION not in annotations or annotations[NODE] != stored["spec"].get("nodeName"):
            return set()
        shares = parse_allocation(annotations[ALLOCATION]).containers.values()
        return {share.uuid for each in shares for share in each}

    async def reservations(self) -> int:
        _, text = await self.scene.ask(self.replica, "/metrics")
        line = next(line for line in text.splitlines() if line.startswith("vcuda_scheduler_reservations "))
        return int(float(line.split()[1]))

    async def until_waiting(self, count: int) -> None:
        """The replica knows so many pods without a node."""
        async with asyncio.timeout(60):
            while await self._waiting() != count:
                await asyncio.sleep(0.1)

    async def _waiting(self) -> int:
        _, text = await self.scene.ask(self.replica, "/metrics")
        lines = [line for line in text.splitlines() if line.startswith("vcuda_scheduler_pending_pods{")]
        return sum(int(float(line.split()[-1])) for line in lines)

    async def until_reserved(self, count: int) -> None:
        async with asyncio.timeout(60):
            while await self.reservations() != count:
                await asyncio.sleep(0.1)


@asynccontextmanager
async def world(folder: Path, *flags: str) -> AsyncIterator[VolcanoScene]:
    port = free_port()
    async with cluster(folder, *map(gpu_node, NODES)) as scene:
        flags = ("--volcano", "--loopback-port", str(port), "--leader-election", "none", *flags)
        replica = await scene.replica("volcano", *flags)
        await scene.until_ready(replica)
        made = VolcanoScene(scene, replica, port)
        async with made.volcano:
            yield made


async def test_a_mixed_gang_gets_what_was_promised_to_each_member(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        gang = found.gang("mixed", 60, 40, 60, 40, 60, 40, 60, 40)
        assert len((await found.volcano.session([gang]))["mixed"]) == 8
        used: dict[str, int] = {}
        for (name, gpus), cores in zip((await found.gpus(gang)).items(), (60, 40) * 4, strict=True):
            assert len(gpus) == 1, name
            used[next(iter(gpus))] = used.get(next(iter(gpus)), 0) + cores
        assert set(used.values()) == {100}
        await found.until_reserved(0)


@pytest.mark.parametrize(
    ("sizes", "placed"),
    [((40, 40, 60, 60) * 2, ["mixed"]), ((40,) * 4 + (60,) * 4, [])],
    ids=["by pairs", "all small ones first"],
)
async def test_room_for_larger_members_is_kept_on_each_node_by_itself(
    tmp_path: Path, sizes: tuple[int, ...], placed: list[str]
) -> None:
    """docs/volcano.md has the limit: the second gang would fit, had its larger members come first."""
    async with world(tmp_path) as found:
        gang = found.gang("mixed", *sizes)
        await found.until_waiting(len(sizes))
        assert list(await found.volcano.session([gang])) == placed


async def test_a_gang_too_large_for_gpus_leaves_nothing_and_the_next_one_runs(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        large, small = found.gang("large", *[60] * 5), found.gang("small", *[60] * 4)
        for _ in range(3):
            assert await found.volcano.session([large]) == {}
            await found.until_reserved(0)
        assert list(await found.volcano.session([large, small])) == ["small"]
        assert len(await found.gpus(small)) == 4


async def test_two_queues_in_one_session_share_the_gpus(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        first, second, third = found.gang("first", 70, 70), found.gang("second", 30, 70, 70), found.gang("third", 70)
        assert list(await found.volcano.session([first, second, third])) == ["first", "second"]


async def test_a_scheduler_that_dies_before_its_bindings_holds_nothing_for_long(tmp_path: Path) -> None:
    async with world(tmp_path, "--reservation-time", "2s") as found:
        gang = found.gang("lost", *[100] * 4)
        await found.volcano.session([gang], dies=True)
        await found.until_reserved(4)
        await found.until_reserved(0)
        after = VcScheduler(found.url, found.scene.api.store.objects("nodes"), found.bind)
        async with after:
            assert list(await after.session([found.gang("next", *[100] * 4)])) == ["next"]


async def test_the_books_of_a_replica_that_was_killed_are_those_of_the_pods(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        gang = found.gang("kept", 60, 60)
        await found.volcano.session([gang])
        await found.gpus(gang)
        await found.replica.end(signal.SIGKILL)
        await found.replica.start()
        await found.scene.until_ready(found.replica)
        assert list(await found.volcano.session([found.gang("beside", 60, 60), found.gang("over", 60)])) == ["beside"]


async def test_who_may_ask_is_restricted_and_without_the_flag_nobody_may(tmp_path: Path) -> None:
    body = {"task": {"UID": "u", "Pod": {}, "NodeName": "n1"}}
    async with cluster(tmp_path) as scene:
        replica = await scene.replica("without")
        await scene.until_ready(replica)
        assert (await scene.ask(replica, "/volcano/allocate", body))[0] == 404
    async with world(tmp_path) as found, aiohttp.ClientSession() as client:
        async with client.post(f"{found.url}/allocate", data=b"{") as answer:
            assert (answer.status, "\n" in (await answer.text()).strip()) == (400, False)
        async with client.post(f"{found.url}/predicate", data=_of(found, "elsewhere")) as answer:
            assert (await answer.json())["code"] == 3


def _of(found: VolcanoScene, node: str) -> bytes:
    (made,) = found.gang("asking", 10).pods
    task: dict[str, Any] = {"UID": made["metadata"]["uid"], "Pod": made}
    return json.dumps({"task": task, "node": {"Name": node}}).encode()
