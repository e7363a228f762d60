"""Streams as a broken, old or overloaded API server sends them: the store still ends in the server's state."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.typing import EventDict

from deviceplugin.errors import KubeError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.reflector import Reflector, StoreChange, WatchTiming
from deviceplugin.kube.transport import Timeouts
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import Pod
from sandbox.apiserver import ApiServer, Harm, JsonObject, pod
from sandbox.apiserver.kubeconfig import write_kubeconfig
from tests.kube.counting import failures, lists
from tests.kube.kubeconfigs import open_transport
from tests.waiting import in_background, until

PACE = WatchTiming(watch=20.0, first_wait=0.01, most_wait=0.02)
PODS = pods_of_node("n1")


@asynccontextmanager
async def running(client: KubeClient) -> AsyncIterator[Reflector[PodUid, Pod]]:
    reflector = Reflector(client, pods_of_node("n1"), pace=PACE)
    async with in_background(reflector.run()):
        yield reflector


def same(reflector: Reflector[PodUid, Pod], server: ApiServer) -> bool:
    wanted = {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in server.store.objects("pods")}
    return {uid: found.resource_version for uid, found in reflector.items.items()} == wanted


def line(kind: str, item: JsonObject) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def first_watch_says(server: ApiServer, body: bytes) -> None:
    """After a list that is as it should be."""
    server.faults.add(Harm.SLOW, path="/pods")
    server.faults.add(Harm.BODY, path="/pods", body=body)


async def test_repeated_events_are_delivered_once_and_older_ones_do_not_stay(
    server: ApiServer, client: KubeClient, logs: list[EventDict]
) -> None:
    first = server.store.create("pods", pod("a", node="n1"))
    gone = server.store.create("pods", pod("gone", node="n1"))
    server.store.delete("pods", "gone", namespace="default", grace=0)
    later = server.store.set_status("a", {"phase": "Running"})
    twice = line("MODIFIED", later) * 2 + line("DELETED", gone) * 2 + line("MODIFIED", first)
    first_watch_says(server, twice)
    heard: list[tuple[str, str]] = []

    def reader(change: StoreChange[Pod]) -> None:
        if change.item.ref.name == "a":
            heard.append((change.kind.value, change.item.phase))

    reflector = Reflector(client, pods_of_node("n1"), pace=PACE)
    reflector.subscribe(reader)
    async with in_background(reflector.run()):
        await until(lambda: failures(logs) == 1)
        await until(lambda: same(reflector, server), seen=lambda: reflector.items)
    assert heard == [("ADDED", "Running"), ("MODIFIED", "Pending"), ("MODIFIED", "Running")]
    assert lists(server) == 1


async def test_bookmarks_alone_carry_a_quiet_watch_on(server: ApiServer, client: KubeClient) -> None:
    async with running(client) as reflector:
        await until(lambda: server.open_watches == 1)
        for number in range(3):
            server.store.create("pods", pod(f"elsewhere-{number}", node="n2"))
        await until(lambda: reflector._version == str(server.store.version))
        await server.drop_watches()
        await until(lambda: server.open_watches == 1)
        assert f"resourceVersion={server.store.version}&" in server.requests[-1][1]
        assert lists(server) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"WEIRD","object":{}}\n',
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":null}\n',
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":5}}}\n',
        b"\x00\xff\xfe\n",
        b"[]\n",
        b'"' + b"[" * 100_000 + b"\n",
        b'{"type":"ADDED","object":{"metadata":{"name":"' + b"x" * (9 << 20) + b'"}}}\n',
        b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n',
        b'{"type":"ERROR","object":{}}\n',
    ],
    ids=["kind", "no object", "null", "number", "bytes", "list", "deep", "huge", "expired", "bare error"],
)
async def test_a_line_that_is_none_costs_one_more_list_at_most(
    server: ApiServer, client: KubeClient, body: bytes
) -> None:
    server.store.create("pods", pod("a", node="n1"))
    first_watch_says(server, body)
    async with running(client) as reflector:
        await until(lambda: server.open_watches == 1)
        server.store.create("pods", pod("b", node="n1"))
        await until(lambda: same(reflector, server), seen=lambda: reflector.items)
        assert lists(server) <= 2


async def test_a_connection_that_died_without_a_word_is_given_up(server: ApiServer, client: KubeClient) -> None:
    """Half-open: the first event comes, and then nothing any more, not even a bookmark."""
    server.faults.add(Harm.SILENT_WATCH, after=1)
    async with running(client) as reflector:
        await until(lambda: server.open_watches == 1)
        for name in ("a", "b"):
            server.store.create("pods", pod(name, node="n1"))
        await until(lambda: same(reflector, server), seen=lambda: reflector.items)
        assert lists(server) == 1


async def test_pages_that_expire_again_and_again_are_tried_again_later(
    server: ApiServer, client: KubeClient, logs: list[EventDict]
) -> None:
    for number in range(501):
        server.store.create("pods", pod(f"p{number:04d}", node="n1"))
    for _ in range(4):
        server.faults.add(Harm.SLOW, path="/pods")
        server.faults.fail(410, path="/pods")
    async with running(client) as reflector:
        await until(lambda: same(reflector, server), within=20)
        assert failures(logs) == 1


async def test_a_page_that_is_too_large_to_be_read_is_asked_for_in_smaller_ones(
    server: ApiServer, tmp_path: Path
) -> None:
    for number in range(30):
        server.store.create("pods", pod(f"p{number}", node="n1"))
    server.faults.add(Harm.BODY, path="/pods", body=b" " * (65 << 20))
    kubeconfig = server.kubeconfig(tmp_path / "kc")
    async with KubeClient(await open_transport(kubeconfig, timeouts=Timeouts(request=20.0))) as client:
        assert len((await client.list(PODS)).items) == 30
    assert ["limit=500" in path for _, path in server.requests] == [True, False, False]


@pytest.mark.parametrize(("says", "asked"), [(1, 2), (30, 1), (None, 1)])
async def test_a_busy_server_is_left_alone_as_long_as_it_says_if_there_is_time(
    server: ApiServer, tmp_path: Path, says: int | None, asked: int
) -> None:
    server.faults.fail(429, retry_after=says)
    async with KubeClient(
        await open_transport(server.kubeconfig(tmp_path / "kc"), timeouts=Timeouts(request=5.0))
    ) as client:
        before = asyncio.get_running_loop().time()
        if asked == 1:
            with pytest.raises(KubeError, match="429"):
                await client.list(PODS)
            assert asyncio.get_running_loop().time() - before < 3.0, "nobody waits for what comes too late"
        else:
            await client.list(PODS)
            assert asyncio.get_running_loop().time() - before >= 1.0
    assert len(server.requests) == asked


async def test_a_watch_goes_on_when_the_token_was_rotated(server: ApiServer, tmp_path: Path) -> None:
    """A bound token of a service account lives an hour; kubelet writes the next one into the same file."""
    token = tmp_path / "token"
    token.write_text("first")
    server.token = "first"
    kubeconfig = write_kubeconfig(tmp_path / "kc", server.url, token_file=token)
    async with (
        KubeClient(await open_transport(kubeconfig, timeouts=Timeouts(request=5.0))) as client,
        running(client) as reflector,
    ):
        await until(lambda: server.open_watches == 1)
        token.write_text("second")
        server.token = "second"
        await server.drop_watches()
        server.store.create("pods", pod("a", node="n1"))
        await until(lambda: same(reflector, server), within=20)
        assert lists(server) == 1
