"""The scheduler cache: who holds what, in whatever order the events arrive."""

from deviceplugin.cluster.extender.cache.pod_hold import HoldState
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.rejection import (
    AGENT_DOWN,
    CROWDED,
    NO_INVENTORY,
    TOO_MANY_GPUS,
    UNKNOWN_NODE,
    UNREADABLE_INVENTORY,
)
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.node import MOST_GPUS
from deviceplugin.model.pod import ClusterPod
from deviceplugin.structs import replace
from tests.cluster.extender.makers import NAMES, allocated, ask, bound, deleting, ended, node, on_gpu, pod


def cache_with(*nodes: str) -> SchedulerCache:
    cache = SchedulerCache(lambda: 0.0)
    for name in nodes:
        cache.put_node(node(name))
    return cache


def free(cache: SchedulerCache, name: str) -> list[tuple[int, int]]:
    return [(view.free_cores, view.free_blocks) for view in cache.nodes[name].state.snapshot.gpus]


def placed(name: str = "a", at: int = 0, cores: int = 50, blocks: int = 8) -> ClusterPod:
    found = pod(cores=cores, blocks=blocks)
    return bound(found, name, allocated(found, {"main": on_gpu(name, at, cores, blocks)}))


def test_a_bound_pod_holds_what_its_annotation_says_however_often_and_late_it_is_told() -> None:
    cache = cache_with("a")
    one = placed()
    older = replace(one, pod=replace(one.pod, node="", annotations={}))
    for told in (one, one, older, deleting(one)):
        cache.put_pod(told)
        assert free(cache, "a") == [(50, 56), (100, 64)], told


def test_a_pod_that_ended_holds_nothing_and_late_news_do_not_bring_it_back() -> None:
    for phase in ("Succeeded", "Failed"):
        cache = cache_with("a")
        one = placed()
        cache.put_pod(one)
        cache.put_pod(ended(one, phase))
        cache.put_pod(one)
        assert free(cache, "a") == [(100, 64), (100, 64)], phase
        cache.drop_pod(one.uid)
        cache.put_pod(one)
        assert free(cache, "a") == [(100, 64), (100, 64)], phase


def test_an_unbound_pod_holds_nothing_whatever_its_annotations_say() -> None:
    cache = cache_with("a")
    found = placed()
    cache.put_pod(replace(found, pod=replace(found.pod, node="")))
    assert free(cache, "a") == [(100, 64), (100, 64)]


def test_an_unlocated_pod_counts_on_every_gpu_that_may_hold_it() -> None:
    cache = cache_with("a")
    cache.put_pod(placed(at=1, cores=70))
    stranger = pod(cores=40, blocks=8)
    cache.put_pod(bound(stranger, "a"))
    assert free(cache, "a") == [(60, 56), (30, 56)]  # GPU 1 has no room for it beside what is known
    cache.put_pod(bound(stranger, "a", allocated(stranger, {"main": on_gpu("a", 0, 40, 8)})))
    assert free(cache, "a") == [(60, 56), (30, 56)]
    cache.put_pod(bound(stranger, "a", allocated(stranger, {"main": on_gpu("a", 0, 40, 8)})))
    cache.drop_pod(stranger.uid)
    assert free(cache, "a") == [(100, 64), (30, 56)]


def test_an_untrusted_annotation_leaves_the_pod_unlocated() -> None:
    cases = [
        {NAMES.allocation: "{"},
        {NAMES.allocation: '{"version":2,"pod":"u","containers":{}}'},
        allocated(pod(), {"main": on_gpu("a", 0, 50, 8)}),  # of another pod
        {**allocated(pod(uid="u"), {"main": on_gpu("a", 0, 50, 8)}), NAMES.predicate_node: "b"},
        allocated(pod(uid="u"), {"main": on_gpu("a", 0, 1, 1)}),  # less than it asks
        allocated(pod(uid="u"), {"other": on_gpu("a", 0, 50, 8)}),
    ]
    for annotations in cases:
        cache = cache_with("a")
        cache.put_pod(bound(pod(uid="u"), "a", annotations))
        assert all(cores <= 50 for cores, _ in free(cache, "a")), annotations
        held = cache.nodes["a"].holds["u"]  # type: ignore[index]
        assert [each.name for each in held.unlocated] == ["main"], annotations


def test_a_pod_that_asks_for_nonsense_holds_nothing_and_breaks_nothing() -> None:
    cache = cache_with("a")
    stranger = bound(pod(cores=150, blocks=1), "a")
    cache.put_pod(stranger)
    assert free(cache, "a") == [(100, 64), (100, 64)]
    assert "150" in cache.nodes["a"].holds[stranger.uid].problem


def test_init_containers_leave_their_room_to_the_others() -> None:
    cache = cache_with("a")
    found = pod(cores=50, more=[("setup", ContainerRole.INIT, 30, 8)])
    shares = {"main": on_gpu("a", 0, 50, 8), "setup": on_gpu("a", 0, 30, 8)}
    cache.put_pod(bound(found, "a", allocated(found, shares)))
    assert free(cache, "a") == [(50, 56), (100, 64)]


def test_a_node_that_comes_back_has_its_pods_and_with_other_gpus_they_hold_nothing_of_those() -> None:
    cache = cache_with("a")
    cache.put_pod(placed())
    cache.drop_node("a")
    assert cache.problem("a") == UNKNOWN_NODE
    cache.put_node(node("a"))
    assert free(cache, "a") == [(50, 56), (100, 64)]
    other = node("b")
    cache.put_node(replace(other, name="a"))
    assert free(cache, "a") == [(100, 64), (100, 64)]


def test_an_unused_node_is_dropped() -> None:
    cache = cache_with("a")
    one = placed()
    cache.put_pod(one)
    cache.drop_node("a")
    cache.drop_pod(one.uid)
    assert "a" not in cache.nodes


def test_an_inventory_that_cannot_be_read_makes_the_node_unusable_and_nothing_else() -> None:
    cache = cache_with("b")
    for text in ["{", '{"version": 9}', "[]", "nonsense"]:
        cache.put_node(node("a", text=text))
        assert cache.problem("a") == UNREADABLE_INVENTORY, text
        assert "vcuda-inventory" in cache.nodes["a"].sentence, text
        assert cache.problem("b") is None, text
        cache.put_node(node("a"))
        assert cache.problem("a") is None, text


def test_a_node_with_more_gpus_than_are_supported_is_rejected_for_that() -> None:
    """Security 15: nobody could tell why it got no pods."""
    cache = cache_with()
    cache.put_node(node("a", MOST_GPUS + 1))
    cache.put_node(node("b", MOST_GPUS))
    assert (cache.problem("a"), cache.problem("b")) == (TOO_MANY_GPUS, None)
    assert "has 65 GPUs" in cache.nodes["a"].sentence


def test_a_node_without_inventory_or_agent_is_unusable() -> None:
    cache = cache_with()
    cache.put_node(node("a", text=""))
    cache.put_node(replace(node("b"), cores=0))
    assert (cache.problem("a"), cache.problem("b"), cache.problem("c")) == (NO_INVENTORY, AGENT_DOWN, UNKNOWN_NODE)


def test_a_node_whose_agent_goes_is_unusable_until_it_comes_back() -> None:
    """Its annotation stays; kubelet takes away what the agent offered."""
    cache = cache_with()
    for cores, problem in ((200, None), (0, AGENT_DOWN), (200, None)):
        cache.put_node(replace(node("a"), cores=cores))
        assert cache.problem("a") is problem


def test_ill_and_cordoned_gpus_take_no_new_work() -> None:
    cache = cache_with()
    cache.put_node(node("a", 4, ill=[1], cordon=["2", "GPU-a-3"]))
    assert [view.gpu.minor for view in cache.nodes["a"].state.open_gpus.views] == [0]
    cache.put_node(node("a", 4, ill=[1]))
    assert [view.gpu.minor for view in cache.nodes["a"].state.open_gpus.views] == [0, 2, 3]


def test_a_node_takes_no_new_work_while_its_agent_shall_let_go_of_the_driver() -> None:
    """NVML D9: the agent refused what the scheduler went on to bind."""
    cache = cache_with()
    for closed in (False, True, False):
        cache.put_node(replace(node("a", 4), close_nvml=closed))
        assert len(cache.nodes["a"].state.open_gpus.views) == (0 if closed else 4)


def test_freed_room_is_reported() -> None:
    told: list[str] = []
    cache = SchedulerCache(lambda: 0.0, freed=told.append)
    cache.put_node(node("a"))
    told.clear()
    one = placed()
    cache.put_pod(one)
    assert told == []
    cache.put_pod(ended(one))
    assert told == ["a"]


def test_a_node_that_has_not_changed_keeps_its_state() -> None:
    cache = cache_with("a")
    one = placed()
    cache.put_pod(one)
    before = cache.nodes["a"].state
    cache.put_node(node("a"))
    cache.put_pod(replace(one, pod=replace(one.pod, resource_version="9")))
    assert cache.nodes["a"].state is before
    assert cache.nodes["a"].holds[one.uid].state is HoldState.BOUND


def test_a_pod_that_its_node_has_placed_again_holds_the_other_gpu() -> None:
    """Of all that it holds, only the GPU is another."""
    cache = cache_with("a")
    one = placed()
    cache.put_pod(one)
    assert free(cache, "a") == [(50, 56), (100, 64)]
    cache.put_pod(bound(one, "a", allocated(one, {"main": on_gpu("a", 1, 50, 8)})))
    assert free(cache, "a") == [(100, 64), (50, 56)]
    assert cache.usable == {"a": cache.nodes["a"].state}


async def test_a_node_with_very_many_containers_on_unknown_gpus_takes_no_pods_until_they_go(extender: Extender) -> None:
    """Anybody may create pods that name a node. Where it is dead, 5,000 of them cost every filter 1.6 s."""
    extender.put_node(node("a", 16))
    made = [bound(pod(cores=1, blocks=1), "a") for _ in range(257)]
    for each in made[:256]:
        extender.put_pod(each)
    assert extender.cache.problem("a") is None
    extender.put_pod(made[256])
    assert extender.filter(ask(pod(cores=1, blocks=1), "a")).unresolvable == {"a": CROWDED.text}
    placed = made[0]
    extender.put_pod(bound(placed, "a", allocated(placed, {"main": on_gpu("a", 0, 1, 1)})))
    assert extender.cache.problem("a") is None, "its agent has reported one"
    extender.put_pod(made[0])
    extender.drop_pod(made[1].uid)
    assert extender.cache.problem("a") is None
