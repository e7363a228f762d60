"""preempt: only evictions that make the pod fit."""

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.wire import Victims
from deviceplugin.model.allocation import ContainerRole, PodUid
from deviceplugin.model.cluster_pod import ClusterPod
from tests.cluster.extender.makers import allocated, ask, ask_room, bound, node, on_gpu, pod


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
    assert extender.preempt(ask_room(vip, {"a": [victim]})) == {"a": Victims((victim.uid,))}


async def test_a_node_where_the_pod_does_not_fit_either_way_is_left_out(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    victim = runs(extender, "a", 0, 40)
    runs(extender, "a", 0, 40, priority=20)
    vip = pod(cores=100, blocks=0, priority=10)
    assert extender.preempt(ask_room(vip, {"a": [victim], "unknown": []})) == {}


async def test_victims_chosen_by_count_on_two_gpus_are_joined_by_whom_it_takes(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    left, right = runs(extender, "a", 0, 60), runs(extender, "a", 1, 60)
    other = runs(extender, "a", 1, 40, priority=5)
    vip = pod(cores=100, blocks=0, priority=10)
    assert extender.preempt(ask_room(vip, {"a": [right]})) == {"a": Victims((right.uid, left.uid), 1)}
    del other


async def test_as_few_as_possible_and_the_least_important_first(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    small = [runs(extender, "a", 0, 30, priority=1) for _ in range(3)]
    large = runs(extender, "a", 1, 90, priority=2)
    vip = pod(cores=50, priority=10)
    assert extender.preempt(ask_room(vip, {"a": []}))["a"].pods == (large.uid,)
    assert set(extender.preempt(ask_room(vip, {"a": small[:1]}))["a"].pods) < {each.uid for each in (*small, large)}


async def test_where_sets_are_too_many_nobody_is_evicted_who_could_stay(extender: Extender) -> None:
    extender.put_node(node("a", 8))
    pods = [runs(extender, "a", at, 10, priority=1) for at in range(8) for _ in range(6)]
    vip = pod(cores=600, blocks=0, priority=10)
    chosen = set(extender.preempt(ask_room(vip, {"a": []}))["a"].pods)
    assert len(chosen) == 36
    per_gpu = [len(chosen & {each.uid for each in pods[at * 6 : at * 6 + 6]}) for at in range(8)]
    assert sorted(per_gpu) == [0, 0, 6, 6, 6, 6, 6, 6]


async def test_reserved_room_is_not_evicted_and_not_given_away(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    assert extender.filter(ask(pod(cores=60), "a")).names == ("a",)
    assert extender.preempt(ask_room(pod(cores=100, blocks=0, priority=10), {"a": []})) == {}


async def test_a_pod_of_several_containers_is_placed_as_a_whole(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    one, two = runs(extender, "a", 0, 60), runs(extender, "a", 1, 60)
    vip = pod(cores=60, blocks=8, priority=10, more=[("side", ContainerRole.APP, 60, 8)])
    assert set(extender.preempt(ask_room(vip, {"a": [one]}))["a"].pods) == {one.uid, two.uid}


async def test_what_is_no_gpu_pod_is_nobody_of_ours(extender: Extender) -> None:
    question = ask_room(pod(cores=0, blocks=0), {"a": []})
    assert extender.preempt(question) == question.victims


async def test_victims_without_gpus_stay_proposed(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    vip = pod(priority=10)
    question = ask_room(vip, {})
    answer = extender.preempt(type(question)(vip, {"a": Victims((PodUid("cpu-only"),), 1)}))
    assert answer == {"a": Victims((PodUid("cpu-only"),), 1)}
