"""A pod with a Binding in flight is filtered again: its assumed GPUs are neither lost nor doubled.

kube-scheduler's timeout for an extender is shorter than the API server's for a request, and then it retries the pod.
"""

import asyncio
from dataclasses import dataclass

import pytest

from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.model.pod import ClusterPod
from tests.cluster.extender.api import Fate, MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import NAMES, ask, node, order, pod, refused

PAST_ANY_RESERVATION = 61.0


@dataclass
class Scene:
    """A pod of one whole GPU, with a Binding in flight to node a, which has two; b is free."""

    extender: Extender
    api: MemoryApi
    pod: ClusterPod
    binding: "asyncio.Task[str]"

    @property
    def held(self) -> PodHold:
        found = self.extender.cache.on("a", self.pod.uid)
        assert found is not None
        return found

    def free(self, name: str) -> int:
        return sum(view.free_cores for view in self.extender.cache.nodes[name].state.snapshot.gpus)


async def under_way(extender: Extender, api: MemoryApi, *, turns: int, fate: Fate = Fate.WORKS) -> Scene:
    for name in ("a", "b"):
        extender.put_node(node(name, 2))
    one = api.put(pod(cores=100, blocks=0))
    extender.put_pod(one)
    assert extender.filter(ask(one, "a")).names == ("a",)
    api.turns, api.fates = turns, [fate]
    scene = Scene(extender, api, one, asyncio.create_task(extender.bind(order(one, "a"))))
    for _ in range(10):
        await asyncio.sleep(0)
    return scene


@pytest.fixture(params=["being written", "written and not seen", "unconfirmed"])
async def scene(request: pytest.FixtureRequest, extender: Extender, api: MemoryApi) -> Scene:
    if request.param == "being written":
        made = await under_way(extender, api, turns=40)
        assert not made.binding.done()
    else:
        made = await under_way(extender, api, turns=0, fate=Fate.LATE if request.param == "unconfirmed" else Fate.WORKS)
        assert made.binding.done()
    assert made.held.state is (HoldState.UNCONFIRMED if request.param == "unconfirmed" else HoldState.ASSUMED)
    return made


async def test_the_same_node_and_gpu_are_answered_and_stay_what_they_were(scene: Scene) -> None:
    before = scene.held
    assert scene.extender.filter(ask(scene.pod, "a", "b")).names == ("a",)
    assert (scene.held.state, scene.held.allocations) == (before.state, before.allocations)
    assert scene.held.expires >= before.expires
    assert (scene.free("a"), scene.free("b")) == (100, 200)


async def test_its_gpu_stays_held_however_late_the_answer_comes(scene: Scene, clock: Clock) -> None:
    """A reservation would expire, and the Binding could take effect all the same."""
    scene.extender.filter(ask(scene.pod, "a"))
    clock.now += PAST_ANY_RESERVATION
    scene.extender.expire()
    others = [pod(cores=100, blocks=0) for _ in range(2)]
    assert [scene.extender.filter(ask(each, "a")).names for each in others] == [("a",), ()]


async def test_a_refusal_that_follows_takes_nothing_of_it(scene: Scene) -> None:
    """kube-scheduler writes one after a timeout of the first Binding, which may still take effect."""
    scene.extender.filter(ask(scene.pod, "a"))
    scene.extender.put_pod(refused(scene.pod, "9999"))
    assert scene.free("a") == 100


async def test_another_node_that_is_offered_alone_is_reserved_beside_it_until_the_pod_is_seen_bound(
    extender: Extender, api: MemoryApi
) -> None:
    scene = await under_way(extender, api, turns=40)
    before = scene.held
    assert extender.filter(ask(scene.pod, "b")).names == ("b",)
    assert scene.held == before
    assert (scene.free("a"), scene.free("b")) == (100, 100)
    assert await scene.binding == ""
    extender.put_pod(api.pods[scene.pod.uid])
    assert (scene.free("a"), scene.free("b")) == (100, 200)


async def test_the_binding_carries_what_was_committed_before_it_was_asked_again(
    extender: Extender, api: MemoryApi
) -> None:
    scene = await under_way(extender, api, turns=40)
    (gpu,) = scene.held.allocations[0].uuids
    extender.filter(ask(scene.pod, "a"))
    other = pod(cores=100, blocks=0)
    assert extender.filter(ask(other, "a")).names == ("a",)
    assert await scene.binding == ""
    assert f'"{gpu}"' in api.pods[scene.pod.uid].pod.annotations[NAMES.allocation]
    held = extender.cache.on("a", other.uid)
    assert held is not None
    assert gpu not in held.allocations[0].uuids
    extender.put_pod(api.pods[scene.pod.uid])
    assert scene.free("a") == 0
