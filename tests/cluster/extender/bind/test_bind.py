"""bind: one write, or nothing left behind."""

import asyncio
import json

from deviceplugin.cluster.extender.cache.pod_hold import HoldState
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod import ClusterPod
from deviceplugin.structs import replace
from tests.cluster.extender.api import Fate, MemoryApi
from tests.cluster.extender.makers import NAMES, ask, bound, node, order, pod


def chosen(extender: Extender, api: MemoryApi, one: ClusterPod, *names: str) -> ClusterPod:
    """The pod waits, the watch has shown it, and filter has chosen its node."""
    kept = api.put(one)
    extender.put_pod(kept)
    assert extender.filter(ask(kept, *names)).names
    return kept


def hold(extender: Extender, name: str, one: ClusterPod) -> HoldState | None:
    held = extender.cache.on(name, one.uid)
    return None if held is None else held.state


async def test_a_binding_carries_the_allocation(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a"))
    one = chosen(extender, api, pod(cores=50, blocks=8, more=[("setup", ContainerRole.INIT, 100, 0)]), "a")
    assert await extender.bind(order(one, "a")) == ""
    written = api.pods[one.uid].pod
    assert written.node == "a"
    found = written.annotations
    assert (found[NAMES.predicate_node], found[NAMES.gpu_assigned]) == ("a", "false")
    assert found[NAMES.predicate_time].isdecimal()
    assert found[NAMES.gpu_indices(0)] in ("0", "1")
    assert NAMES.gpu_indices(1) not in found
    allocation = json.loads(found[NAMES.allocation])
    assert allocation["pod"] == one.uid
    assert set(allocation["containers"]) == {"main", "setup"}
    extender.put_pod(api.pods[one.uid])
    assert hold(extender, "a", one) is HoldState.BOUND


async def test_binding_again_is_binding_once(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a"))
    extender.put_node(node("b"))
    one = chosen(extender, api, pod(), "a")
    assert [await extender.bind(order(one, "a")) for _ in range(2)] == ["", ""]
    extender.put_pod(api.pods[one.uid])
    assert await extender.bind(order(one, "a")) == ""
    assert "already bound to node a" in await extender.bind(order(one, "b"))
    assert api.bindings == 1


async def test_the_same_order_twice_at_once_is_one_order(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a"))
    extender.put_node(node("b"))
    one = chosen(extender, api, pod(), "a")
    api.turns = 5
    orders = (order(one, "a"), order(one, "a"), order(one, "b"))
    said = await asyncio.gather(*(extender.bind(each) for each in orders))
    assert said[:2] == ["", ""]
    assert "already" in said[2]
    assert api.bindings == 1


async def test_an_order_for_another_node_waits_for_the_first_and_goes_on_when_that_failed() -> None:
    for turns in range(6):
        extender = Extender(api := MemoryApi())
        for name in ("a", "b"):
            extender.put_node(node(name))
        one = chosen(extender, api, pod(), "a")
        api.turns, api.fates = turns, [Fate.REFUSED]
        orders = [order(one, name) for name in ("a", "b", "b", "a", "b")]
        said = await asyncio.gather(*(extender.bind(each) for each in orders))
        assert said == ["bind refused", "", "", "bind refused", ""], turns
        assert (api.bindings, api.pods[one.uid].pod.node) == (2, "b"), turns


async def test_an_order_that_comes_while_another_is_just_ending_is_answered() -> None:
    for after in range(12):
        extender = Extender(api := MemoryApi(fates=[Fate.REFUSED]))
        for name in ("a", "b"):
            extender.put_node(node(name))
        one = chosen(extender, api, pod(), "a")
        first = asyncio.create_task(extender.bind(order(one, "a")))
        for _ in range(after):
            await asyncio.sleep(0)
        assert await asyncio.create_task(extender.bind(order(one, "b"))) == "", after
        assert await first == "bind refused", after


async def _bind_of_a_caller_that_goes_away(extender: Extender, api: MemoryApi) -> ClusterPod:
    extender.put_node(node("a"))
    one = chosen(extender, api, pod(), "a")
    api.turns = 20
    caller = asyncio.create_task(extender.bind(order(one, "a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    return one


async def test_a_caller_that_goes_away_does_not_stop_the_binding(extender: Extender, api: MemoryApi) -> None:
    one = await _bind_of_a_caller_that_goes_away(extender, api)
    assert await extender.bind(order(one, "a")) == ""
    assert (api.bindings, api.pods[one.uid].pod.node) == (1, "a")


async def test_drain_waits_for_bindings_whose_callers_have_disconnected(extender: Extender, api: MemoryApi) -> None:
    one = await _bind_of_a_caller_that_goes_away(extender, api)
    await extender.drain()
    assert api.pods[one.uid].pod.node == "a"
    await extender.drain()


async def test_without_a_reservation_bind_places_the_pod_again(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a", 1))
    one = api.put(pod(cores=100, blocks=0))
    assert await extender.bind(order(one, "a")) == ""
    other = api.put(pod())
    assert "asked, but" in await extender.bind(order(other, "a"))
    assert api.bindings == 1


async def test_bind_checks_a_reservation_again(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a", 2))
    one = chosen(extender, api, pod(cores=100, blocks=0), "a")
    extender.put_node(node("a", 2, ill=[0]))
    assert await extender.bind(order(one, "a")) == ""
    assert api.pods[one.uid].pod.annotations[NAMES.gpu_indices(0)] == "1"


async def test_after_a_failure_the_pod_is_read_before_anything_is_released() -> None:
    cases = [
        (Fate.REFUSED, "bind refused", None),
        (Fate.BROKEN_BEFORE, "bind: the server is unwell", HoldState.UNCONFIRMED),
        (Fate.BROKEN_AFTER, "", HoldState.BOUND),
        (Fate.LATE, "bind: no answer", HoldState.UNCONFIRMED),
    ]
    found = []
    for fate, *_ in cases:
        extender = Extender(api := MemoryApi(fates=[fate]))
        extender.put_node(node("a"))
        one = chosen(extender, api, pod(), "a")
        found.append((fate, await extender.bind(order(one, "a")), hold(extender, "a", one)))
    assert found == cases


async def test_a_binding_that_arrives_late_finds_its_gpus_still_there(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a", 1))
    extender.put_node(node("b", 1))
    one = chosen(extender, api, pod(cores=100, blocks=0), "a")
    api.fates = [Fate.LATE]
    await extender.bind(order(one, "a"))
    assert extender.filter(ask(one, "b")).names == ("b",)
    assert extender.filter(ask(pod(), "a")).names == ()
    api.apply(*api.late.pop())
    extender.put_pod(api.pods[one.uid])
    assert (hold(extender, "a", one), hold(extender, "b", one)) == (HoldState.BOUND, None)


async def test_a_pod_with_an_unconfirmed_binding_is_offered_the_same_gpus_again(
    extender: Extender, api: MemoryApi
) -> None:
    extender.put_node(node("a", 4))
    one = chosen(extender, api, pod(cores=100, blocks=0), "a")
    first = extender.cache.on("a", one.uid)
    api.fates = [Fate.LATE]
    await extender.bind(order(one, "a"))
    assert extender.filter(ask(one, "a")).names == ("a",)
    assert await extender.bind(order(one, "a")) == ""
    second = extender.cache.on("a", one.uid)
    assert first is not None
    assert second is not None
    assert first.allocations == second.allocations


async def test_a_pod_that_another_scheduler_bound_elsewhere_is_counted_there(
    extender: Extender, api: MemoryApi
) -> None:
    extender.put_node(node("a", 1))
    extender.put_node(node("b", 1))
    one = chosen(extender, api, pod(cores=100, blocks=0), "a")
    api.put(bound(one, "b"))
    assert "already bound to node b" in await extender.bind(order(one, "a"))
    assert (hold(extender, "a", one), hold(extender, "b", one)) == (None, HoldState.BOUND)


async def test_a_pod_that_is_gone_leaves_nothing_behind(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a", 1))
    one = chosen(extender, api, pod(cores=100, blocks=0), "a")
    del api.pods[one.uid]
    assert await extender.bind(order(one, "a")) == "no such pod"
    assert hold(extender, "a", one) is None
    extender.drop_pod(one.uid)
    assert "deleted" in await extender.bind(order(one, "a"))


async def test_a_pod_that_is_deleted_while_it_is_bound_is_not_counted_again(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a", 1))
    one = chosen(extender, api, pod(cores=100, blocks=0), "a")
    api.turns = 5
    running = asyncio.create_task(extender.bind(order(one, "a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    extender.drop_pod(one.uid)
    await running
    extender.put_pod(replace(one, pod=replace(one.pod, node="a")))
    assert hold(extender, "a", one) is None


async def test_a_node_that_cannot_be_used_any_more_is_not_bound_to(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a"))
    one = chosen(extender, api, pod(), "a")
    extender.put_node(node("a", text="{"))
    assert "cannot read" in await extender.bind(order(one, "a"))
    assert hold(extender, "a", one) is None
    extender.drop_node("a")
    assert "not in the GPU scheduler's cache" in await extender.bind(order(one, "a"))


async def test_why_a_pod_was_not_bound_is_told_where_it_is_certain(api: MemoryApi) -> None:
    told: list[str] = []
    extender = Extender(api, unbound=lambda ref, why: told.append(f"{ref.name}: {why}"))
    extender.put_node(node("a", 1))
    first = chosen(extender, api, pod("first", cores=100, blocks=0), "a")
    second = api.put(pod("second", cores=100, blocks=0))
    assert "asked, but" in (said := await extender.bind(order(second, "a")))
    assert told == [f"second: {said}"]
    api.fates = [Fate.LATE, Fate.REFUSED, Fate.WORKS]
    assert await extender.bind(order(first, "a")) == "bind: no answer"
    assert told[1:] == [], "it may be bound yet"
    assert await extender.bind(order(first, "a")) == "bind refused"
    assert told[1:] == ["first: bind refused"]
    assert await extender.bind(order(first, "a")) == ""
    del api.pods[second.uid]
    assert await extender.bind(order(second, "a")) == "no such pod"
    assert len(told) == 2, "nobody reads events of a pod that is gone"


async def test_news_from_before_the_binding_do_not_undo_it(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a"))
    one = chosen(extender, api, pod(), "a")
    assert await extender.bind(order(one, "a")) == ""
    extender.put_pod(replace(one, pod=replace(one.pod, resource_version="77")))
    assert hold(extender, "a", one) is HoldState.ASSUMED
