"""CPU and memory of a node: counted while pods of every kind come and go, and never a reason to reject a node."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod, PlainPod
from deviceplugin.model.preferences import NodePolicy
from deviceplugin.model.request import Request
from deviceplugin.model.units import MIB, Compute
from deviceplugin.placement.fragmentation import TaskKind, Workload
from deviceplugin.placement.node_state import Spare
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import allocated, ask, bound, deleting, ended, node, on_gpu, order, pod
from tests.examples import examples

OFFERED = Compute(8_000, 1024 * MIB)


def needs(cpu: int, mib: int = 0) -> Compute:
    return Compute(cpu, mib * MIB)


def plain(name: str, where: str, taken: Compute | None) -> PlainPod:
    return PlainPod(PodUid(name), where, taken)


def spare(cache: SchedulerCache, name: str = "a") -> Spare | None:
    return cache.nodes[name].state.spare


def placed(name: str, taken: Compute | None, *, uid: str = "") -> ClusterPod:
    found = pod(cores=10, blocks=1, needs=taken, uid=uid)
    return bound(found, name, allocated(found, {"main": on_gpu(name, 0, 10, 1)}))


@pytest.fixture
def cache() -> SchedulerCache:
    found = SchedulerCache(lambda: 0.0)
    found.put_node(node("a", allocatable=OFFERED))
    return found


def test_pods_with_gpus_and_without_take_what_they_ask_for(cache: SchedulerCache) -> None:
    cache.put_plain(plain("p", "a", needs(500, 24)))
    cache.put_pod(placed("a", needs(1500, 100)))
    assert spare(cache) == Spare(6000, 900)


def test_memory_that_is_left_is_rounded_down(cache: SchedulerCache) -> None:
    cache.put_plain(plain("p", "a", Compute(0, 1)))
    assert spare(cache) == Spare(8000, 1023)


def test_what_has_ended_gives_back_and_a_deletion_counts_once(cache: SchedulerCache) -> None:
    gpu = placed("a", needs(1000))
    cache.put_pod(gpu)
    cache.put_plain(plain("p", "a", needs(1000)))
    cache.put_pod(deleting(gpu))
    assert spare(cache) == Spare(6000, 1024)
    cache.put_pod(ended(gpu))
    for _ in range(2):
        cache.drop_pod(gpu.uid)
        cache.drop_plain(PodUid("p"))
    assert spare(cache) == Spare(8000, 1024)


def test_a_resize_is_counted_and_a_repeated_event_is_not(cache: SchedulerCache) -> None:
    gpu = placed("a", needs(1000))
    for cpu in (1000, 3000, 3000, 2000):
        cache.put_pod(replace(gpu, needs=needs(cpu)))
        cache.put_plain(plain("p", "a", needs(cpu)))
        assert spare(cache) == Spare(8000 - 2 * cpu, 1024)


def test_a_change_of_cpu_is_no_news_of_gpus() -> None:
    freed: list[str] = []
    cache = SchedulerCache(lambda: 0.0, freed=freed.append)
    cache.put_node(node("a", allocatable=OFFERED))
    gpu = placed("a", needs(1000))
    cache.put_pod(gpu)
    before, told = cache.nodes["a"].state, len(freed)
    cache.put_pod(replace(gpu, needs=needs(2000)))
    cache.put_plain(plain("p", "a", needs(1)))
    cache.put_node(node("a", allocatable=needs(9000, 1024)))
    after = cache.nodes["a"].state
    assert after.spare == Spare(6999, 1024)
    assert (after.snapshot, len(freed)) == (before.snapshot, told)


def test_who_asks_for_nothing_changes_nothing(cache: SchedulerCache) -> None:
    before = cache.nodes["a"].state
    cache.put_plain(plain("p", "a", needs(0)))
    assert cache.nodes["a"].state is before


def test_a_missing_amount_makes_the_rest_unknown(cache: SchedulerCache) -> None:
    for offered in (None, OFFERED):
        cache.put_node(node("a", allocatable=offered))
        cache.put_plain(plain("p", "a", None if offered else needs(1)))
        assert spare(cache) is None, offered
        cache.put_node(node("a", allocatable=OFFERED))
        cache.drop_plain(PodUid("p"))
        assert spare(cache) == Spare(8000, 1024), offered


def test_pods_may_come_before_their_node_and_outlive_it() -> None:
    cache = SchedulerCache(lambda: 0.0)
    cache.put_plain(plain("p", "a", needs(1000)))
    for _ in range(2):
        cache.put_node(node("a", allocatable=OFFERED))
        assert spare(cache) == Spare(7000, 1024)
        cache.drop_node("a")
    cache.drop_plain(PodUid("p"))
    assert not cache.nodes


def test_a_plain_pod_that_turns_out_to_want_gpus_counts_once(cache: SchedulerCache) -> None:
    cache.put_plain(plain("u", "a", needs(1000)))
    cache.put_pod(placed("a", needs(1000), uid="u"))
    assert spare(cache) == Spare(7000, 1024)


async def test_a_reservation_counts_until_it_expires_and_a_binding_does_not_expire(clock: Clock) -> None:
    api = MemoryApi()
    extender = Extender(api, clock=clock)
    extender.put_node(node("a", allocatable=OFFERED))
    one, other = pod(needs=needs(1000, 24)), pod(needs=needs(500))
    for each in (one, other):
        extender.filter(ask(api.put(each), "a"))
    assert spare(extender.cache) == Spare(6500, 1000)
    extender.filter(ask(one, "a"))
    assert spare(extender.cache) == Spare(6500, 1000), "it is asked for again, and counts once"
    assert await extender.bind(order(one, "a")) == ""
    clock.now += 61.0
    extender.expire()
    assert spare(extender.cache) == Spare(7000, 1000)
    extender.put_pod(api.pods[one.uid])
    assert spare(extender.cache) == Spare(7000, 1000)


def test_a_pod_that_is_asked_about_does_not_stand_in_its_own_way(cache: SchedulerCache) -> None:
    gpu = placed("a", needs(1000))
    cache.put_pod(gpu)
    assert cache.nodes["a"].state_without({gpu.uid}).spare == Spare(8000, 1024)


async def test_what_is_kept_for_a_nominated_pod_is_not_spare(clock: Clock) -> None:
    extender = Extender(MemoryApi(), clock=clock)
    extender.put_node(node("a", allocatable=OFFERED))
    extender.put_pod(pod(needs=needs(3000, 24), priority=5, nominated="a"))
    (seen,) = extender.snapshot.nodes(pod(needs=needs(1000)), ["a"]).states
    assert seen.spare == Spare(5000, 1000)


KINDS = Workload(((TaskKind(Request(50, 8), Spare(4000, 0)), 1), (TaskKind(Request(50, 8)), 1)))


def test_no_node_is_refused_for_cpu_whatever_is_known(clock: Clock) -> None:
    """kube-scheduler has already checked it, and knows better."""
    for policy in NodePolicy:
        extender = Extender(MemoryApi(), PlacementSettings(node_policy=policy), clock=clock)
        extender.put_node(node("a", allocatable=needs(100, 1)))
        assert extender.filter(ask(pod(needs=needs(2000, 8)), "a")).names == ("a",), policy


def test_the_fragmentation_policy_keeps_cpu_beside_gpus(clock: Clock) -> None:
    """Two nodes with equal GPUs: a pod without CPU goes where no CPU is left for others."""
    policy = PlacementSettings(node_policy=NodePolicy.FRAGMENTATION)
    extender = Extender(MemoryApi(), policy, typical=KINDS, clock=clock)
    for name in ("a", "b"):
        extender.put_node(node(name, allocatable=needs(16_000, 1024)))
    extender.put_plain(plain("p", "b", needs(14_000)))
    assert extender.filter(ask(pod(needs=needs(0)), "a", "b")).names == ("b",)
    extender.drop_plain(PodUid("p"))
    extender.put_plain(plain("p", "a", needs(14_000)))
    assert extender.filter(ask(pod(needs=needs(0)), "a", "b")).names == ("a",)


Step = tuple[str, str, int, Compute | None]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["node", "no node", "plain", "drop plain", "bound", "end", "drop", "reserve", "expire"]),
        st.sampled_from("ab"),
        st.integers(0, 3),
        st.sampled_from([None, needs(0), needs(250, 3), needs(1000), Compute(0, 77)]),
    ),
    max_size=40,
)


@given(ACTIONS)
@examples(300)
def test_in_any_order_of_news_what_is_spare_equals_a_recount(
    script: list[tuple[str, str, int, Compute | None]],
) -> None:
    clock = Clock()
    cache = SchedulerCache(clock)
    offered: dict[str, Compute | None] = {}
    plains: dict[PodUid, PlainPod] = {}
    live: dict[PodUid, ClusterPod] = {}
    over: set[PodUid] = set()
    for action, name, number, taken in script:
        ours = placed(name, taken, uid=f"g{number}")
        match action:
            case "node":
                offered[name] = None if taken is None else taken + OFFERED
                cache.put_node(node(name, allocatable=offered[name]))
            case "no node":
                offered.pop(name, None)
                cache.drop_node(name)
            case "plain":
                told = plains[PodUid(f"p{number}")] = plain(f"p{number}", name, taken)
                cache.put_plain(told)
            case "drop plain":
                plains.pop(PodUid(f"p{number}"), None)
                cache.drop_plain(PodUid(f"p{number}"))
            case "bound":
                cache.put_pod(ours)
                if ours.uid not in over:
                    live[ours.uid] = ours
            case "end" | "drop":
                over.add(ours.uid)
                live.pop(ours.uid, None)
                cache.put_pod(ended(ours)) if action == "end" else cache.drop_pod(ours.uid)
            case "reserve" if ours.uid not in live and ours.uid not in over:
                expires = clock.now + 10
                cache.put_hold(PodHold(ours.pod.api_ref, name, HoldState.RESERVED, expires=expires, needs=taken))
            case "expire":
                clock.now += 6
                cache.expire()
        for each, has in offered.items():
            held = cache.nodes[each].holds.values()
            assert {one.pod.uid for one in held if one.is_bound} == {
                uid for uid, one in live.items() if one.pod.node == each
            }
            taking = [one.needs for one in plains.values() if one.node == each] + [one.needs for one in held]
            assert spare(cache, each) == recount(has, taking)


def recount(offered: Compute | None, taken: Iterable[Compute | None]) -> Spare | None:
    cpu, memory = (offered.cpu_milli, offered.memory_bytes) if offered is not None else (0, 0)
    for each in taken:
        if each is None:
            return None
        cpu, memory = cpu - each.cpu_milli, memory - each.memory_bytes
    return None if offered is None else Spare(cpu, memory // MIB)
