"""Whatever happens to the connection, the reflector ends in the server's state."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.typing import EventDict

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.reflector import Reflector, StoreChange, WatchTiming
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import Pod
from sandbox.apiserver import ApiServer, Harm, container, pod
from tests.kube.counting import failures, lists
from tests.waiting import in_background, until

PACE = WatchTiming(watch=20.0, first_wait=0.01, most_wait=0.02)


@asynccontextmanager
async def running(client: KubeClient, *, pace: WatchTiming = PACE) -> AsyncIterator[Reflector[PodUid, Pod]]:
    reflector = Reflector(client, pods_of_node("n1"), pace=pace)
    async with in_background(reflector.run()):
        yield reflector


def names(reflector: Reflector[PodUid, Pod]) -> set[str]:
    return {found.ref.name for found in reflector.items.values()}


def same(reflector: Reflector[PodUid, Pod], server: ApiServer) -> bool:
    wanted = {
        item["metadata"]["uid"]: item["metadata"]["resourceVersion"]
        for item in server.store.objects("pods")
        if item["spec"].get("nodeName") == "n1"
    }
    return {uid: found.resource_version for uid, found in reflector.items.items()} == wanted


async def test_the_store_follows_adds_changes_binds_and_deletes(server: ApiServer, client: KubeClient) -> None:
    server.store.create("pods", pod("early", node="n1"))
    async with running(client) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 60)
        assert names(reflector) == {"early"}
        server.store.create("pods", pod("late"))
        server.store.bind("late", "n1")
        server.store.set_status("early", {"phase": "Running"})
        await until(lambda: same(reflector, server) and names(reflector) == {"early", "late"})
        server.store.delete("pods", "late", namespace="default", grace=0)
        await until(lambda: names(reflector) == {"early"}, seen=lambda: names(reflector))
        assert lists(server) == 1


async def test_readers_hear_each_change_once_and_in_order(server: ApiServer, client: KubeClient) -> None:
    heard: list[tuple[str, str, bool]] = []

    def reader(change: StoreChange[Pod]) -> None:
        heard.append((change.kind.value, change.item.phase, change.item.deleting))

    async with running(client) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 60)
        reflector.subscribe(reader)
        server.store.create("pods", pod("a", node="n1"))
        server.store.set_status("a", {"phase": "Running"})
        server.store.delete("pods", "a", namespace="default", grace=0)
        await until(lambda: len(heard) == 4)
    assert heard == [
        ("ADDED", "Pending", False),
        ("MODIFIED", "Running", False),
        ("MODIFIED", "Running", True),
        ("DELETED", "Running", True),
    ]


async def test_a_reader_that_fails_harms_neither_store_nor_other_readers(server: ApiServer, client: KubeClient) -> None:
    heard: list[StoreChange[Pod]] = []

    def broken(change: StoreChange[Pod]) -> None:
        raise RuntimeError(change.item.ref.name)

    async with running(client) as reflector:
        reflector.subscribe(broken)
        reflector.subscribe(heard.append)
        server.store.create("pods", pod("a", node="n1"))
        await until(lambda: bool(heard))
        assert names(reflector) == {"a"}


async def test_a_name_that_is_used_again_is_another_pod(server: ApiServer, client: KubeClient) -> None:
    async with running(client) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 60)
        for _ in range(3):
            server.store.create("pods", pod("web-0", node="n1"))
            await until(lambda: len(reflector.items) == 1 and same(reflector, server))
            server.store.delete("pods", "web-0", namespace="default", grace=0)
            await until(lambda: not reflector.items)


async def test_a_lost_watch_goes_on_from_its_version_without_a_list(server: ApiServer, client: KubeClient) -> None:
    server.faults.add(Harm.CUT_WATCH, times=3)
    async with running(client) as reflector:
        for name in ("a", "b", "c"):
            server.store.create("pods", pod(name, node="n1"))
        await until(lambda: same(reflector, server) and len(reflector.items) == 3, seen=lambda: reflector.items)
        assert lists(server) == 1


async def test_a_watch_whose_version_is_compacted_away_begins_with_a_list(
    server: ApiServer, client: KubeClient
) -> None:
    server.store.create("pods", pod("gone", node="n1"))
    async with running(client) as reflector:
        await until(lambda: names(reflector) == {"gone"}, seen=lambda: names(reflector))
        async with server.refuse():
            server.store.delete("pods", "gone", namespace="default", grace=0)
            server.store.create("pods", pod("new", node="n1"))
            server.compact()
        await until(lambda: names(reflector) == {"new"}, seen=lambda: names(reflector))
        assert lists(server) == 2


@pytest.mark.parametrize("harm", [Harm.ERROR_WATCH, Harm.GARBLED_WATCH, Harm.CUT_WATCH, Harm.SILENT_WATCH])
async def test_a_broken_watch_is_survived(server: ApiServer, client: KubeClient, harm: Harm) -> None:
    server.faults.add(harm, times=2)
    async with running(client) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 60)
        server.store.create("pods", pod("a", container(cores=10, blocks=1), node="n1"))
        await until(lambda: same(reflector, server), seen=lambda: reflector.items)


async def test_a_server_that_fails_is_asked_less_and_less_often(
    server: ApiServer, client: KubeClient, logs: list[EventDict]
) -> None:
    server.faults.fail(500, times=10_000)
    async with running(client, pace=WatchTiming(first_wait=0.05, most_wait=10.0)) as reflector:
        await until(lambda: failures(logs) >= 4)
        assert 4 <= len(server.requests) <= 6
        assert not reflector.synced.is_set()
        server.faults.clear()
        await asyncio.wait_for(reflector.synced.wait(), 60)


async def test_a_server_that_ends_every_watch_at_once_is_not_stormed(
    server: ApiServer, client: KubeClient, logs: list[EventDict]
) -> None:
    async with running(client, pace=WatchTiming(watch=1, first_wait=0.05, most_wait=10.0)):
        server.faults.add(
            Harm.BODY, path="/pods", times=10_000, body=b'{"items":[],"metadata":{"resourceVersion":"1"}}'
        )
        await until(lambda: failures(logs) >= 4)
        assert len(server.requests) <= 12


async def test_a_watch_that_ends_after_a_while_is_opened_again_at_once(
    server: ApiServer, client: KubeClient, logs: list[EventDict]
) -> None:
    loop = asyncio.get_running_loop()
    pace = WatchTiming(watch=1, first_wait=60.0, most_wait=60.0)
    reflector = Reflector(client, pods_of_node("n1"), pace=pace, clock=lambda: loop.time() * 20, jitter=lambda: 0.0)
    async with in_background(reflector.run()):
        await until(lambda: sum("watch=true" in path for _, path in server.requests) == 3)
        assert (failures(logs), lists(server)) == (0, 1)


async def test_the_age_of_the_last_event_counts_from_the_last_word_of_the_server(
    server: ApiServer, client: KubeClient
) -> None:
    now = 100.0
    reflector = Reflector(client, pods_of_node("n1"), pace=PACE, clock=lambda: now)
    assert reflector.last_event_age is None
    async with in_background(reflector.run()):
        await asyncio.wait_for(reflector.synced.wait(), 60)
        await until(lambda: server.open_watches == 1)
        now = 130.0
        await until(lambda: reflector.last_event_age == 0.0)  # a bookmark
