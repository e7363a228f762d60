"""kube-scheduler learns of freed room, and no more often than helps."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import structlog

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.watchers import WakeUp
from tests.cluster.extender.api import Fate, MemoryApi
from tests.cluster.extender.makers import NAMES, allocated, ask, bound, node, on_gpu, pod
from tests.waiting import until


@pytest.fixture
async def waiting() -> dict[str, bool]:
    return {"anybody": True}


@pytest.fixture
async def wake_up(api: MemoryApi, waiting: dict[str, bool]) -> AsyncIterator[WakeUp]:
    made = WakeUp(api, NAMES, has_unplaced_pods=lambda: waiting["anybody"], wall=lambda: 5.0, every=0.05, delay=0.001)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()


async def test_one_write_serves_many_freed_nodes(wake_up: WakeUp, api: MemoryApi) -> None:
    for name in ("a", "b", "c"):
        wake_up.freed(name)
    await until(lambda: bool(api.annotated))
    assert api.annotated == [("c", {NAMES.freed: "5.000"})]


async def test_nothing_is_written_while_no_pod_waits(wake_up: WakeUp, api: MemoryApi, waiting: dict[str, bool]) -> None:
    waiting["anybody"] = False
    wake_up.freed("a")
    waiting["anybody"] = True
    wake_up.freed("b")
    await until(lambda: bool(api.annotated))
    assert [name for name, _ in api.annotated] == ["b"]


async def test_a_deleted_node_is_replaced_by_another(wake_up: WakeUp, api: MemoryApi) -> None:
    api.node_fates = [Fate.REFUSED]
    wake_up.freed("a")
    wake_up.freed("b")
    await until(lambda: bool(api.annotated))
    assert [name for name, _ in api.annotated] == ["a"]


async def test_a_failed_write_is_repeated(wake_up: WakeUp, api: MemoryApi) -> None:
    api.node_fates = [Fate.BROKEN_BEFORE, Fate.LATE]
    wake_up.freed("a")
    await until(lambda: bool(api.annotated))
    assert api.node_fates == []
    assert [name for name, _ in api.annotated] == ["a"]


async def test_a_pod_that_was_refused_is_tried_again_when_another_ends(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a", 1))
    other = pod(cores=100, blocks=0)
    extender.put_pod(bound(other, "a", allocated(other, {"main": on_gpu("a", 0, 100, 64)})))
    waits = pod()
    extender.put_pod(waits)
    assert extender.filter(ask(waits, "a")).names == ()
    running = asyncio.create_task(extender.wake_up.run())
    extender.drop_pod(other.uid)
    await until(lambda: bool(api.annotated))
    running.cancel()
    assert extender.filter(ask(waits, "a")).names == ("a",)
    assert not extender.verdicts.has_unplaced_pods


async def test_a_node_that_refuses_every_change_is_passed_over_and_said_once(wake_up: WakeUp, api: MemoryApi) -> None:
    """A policy of its own, or annotations up to the API server's limit."""
    api.closed_nodes = {"z"}
    good = ("a", "b", "c")
    with structlog.testing.capture_logs() as logs:
        for name in good:
            wake_up.freed(name)
            wake_up.freed("z")
            await until(lambda: len(api.annotated) == good.index(name) + 1)  # noqa: B023
        wake_up.freed("z")
        await until(lambda: api.tried_nodes.count("z") > 3)
    assert [name for name, _ in api.annotated] == ["a", "b", "c"]
    assert [each["node"] for each in logs if each["event"] == "wake_up_failed"] == ["z"]


async def test_many_nodes_that_refuse_are_tried_a_few_at_a_time(wake_up: WakeUp, api: MemoryApi) -> None:
    api.closed_nodes = {f"z{at:02}" for at in range(20)}
    for name in ("a", *sorted(api.closed_nodes)):
        wake_up.freed(name)
    await until(lambda: bool(api.annotated))
    assert [name for name, _ in api.annotated] == ["a"]
    assert len(api.tried_nodes) == len({*api.tried_nodes}), "none is tried twice before all were"
