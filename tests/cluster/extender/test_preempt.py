"""preempt: only evictions that make the pod fit."""

import asyncio
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.turns import Turns
from deviceplugin.cluster.extender.wire import PreemptionArgs, Victims, read_preempt, write_victims
from deviceplugin.model.allocation import ContainerRole, PodUid
from deviceplugin.model.pod import ClusterPod
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import allocated, ask, ask_room, bound, node, on_gpu, pod
from tests.examples import examples


def runs(extender: Extender, name: str, at: int, cores: int, *, priority: int = 0) -> ClusterPod:
    blocks = 64 if cores == 100 else 8
    one = pod(cores=cores, blocks=blocks, priority=priority)
    there = bound(one, name, allocated(one, {"main": on_gpu(name, at, cores, blocks)}))
    extender.put_pod(there)
    return there


async def test_enough_is_left_as_it_is(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    victim = runs(extender, "a", 0, 60)
    vip = pod(cores=100, blocks=0, priority=10)
    assert (await extender.preempt(ask_room(vip, {"a": [victim]}))) == {"a": Victims((victim.uid,))}


async def test_a_node_where_the_pod_does_not_fit_either_way_is_left_out(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    victim = runs(extender, "a", 0, 40)
    runs(extender, "a", 0, 40, priority=20)
    vip = pod(cores=100, blocks=0, priority=10)
    assert (await extender.preempt(ask_room(vip, {"a": [victim], "unknown": []}))) == {}


async def test_victims_chosen_by_count_on_two_gpus_are_joined_by_whom_it_takes(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    left, right = runs(extender, "a", 0, 60), runs(extender, "a", 1, 60)
    other = runs(extender, "a", 1, 40, priority=5)
    vip = pod(cores=100, blocks=0, priority=10)
    assert (await extender.preempt(ask_room(vip, {"a": [right]}))) == {"a": Victims((right.uid, left.uid), 1)}
    del other


async def test_as_few_as_possible_and_the_least_important_first(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    small = [runs(extender, "a", 0, 30, priority=1) for _ in range(3)]
    large = runs(extender, "a", 1, 90, priority=2)
    vip = pod(cores=50, priority=10)
    assert (await extender.preempt(ask_room(vip, {"a": []})))["a"].pods == (large.uid,)
    further = (await extender.preempt(ask_room(vip, {"a": small[:1]})))["a"].pods
    assert set(further) < {each.uid for each in (*small, large)}


async def test_with_too_many_sets_no_needless_victim_is_evicted(extender: Extender) -> None:
    extender.put_node(node("a", 8))
    pods = [runs(extender, "a", at, 10, priority=1) for at in range(8) for _ in range(6)]
    vip = pod(cores=600, blocks=0, priority=10)
    chosen = set((await extender.preempt(ask_room(vip, {"a": []})))["a"].pods)
    assert len(chosen) == 36
    per_gpu = [len(chosen & {each.uid for each in pods[at * 6 : at * 6 + 6]}) for at in range(8)]
    assert sorted(per_gpu) == [0, 0, 6, 6, 6, 6, 6, 6]


@pytest.mark.parametrize("proposed", [0, 1, 2])
async def test_victims_that_were_proposed_on_one_gpu_are_joined_by_those_beside_them(
    extender: Extender, proposed: int
) -> None:
    """kubernetes#128307: with more pods than sets can be tried, further victims came from whichever GPU was first."""
    extender.put_node(node("a", 8))
    pods = [runs(extender, "a", at, 20, priority=1) for at in range(8) for _ in range(4)]
    vip = pod(cores=100, blocks=0, priority=10)
    found = (await extender.preempt(ask_room(vip, {"a": pods[12 : 12 + proposed]})))["a"].pods
    assert len(found) == 4
    assert proposed == 0 or set(found) == {each.uid for each in pods[12:16]}


async def test_of_many_nodes_as_many_are_answered_as_there_is_time_for(extender: Extender) -> None:
    for at in range(30):
        extender.put_node(node(f"n{at:02}", 8))
    pods = {f"n{at:02}": [runs(extender, f"n{at:02}", gpu, 60) for gpu in range(8)] for at in range(30)}
    vip, now = pod(cores=800, blocks=0, priority=10), 0.0

    def clock() -> float:
        nonlocal now
        now += 0.04
        return now

    answer = await extender.preempt(ask_room(vip, {name: each[:1] for name, each in pods.items()}), Turns(clock=clock))
    assert 0 < len(answer) < 30
    assert all(len(victims.pods) == 8 for victims in answer.values())


async def test_reserved_room_is_not_evicted_and_not_given_away(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    assert extender.filter(ask(pod(cores=60), "a")).names == ("a",)
    assert (await extender.preempt(ask_room(pod(cores=100, blocks=0, priority=10), {"a": []}))) == {}


async def test_a_pod_of_several_containers_is_placed_as_a_whole(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    one, two = runs(extender, "a", 0, 60), runs(extender, "a", 1, 60)
    vip = pod(cores=60, blocks=8, priority=10, more=[("side", ContainerRole.APP, 60, 8)])
    assert set((await extender.preempt(ask_room(vip, {"a": [one]})))["a"].pods) == {one.uid, two.uid}


async def test_a_pod_without_gpus_keeps_its_proposed_victims(extender: Extender) -> None:
    question = ask_room(pod(cores=0, blocks=0), {"a": []})
    assert (await extender.preempt(question)) == question.victims


async def test_victims_without_gpus_stay_proposed(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    vip = pod(priority=10)
    question = ask_room(vip, {})
    answer = await extender.preempt(type(question)(vip, {"a": Victims((PodUid("cpu-only"),), 1)}))
    assert answer == {"a": Victims((PodUid("cpu-only"),), 1)}


def asked(vip: ClusterPod, victims: dict[str, dict[str, object]]) -> PreemptionArgs:
    """As kube-scheduler writes it."""
    main = vip.pod.containers[0]
    limits = {"tencent.com/vcuda-core": str(main.cores), "tencent.com/vcuda-memory": str(main.blocks)}
    pod_ = {
        "metadata": {"name": vip.pod.ref.name, "namespace": "d", "uid": vip.uid},
        "spec": {"priority": vip.priority, "containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    keys = {"Pod": pod_, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    return read_preempt(json.dumps(keys).encode())


async def test_every_answer_is_one_that_kube_scheduler_takes(extender: Extender) -> None:
    """It refuses all of it for one UID that is not bound on that node, and takes over the number of violations."""
    extender.put_node(node("a", 2))
    extender.put_node(node("b", 1))
    left, right = runs(extender, "a", 0, 60), runs(extender, "a", 1, 60)
    elsewhere = runs(extender, "b", 0, 60, priority=99)
    extender.filter(ask(pod(cores=30), "a"))
    vip = pod(cores=100, blocks=0, priority=10)
    victims: dict[str, dict[str, object]] = {
        "a": {"Pods": [{"UID": right.uid}], "NumPDBViolations": 1},
        "b": {"Pods": [{"UID": elsewhere.uid}], "NumPDBViolations": 0},
    }
    answer = json.loads(write_victims(await extender.preempt(asked(vip, victims))))
    assert set(answer) == {"NodeNameToMetaVictims"}
    on_a = answer["NodeNameToMetaVictims"]["a"]
    assert {each["UID"] for each in on_a["Pods"]} <= {left.uid, right.uid}
    assert on_a["Pods"][0] == {"UID": right.uid}
    assert on_a["NumPDBViolations"] == 1 + len(on_a["Pods"]) - 1
    assert answer["NodeNameToMetaVictims"]["b"] == {"Pods": [{"UID": elsewhere.uid}], "NumPDBViolations": 0}


@given(data=st.data())
@examples(60)
def test_what_is_proposed_makes_room_breaks_no_more_than_is_said_and_spares_whom_it_can(data: st.DataObject) -> None:
    extender = Extender(MemoryApi(), clock=lambda: 0.0)
    extender.put_node(node("a", 2))
    pods = []
    for at in (0, 1):
        room = 100
        while room >= 20 and data.draw(st.booleans()):
            cores = data.draw(st.integers(10, room))
            pods.append(runs(extender, "a", at, min(cores, 99), priority=data.draw(st.integers(0, 20))))
            room -= cores
    vip = pod(cores=data.draw(st.sampled_from([30, 60, 100])), blocks=0, priority=10)
    lesser = [each for each in pods if each.priority < 10]
    proposed = [each for each in lesser if data.draw(st.booleans())]
    answer = asyncio.run(extender.preempt(ask_room(vip, {"a": proposed}))).get("a")

    def fits(without: Iterable[PodUid]) -> bool:
        alone = Extender(MemoryApi(), clock=lambda: 0.0)
        alone.put_node(node("a", 2))
        for each in pods:
            if each.uid not in set(without):
                alone.put_pod(each)
        return bool(alone.filter(ask(vip, "a")).names)

    if answer is None:
        assert not fits(each.uid for each in lesser)
        return
    extra = answer.pods[len(proposed) :]
    assert answer.pods[: len(proposed)] == tuple(each.uid for each in proposed)
    assert set(extra) <= {each.uid for each in lesser}
    assert fits(answer.pods)
    assert answer.violations == len(extra)
    for spared in extra:
        assert not fits(uid for uid in answer.pods if uid != spared)
