"""The GPUs of a reservation reach the pod, once, whatever happens to the reservation or the API server meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

import pytest

from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.settings import DEFAULT_SETTINGS
from deviceplugin.cluster.volcano.announcements import Announcements
from deviceplugin.cluster.volcano.tasks import VolcanoTasks
from deviceplugin.errors import KubeError, KubeNotFoundError
from deviceplugin.model.allocation import PodRef
from deviceplugin.model.annotations import parse_allocation
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import ResourceNames
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import NAMES, allocated, bound, node, on_gpu, pod
from tests.cluster.volcano.makers import task
from tests.waiting import in_background, until


@dataclass
class Written:
    """The API server: what was written, and what the next writes raise, after `on_fault` has happened.

    `held_up` stops a write until it is set.
    """

    writes: list[tuple[PodRef, Mapping[str, str]]] = field(default_factory=list)
    faults: list[KubeError] = field(default_factory=list)
    on_fault: Callable[[], None] = lambda: None
    held_up: asyncio.Event | None = None

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        if self.held_up is not None:
            await self.held_up.wait()
        if self.faults:
            self.on_fault()
            raise self.faults.pop(0)
        self.writes.append((pod, annotations))


@dataclass
class Scene:
    """One node with two GPUs."""

    extender: Extender
    api: Written
    announcements: Announcements
    tasks: VolcanoTasks

    def waits(self, cores: int = 60) -> ClusterPod:
        made = pod(cores=cores)
        self.extender.put_pod(made)
        return made

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

    tasks = VolcanoTasks(
        extender.cache,
        extender.snapshot,
        scorer=extender.scorer,
        settings=DEFAULT_SETTINGS,
        clock=clock,
        announce=announcements.announce,
    )
    async with in_background(announcements.run()):
        yield Scene(extender, api, announcements, tasks)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_pod_gets_what_a_binding_of_ours_would_say(scene: Scene) -> None:
    made = scene.waits()
    scene.tasks.allocate(task(made, "a"))
    await until(lambda: len(scene.api.writes) == 1)
    ((where, annotations),) = scene.api.writes
    assert where == made.pod.ref
    assert annotations[NAMES.predicate_node] == "a"
    assert parse_allocation(annotations[NAMES.allocation]).pod == made.uid
    assert annotations[NAMES.decision] == "Volcano chose the node"


async def test_a_gang_that_is_discarded_and_tried_again_is_written_once(scene: Scene) -> None:
    made = scene.waits()
    for _ in range(5):
        scene.tasks.allocate(task(made, "a"))
        await settled()
        scene.tasks.deallocate(task(made, "a"))
        await settled()
    assert len(scene.api.writes) == 1


async def test_what_was_given_back_before_is_not_written(scene: Scene) -> None:
    made = scene.waits()
    scene.tasks.allocate(task(made, "a"))
    scene.tasks.deallocate(task(made, "a"))
    await settled()
    assert scene.api.writes == []


async def test_other_gpus_are_written_after_those_of_before(scene: Scene) -> None:
    made, other = scene.waits(), scene.waits(100)
    scene.api.held_up = asyncio.Event()
    scene.tasks.allocate(task(made, "a"))
    (before,) = held_by(scene, made)
    await settled()
    scene.tasks.deallocate(task(made, "a"))
    taken = on_gpu("a", int(before[-1]), 100, 64)
    scene.extender.put_pod(bound(other, "a", allocated(other, {"main": taken})))
    scene.tasks.allocate(task(made, "a"))
    (after,) = held_by(scene, made)
    await settled()
    assert scene.uuids() == []
    scene.api.held_up.set()
    await until(lambda: scene.uuids() == [before, after])


def held_by(scene: Scene, made: ClusterPod) -> list[str]:
    holds = scene.extender.cache.holds(made.uid)
    return [uuid for hold in holds for each in hold.allocations for uuid in each.uuids]


async def test_a_write_that_fails_is_tried_again_and_the_binding_may_be_faster(scene: Scene) -> None:
    made = scene.waits()
    scene.api.faults = [KubeError("no answer", code=0)] * 3
    scene.tasks.allocate(task(made, "a"))
    await settled()
    scene.extender.put_pod(bound(made, "a"))
    await until(lambda: len(scene.api.writes) == 1)


async def test_what_the_agent_gave_is_not_overwritten(scene: Scene) -> None:
    made = scene.waits()
    scene.api.faults = [KubeError("no answer", code=0)]
    given = bound(made, "a", allocated(made, {"main": on_gpu("a", 1, 60, 8)}))
    scene.api.on_fault = lambda: scene.extender.put_pod(given)
    scene.tasks.allocate(task(made, "a"))
    await until(lambda: scene.api.faults == [])
    await asyncio.sleep(0.05)
    assert scene.api.writes == []


async def test_a_pod_that_is_gone_is_left(scene: Scene) -> None:
    made = scene.waits()
    scene.api.faults = [KubeNotFoundError("gone", code=404)]
    scene.tasks.allocate(task(made, "a"))
    await asyncio.sleep(0.05)
    assert scene.api.writes == []


async def test_many_pods_are_written_beside_each_other(scene: Scene) -> None:
    scene.extender.put_node(node("b", 16))
    made = [scene.waits(50) for _ in range(32)]
    holds: list[PodHold] = []
    for each in made:
        assert scene.tasks.allocate(task(each, "b")) == ""
        holds.extend(scene.extender.cache.holds(each.uid))
    await until(lambda: len(scene.api.writes) == 32)
    assert {where.uid for where, _ in scene.api.writes} == {hold.pod.uid for hold in holds}
