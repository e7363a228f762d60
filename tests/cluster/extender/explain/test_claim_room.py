"""Room for claims, by amounts: as kube-scheduler takes devices, request by request and the first that fit."""

from collections.abc import Iterable

from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain.claims import Alternatives, FreeGpu, free_gpus, take
from deviceplugin.cluster.extender.explain.evaluate import FAR
from deviceplugin.model.claims import DeviceRequest, Taint
from deviceplugin.placement.fit import GpuAmount
from tests.cluster.view.claims import BLOCKS, NAMES, allocated, offer

WHOLE = DeviceRequest(NAMES.whole_gpus)


def share(cores: int, blocks: int = 8, *, count: int | None = 1) -> DeviceRequest:
    return DeviceRequest(NAMES.shares, count, cores, blocks)


def gpus(*held: tuple[int, int, int], taints: Iterable[int] = ()) -> tuple[FreeGpu, ...]:
    """Three GPUs of node a, of which claims hold some."""
    made = SchedulerCache(lambda: 0.0)
    made.claims.put_offer(offer("a", [0, 1, 2], taints={at: Taint(NAMES.cordoned, "") for at in taints}))
    made.claims.put_claim(allocated("c", "a", *held))
    return free_gpus(made.nodes["a"].claims)


def short(requests: Iterable[Alternatives], there: tuple[FreeGpu, ...]) -> int | None:
    """The first request without room, after those before it were placed."""
    taken: dict[str, GpuAmount] = {}
    return next((at for at, each in enumerate(requests) if not take(each, there, taken)), None)


def test_what_is_free_is_what_is_offered_without_what_is_allocated() -> None:
    first, second, third = gpus((0, 20, 8), (0, 30, 8), (1, 100, BLOCKS), taints=[2])
    assert [each.free for each in (first, second, third)] == [(50, 48), (0, 0), (100, BLOCKS)]
    assert [each.offered.closed for each in (first, second, third)] == ["", "", "cordoned"]
    assert (first.has_room(share(50, 48)), first.has_room(share(51)), first.has_room(WHOLE)) == (True, False, False)
    assert not third.has_room(share(1)), "a taint closes it"


def test_requests_are_placed_one_after_the_other() -> None:
    """GPU 0 has 50 cores and 48 blocks, GPU 1 is free, GPU 2 is cordoned."""
    cases = [
        ([share(50)], None),
        ([share(50), share(100)], None),
        ([share(50), share(100), share(1)], 2),
        ([share(60, count=2)], 0),
        ([share(50, count=2)], None),
        ([share(50, count=3)], 0),
        ([share(50, count=None)], None),
        ([share(51, count=None)], 0),
        ([share(50, 49)], None),
        ([WHOLE, WHOLE], 1),
    ]
    there = gpus((0, 50, 16), taints=[2])
    assert [(asked, short([(each,) for each in asked], there)) for asked, _ in cases] == cases


def test_of_a_prioritized_list_the_first_with_room_is_taken() -> None:
    there = gpus((0, 50, 16), (1, 50, 16), (2, 50, 16))
    assert short([(WHOLE, share(50)), (share(50),), (share(50),)], there) is None
    assert short([(WHOLE, share(50))] * 4, there) == 3


def test_how_much_must_become_free() -> None:
    first, second, third = gpus((0, 50, 16), (1, 90, 63), taints=[2])
    assert (first.distance(share(50)), first.distance(share(60)), first.distance(WHOLE)) == (0, 100, 500)
    assert second.distance(share(10, 64)) == 984
    assert third.distance(share(1)) == FAR
    assert first.distance(share(1, BLOCKS + 1)) == FAR, "no GPU of the node has so much"
    assert first.offered.capacity == GpuAmount(100, BLOCKS)
