"""The GPUs of a promise reach the pod once it is bound, never before, whatever happens to promise and API server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import structlog

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.volcano.tasks import Announcements, VolcanoTasks
from deviceplugin.errors import KubeError, KubeNotFoundError
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.annotations import parse_allocation
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import ResourceNames
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import NAMES, allocated, bound, node, on_gpu, pod
from tests.cluster.volcano.makers import task
from tests.waiting import in_background, until


@dataclass
class Written:
    """The API server: what was written, and what the next writes raise, after `on_fault` has happened.

    `held_up` stops a write until it is set. Pods of `refusing` take none; `refused_at`: when, in seconds.
    """

    writes: list[tuple[PodRef, Mapping[str, str]]] = field(default_factory=list)
    faults: list[KubeError] = field(default_factory=list)
    on_fault: Callable[[], None] = lambda: None
    held_up: asyncio.Event | None = None
    asked: int = 0
    refused_at: list[float] = field(default_factory=list)
    refusing: set[PodUid] = field(default_factory=set)

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        self.asked += 1
        if self.held_up is not None:
            await self.held_up.wait()
        if pod.uid in self.refusing:
            self.refused_at.append(time.monotonic())
            raise KubeError("metadata.annotations: Too long", code=422)
        if self.faults:
            self.on_fault()
            raise self.faults.pop(0)
        self.writes.append((pod, annotations))


@dataclass
class Scene:
    """One node with two GPUs."""

    extender: Extender
    api: Written
    tasks: VolcanoTasks

    def waits(self, cores: int = 60) -> ClusterPod:
        made = pod(cores=cores)
        self.extender.put_pod(made)
        return made

    def promised(self, made: ClusterPod, where: str = "a") -> list[str]:
        """A session chooses the node; the GPUs."""
        assert self.tasks.allocate(task(made, where)) == ""
        holds = self.extender.cache.holds(made.uid)
        return [uuid for hold in holds for each in hold.allocations for uuid in each.uuids]

    def binds(self, made: ClusterPod, where: str = "a", written: Mapping[str, str] | None = None) -> None:
        """Volcano does, and the watch says so."""
        self.extender.put_pod(bound(made, where, written))

    def uuids(self) -> list[str]:
        """Of the writes, in their order."""
        found = (parse_allocation(annotations[NAMES.allocation]) for _, annotations in self.api.writes)
        return [share.uuid for each in found for shares in each.containers.values() for share in shares]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    clock, api = Clock(), Written()
    extender = Extender(MemoryApi(), clock=clock)
    extender.put_node(node("a", 2))
    announcements = Announcements(extender.cache, api, names=ResourceNames(), again_s=0.01)
    extender.cache.promised = announcements.announce
    tasks = VolcanoTasks(extender.snapshot, clock=clock)
    async with in_background(announcements.run()):
        yield Scene(extender, api, tasks)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_pod_gets_what_a_binding_of_ours_would_say(scene: Scene) -> None:
    made = scene.waits()
    promised = scene.promised(made)
    scene.binds(made)
    await until(lambda: len(scene.api.writes) == 1)
    ((where, annotations),) = scene.api.writes
    assert where == made.pod.ref
    assert annotations[NAMES.predicate_node] == "a"
    assert parse_allocation(annotations[NAMES.allocation]).pod == made.uid
    assert annotations[NAMES.decision] == "Volcano chose the node"
    assert scene.uuids() == promised


async def test_before_the_binding_nothing_is_written(scene: Scene) -> None:
    """Not for a gang that is tried again and again, nor where the Binding takes long, or fails and comes again."""
    made = scene.waits()
    for _ in range(5):
        scene.promised(made)
        await settled()
        scene.tasks.deallocate(task(made, "a"))
        await settled()
    scene.promised(made)
    await settled()
    scene.promised(made)
    (reserved,) = scene.extender.cache.holds(made.uid)
    scene.extender.cache.promised(reserved)
    await asyncio.sleep(0.05)
    assert scene.api.writes == []
    scene.binds(made)
    await until(lambda: len(scene.api.writes) == 1)


async def test_of_several_promises_the_last_one_counts(scene: Scene) -> None:
    """Another pod took the GPU of the first between two sessions."""
    made, other = scene.waits(), scene.waits(100)
    (before,) = scene.promised(made)
    scene.tasks.deallocate(task(made, "a"))
    scene.binds(other, "a", allocated(other, {"main": on_gpu("a", int(before[-1]), 100, 64)}))
    (after,) = scene.promised(made)
    assert after != before
    scene.binds(made)
    await until(lambda: scene.uuids() == [after])


@pytest.mark.parametrize("where", ["a", "b"])
async def test_what_was_given_back_or_promised_elsewhere_is_never_written(scene: Scene, where: str) -> None:
    scene.extender.put_node(node("b", 2))
    made = scene.waits()
    scene.promised(made)
    if where == "a":
        scene.tasks.deallocate(task(made, "a"))
    scene.binds(made, where)
    await asyncio.sleep(0.05)
    assert scene.api.writes == []


async def test_one_binding_is_told_many_times_and_written_once(scene: Scene) -> None:
    made = scene.waits()
    scene.promised(made)
    for version in range(5):
        there = bound(made, "a")
        scene.extender.put_pod(replace(there, pod=replace(there.pod, resource_version=str(90 + version))))
        scene.extender.put_pod(replace(there, priority=version))
        await settled()
    assert len(scene.api.writes) == 1


async def test_a_write_that_fails_is_tried_again(scene: Scene) -> None:
    made = scene.waits()
    scene.api.faults = [KubeError("no answer", code=0)] * 3
    scene.promised(made)
    scene.binds(made)
    await until(lambda: len(scene.api.writes) == 1)


async def test_what_the_agent_gave_is_not_overwritten(scene: Scene) -> None:
    made = scene.waits()
    scene.api.faults = [KubeError("no answer", code=0)]
    given = bound(made, "a", allocated(made, {"main": on_gpu("a", 1, 60, 8)}))
    scene.api.on_fault = lambda: scene.extender.put_pod(given)
    scene.promised(made)
    scene.binds(made)
    await until(lambda: scene.api.faults == [])
    await asyncio.sleep(0.05)
    assert scene.api.writes == []


async def test_a_pod_that_is_gone_is_left(scene: Scene) -> None:
    made = scene.waits()
    scene.api.faults = [KubeNotFoundError("gone", code=404)]
    scene.promised(made)
    scene.binds(made)
    await asyncio.sleep(0.05)
    assert (scene.api.writes, scene.api.faults) == ([], [])


async def test_many_pods_are_written_beside_each_other(scene: Scene) -> None:
    scene.extender.put_node(node("b", 16))
    made = [scene.waits(50) for _ in range(32)]
    scene.api.held_up = asyncio.Event()
    for each in made:
        scene.promised(each, "b")
        scene.binds(each, "b")
    await until(lambda: scene.api.asked == 16)
    scene.api.held_up.set()
    await until(lambda: len(scene.api.writes) == 32)
    assert {where.uid for where, _ in scene.api.writes} == {each.uid for each in made}


async def test_a_pod_whose_annotations_are_refused_is_said_once_and_tried_again_later_and_later(scene: Scene) -> None:
    """Its own fill what the API server takes; the others of the node are written all the same."""
    full, other = scene.waits(), scene.waits()
    scene.api.refusing = {full.uid}
    with structlog.testing.capture_logs() as logs:
        for each in (full, other):
            scene.promised(each)
            scene.binds(each)
        await until(lambda: len(scene.api.writes) == 1)
        await until(lambda: len(scene.api.refused_at) >= 7)
    waits = [later - earlier for earlier, later in pairwise(scene.api.refused_at)]
    assert all(wait >= 0.005 * 2**tries for tries, wait in enumerate(waits)), "half of 0.01 s at first, which doubles"
    assert scene.api.writes[0][0] == other.pod.ref
    assert [each["pod"] for each in logs if each["event"] == "annotation_failed"] == [str(full.pod.ref)]
    scene.api.refusing.clear()
    await until(lambda: len(scene.api.writes) == 2)
