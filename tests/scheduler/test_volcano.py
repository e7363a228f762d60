"""A gang scheduler that asks as Volcano does, the real `vcuda scheduler`, and the stand-in API server between them.

Its Bindings have the annotations of its pods, and as in a cluster with vcuda's policy one with ours is refused.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import parse_allocation
from sandbox.apiserver.objects import container, pod
from sandbox.program import free_port
from sandbox.vc_scheduler import BindingRefusedError, PodGroup, VcScheduler, binding_of
from tests.scheduler.scene import Json, Scene, Scheduler, cluster, gpu_node, holding

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALLOCATION, NODE = "tencent.com/vcuda-allocation", "tencent.com/predicate-node"
NODES = ("n1", "n2")
OURS = AnnotationNames().is_machine_written


class VolcanoScene:
    """The cluster of a test, one replica of ours, and the other scheduler."""

    def __init__(self, scene: Scene, replica: Scheduler, port: int) -> None:
        self.scene = scene
        self.replica = replica
        self.url = f"http://127.0.0.1:{port}/volcano"
        self.failing: set[str] = set()
        self.slow_s = 0.0
        self.bindings: list[Json] = []
        self.volcano = self.vc_scheduler()

    def vc_scheduler(self) -> VcScheduler:
        """A process of it."""
        return VcScheduler(self.url, self.scene.api.store.objects("nodes"), self.bind, watch=self.stored)

    def stored(self, made: Json) -> Json:
        return self.scene.stored(made["metadata"]["name"])

    def gang(self, name: str, *sizes: int) -> PodGroup:
        made = []
        for number, cores in enumerate(sizes):
            body = pod(f"{name}-{number}", container(cores=cores, blocks=8))
            body["spec"]["schedulerName"] = "volcano"
            body["metadata"]["annotations"] = {"scheduling.volcano.sh/group-name": name}
            made.append(self.scene.api.store.create("pods", body, namespace="default"))
        return PodGroup(name, tuple(made))

    async def bind(self, binding: Json) -> None:
        """Those of pods in `failing` fail once; all take `slow_s`."""
        self.bindings.append(binding)
        await asyncio.sleep(self.slow_s)
        name = binding["metadata"]["name"]
        if name in self.failing:
            self.failing.remove(name)
            raise BindingRefusedError("no answer")
        if refused := list(filter(OURS, binding["metadata"]["annotations"])):
            raise BindingRefusedError(f"{refused} are written by vcuda alone")
        path = f"{self.scene.api.url}/api/v1/namespaces/default/pods/{name}/binding"
        async with aiohttp.ClientSession() as client, client.post(path, json=binding) as answer:
            assert answer.status < 300, await answer.text()

    def annotated(self, gang: PodGroup) -> list[str]:
        """Pods with annotations of ours."""
        pods = [self.stored(each)["metadata"] for each in gang.pods]
        return [meta["name"] for meta in pods if any(map(OURS, meta["annotations"]))]

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

    async def until_waiting(self, count: int) -> None:
        """The replica knows so many pods without a node."""
        await self.scene.until_metric(self.replica, "vcuda_scheduler_pending_pods{", count)

    async def until_reserved(self, count: int) -> None:
        await self.scene.until_metric(self.replica, "vcuda_scheduler_reservations ", count)


@asynccontextmanager
async def started(folder: Path, *flags: str) -> AsyncIterator[tuple[Scene, Scheduler, int]]:
    port = free_port()
    async with cluster(folder, empty=True) as scene:
        flags = ("--volcano", "--loopback-port", str(port), "--leader-election", "none", *flags)
        replica = await scene.replica("volcano", *flags)
        await scene.until_ready(replica)
        yield scene, replica, port


@asynccontextmanager
async def world(scene: Scene, replica: Scheduler, port: int) -> AsyncIterator[VolcanoScene]:
    async with holding(scene, replica, *map(gpu_node, NODES)):
        made = VolcanoScene(scene, replica, port)
        async with made.volcano:
            yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Scene, Scheduler, int]]:
    """One replica for all tests that leave it as it was."""
    async with started(tmp_path_factory.mktemp("volcano")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def found(served: tuple[Scene, Scheduler, int]) -> AsyncIterator[VolcanoScene]:
    async with world(*served) as made:
        yield made


async def test_a_mixed_gang_gets_what_was_promised_to_each_member(found: VolcanoScene) -> None:
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
    found: VolcanoScene, sizes: tuple[int, ...], placed: list[str]
) -> None:
    """docs/volcano.md has the limit: the second gang would fit, had its larger members come first."""
    gang = found.gang("mixed", *sizes)
    await found.until_waiting(len(sizes))
    assert list(await found.volcano.session([gang])) == placed


async def test_a_gang_too_large_for_gpus_leaves_nothing_and_the_next_one_runs(found: VolcanoScene) -> None:
    large, small = found.gang("large", *[60] * 5), found.gang("small", *[60] * 4)
    for _ in range(3):
        assert await found.volcano.session([large]) == {}
        await found.until_reserved(0)
    assert list(await found.volcano.session([large, small])) == ["small"]
    assert len(await found.gpus(small)) == 4


async def test_two_queues_in_one_session_share_the_gpus(found: VolcanoScene) -> None:
    first, second, third = found.gang("first", 70, 70), found.gang("second", 30, 70, 70), found.gang("third", 70)
    assert list(await found.volcano.session([first, second, third])) == ["first", "second"]


async def test_a_scheduler_that_dies_before_its_bindings_holds_nothing_for_long(tmp_path: Path) -> None:
    async with started(tmp_path, "--reservation-time", "2s") as other, world(*other) as found:
        gang = found.gang("lost", *[100] * 4)
        await found.volcano.session([gang], dies=True)
        await found.until_reserved(4)
        await found.until_reserved(0)
        async with found.vc_scheduler() as after:
            assert list(await after.session([found.gang("next", *[100] * 4)])) == ["next"]


async def test_a_gang_that_waited_runs_when_another_one_has_ended(found: VolcanoScene) -> None:
    """Of the members that had GPUs while it waited, no Binding was ever accepted."""
    first, second = found.gang("first", *[60] * 3), found.gang("second", *[50] * 4, 80)
    assert list(await found.volcano.session([first])) == ["first"]
    for _ in range(3):
        assert await found.volcano.session([second]) == {}
        await asyncio.sleep(0.1)
        assert found.annotated(second) == []
    for each in first.pods:
        node = found.stored(each)["spec"]["nodeName"]
        found.scene.api.store.set_status(each["metadata"]["name"], {"phase": "Succeeded"})
        found.volcano.ended(each, node)
    while not await found.volcano.session([second]):  # until the watch has said it
        await asyncio.sleep(0.1)
    assert len(await found.gpus(second)) == 5


@pytest.mark.parametrize("slow_s", [0.0, 0.5], ids=["at once", "slowly"])
@pytest.mark.parametrize("failing", [0, 2, 4], ids=["none fails", "some fail", "all fail"])
async def test_whenever_a_binding_comes_the_gpus_come_after_it(
    found: VolcanoScene, failing: int, slow_s: float
) -> None:
    """Slow, refused and sent again: nothing of ours stands on a pod that Volcano has yet to bind."""
    gang = found.gang("mixed", 60, 40, 60, 40)
    found.failing, found.slow_s = {each["metadata"]["name"] for each in gang.pods[:failing]}, slow_s
    assert len((await found.volcano.session([gang]))["mixed"]) == 4 - failing
    again = await found.volcano.session([gang])
    assert len(again["mixed"]) == failing
    assert len(found.bindings) == 4 + failing
    used: dict[str, int] = {}
    for gpus, cores in zip((await found.gpus(gang)).values(), (60, 40) * 2, strict=True):
        used[next(iter(gpus))] = used.get(next(iter(gpus)), 0) + cores
    assert set(used.values()) == {100}


async def test_a_scheduler_that_starts_again_binds_what_the_one_before_had_chosen(found: VolcanoScene) -> None:
    gang = found.gang("kept", *[100] * 4)
    await found.volcano.session([gang], dies=True)
    await found.until_reserved(4)
    assert found.annotated(gang) == []
    async with found.vc_scheduler() as after:
        assert len((await after.session([gang]))["kept"]) == 4
    assert len(set().union(*(await found.gpus(gang)).values())) == 4


async def test_what_a_killed_replica_had_promised_is_for_the_agents_to_choose(found: VolcanoScene) -> None:
    """vcuda dies between its promise and Volcano's Binding."""
    gang = found.gang("kept", 60, 60)
    await found.volcano.session([gang], dies=True)
    await found.replica.end(signal.SIGKILL)
    async with found.vc_scheduler() as after:
        for each, node in zip(gang.pods, NODES, strict=True):
            await found.bind(binding_of(each, node))
        await found.replica.start()
        await found.scene.until_ready(found.replica)
        assert list(await after.session([found.gang("over", *[100] * 3)])) == [], "they may be on any GPU"
    assert found.annotated(gang) == []


async def test_the_books_of_a_replica_that_was_killed_are_those_of_the_pods(found: VolcanoScene) -> None:
    gang = found.gang("kept", 60, 60)
    await found.volcano.session([gang])
    await found.gpus(gang)
    await found.replica.end(signal.SIGKILL)
    await found.replica.start()
    await found.scene.until_ready(found.replica)
    assert list(await found.volcano.session([found.gang("beside", 60, 60), found.gang("over", 60)])) == ["beside"]


async def test_what_cannot_be_read_and_a_node_that_is_not_known_are_said(found: VolcanoScene) -> None:
    async with aiohttp.ClientSession() as client:
        async with client.post(f"{found.url}/allocate", data=b"{") as answer:
            assert (answer.status, "\n" in (await answer.text()).strip()) == (400, False)
        async with client.post(f"{found.url}/predicate", data=_of(found, "elsewhere")) as answer:
            assert (await answer.json())["code"] == 3


def _of(found: VolcanoScene, node: str) -> bytes:
    (made,) = found.gang("asking", 10).pods
    task: dict[str, Any] = {"UID": made["metadata"]["uid"], "Pod": made}
    return json.dumps({"task": task, "node": {"Name": node}}).encode()
