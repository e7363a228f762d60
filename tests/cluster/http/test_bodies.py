"""Bodies that are slow, cut off, too large, packed, or only announced, and what they leave to the others."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from deviceplugin.serve.connections import ConnectionLimits
from deviceplugin.serve.server import Limits
from tests.cluster.http.scene import Scene, serving
from tests.cluster.http.test_routes import counted
from tests.waiting import until


async def test_a_body_that_does_not_come_is_answered_with_408() -> None:
    async with serving(limits=Limits(ConnectionLimits(arrive=0.2, sweep=0.05))) as scene:
        reader, writer = await scene.raw()
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        async with asyncio.timeout(60):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b"the request did not arrive within 0.2s; send it at once\n")
        assert await counted(scene, "filter") == {"slow": 1}


async def test_a_client_that_goes_away_in_its_body_is_counted_and_forgotten() -> None:
    async with serving() as scene:
        _, writer = await scene.raw()
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()
        async with asyncio.timeout(60):
            while await counted(scene, "filter") != {"disconnected": 1}:
                await asyncio.sleep(0.02)


async def asked(scene: Scene, *parts: bytes) -> bytes:
    """The answer on a new connection; each part is sent after the answer to the one before."""
    reader, writer = await scene.raw()
    answer = b""
    async with asyncio.timeout(60):
        for part in parts:
            writer.write(part)
            answer += await reader.read(65536)
    writer.close()
    return answer


async def test_who_waits_for_our_word_before_a_body_gets_it() -> None:
    async with serving() as scene:
        head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        answer = await asked(scene, head, b"{}")
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
        assert (await asked(scene, head + b"{}")).startswith(b"HTTP/1.1 200 "), "nothing to wait for"


async def test_a_body_that_will_be_too_large_is_refused_before_it_is_sent() -> None:
    async with serving() as scene:
        head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n"
        answer = await asked(scene, head % (9 << 20))
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.endswith(b"the body is larger than 8 MiB; send names instead of whole nodes\n")


async def test_a_body_that_is_packed_or_in_chunks_is_refused() -> None:
    """A chunk of one byte costs a hundred times what it carries; who sends us bodies knows their length."""
    async with serving() as scene:
        packed = gzip.compress(b" " * (9 << 20))
        head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        assert (await asked(scene, head % len(packed) + packed)).startswith(b"HTTP/1.1 415 ")
        chunks = b"POST /webhook HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1000
        assert (await asked(scene, chunks)).startswith(b"HTTP/1.1 411 ")
        assert await counted(scene, "webhook") == {"no_length": 1}


def uploads(path: str, declared: int, sent: int) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), declared) + b" " * sent


async def test_a_length_that_is_only_announced_takes_no_room_of_the_others() -> None:
    """Security 5: four connections that announced 32 MiB each made the webhook answer 503."""
    async with serving(limits=Limits(room=1 << 20, free=0), end_within=0.2) as scene:
        writers = [(await scene.raw())[1] for _ in range(8)]
        for writer in writers:
            writer.write(uploads("/webhook", 8 << 20, 1000))
        await until(lambda: scene.held["body", "/webhook"] == 8000)
        assert await scene.post("/webhook", b" " * 200_000) == (200, " " * 200_000)
        assert scene.held["body", "/webhook", "127.0.0.1"] == 8000
        for writer in writers:
            writer.close()
    await until(lambda: not scene.held)


async def test_uploads_to_one_verb_or_from_one_peer_close_no_other() -> None:
    async with serving(limits=Limits(room=1 << 20, free=0), end_within=0.2) as scene:
        _, first = await scene.raw("127.0.0.2")
        first.write(uploads("/webhook", 8 << 20, 200_000))
        await until(lambda: scene.held["body", "/webhook"] == 200_000)
        reader, writer = await scene.raw("127.0.0.2")
        writer.write(uploads("/webhook", 100_001, 100_000))
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        assert await scene.post("/webhook", b" " * 100_000) == (200, " " * 100_000), "of another peer"
        assert (await asked(scene, uploads("/filter", 600_000, 600_000))).startswith(b"HTTP/1.1 "), "of another verb"
        assert scene.held == {("body", "/webhook"): 200_000, ("body", "/webhook", "127.0.0.2"): 200_000}
        first.close()
        writer.close()
    await until(lambda: not scene.held)


async def test_a_body_of_the_usual_size_passes_while_the_room_is_full() -> None:
    async with serving(limits=Limits(room=0)) as scene:
        assert (await asked(scene, uploads("/webhook", 70_001, 70_000))).startswith(b"HTTP/1.1 503 ")
        reader, writer = await scene.raw()
        writer.write(uploads("/webhook", 60_001, 60_000))
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(b" ")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


LARGE = b" " * (7 << 20)


async def test_an_answer_that_nobody_reads_is_given_up() -> None:
    """Patches of large pods that 200 connections did not read were all the memory that the chart gives."""
    async with serving(limits=Limits(read=0.2)) as scene:
        reader, writer = await scene.unread(LARGE)
        await until(lambda: scene.service.reviewed and not scene.connections.open, within=600.0)
        assert not scene.held
        writer.transport.resume_reading()  # type: ignore[attr-defined]  # typeshed: any transport
        with suppress(OSError):
            assert len(await reader.read()) < len(LARGE), "the connection was closed before the end"


async def test_answers_that_are_not_read_yet_close_their_own_peer_alone() -> None:
    async with serving(limits=Limits(read=600.0)) as scene:
        writers = [(await scene.unread(LARGE, "127.0.0.2"))[1]]
        held = len(LARGE) - (64 << 10)
        taken = {("answer", ""): held, ("answer", "", "127.0.0.2"): held}
        await until(lambda: scene.service.reviewed and scene.held == taken, within=600.0)
        reader, writer = await scene.raw("127.0.0.2")
        writer.write(sent(LARGE))
        async with asyncio.timeout(60):
            assert (await reader.read()).endswith(b"too many large requests at the same time; try again\n")
        assert await scene.post("/webhook", b" " * (1 << 20)) == (200, " " * (1 << 20))
        assert scene.held["answer", "", "127.0.0.2"] == held
        for each in (*writers, writer):
            each.transport.abort()
        await until(lambda: not scene.held)


async def test_a_peer_with_many_requests_delays_those_of_another_by_one_of_its_own() -> None:
    """The API server waits 5 s for a review, and one pod could send dozens that are as slow as possible."""
    async with serving() as scene:
        peers = [*["127.0.0.2"] * 20, "127.0.0.1", *["127.0.0.2"] * 20]
        writers = [(await scene.raw(peer))[1] for peer in peers]
        await until(lambda: all(each.handshake.done() for each in scene.connections.open.values()))
        for peer, writer in zip(peers, writers, strict=True):
            writer.write(uploads("/webhook", 1, 0) + (b"o" if peer == "127.0.0.1" else b"b"))
        await until(lambda: len(scene.service.reviewed) == 41)
        assert scene.service.reviewed.index(b"o") <= 2
        for writer in writers:
            writer.close()


def sent(body: bytes) -> bytes:
    return b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def waiting(scene: Scene, bodies: Sequence[bytes]) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """By one peer, in this order; each waits for its turn, and the first is answered for as long as the block lasts."""
    scene.service.reviewing.clear()
    writers = [(await scene.raw())[1] for _ in bodies]
    for number, (body, writer) in enumerate(zip(bodies, writers, strict=True)):
        writer.write(sent(body))
        await until(lambda number=number: scene.service.arrived == number + 1)  # type: ignore[misc]
    await until(lambda: scene.service.reviewed)
    yield writers
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("size", [1, 40 << 10])
async def test_the_api_server_is_one_peer_and_its_namespaces_have_their_turn(size: int) -> None:
    """One tenant's pods may take half a second each, and the API server waits 5 s for a review."""
    async with serving() as scene, waiting(scene, [b"a" * size] * 12 + [b"b" * size, b"c" * size]):
        scene.service.reviewing.set()
        await until(lambda: len(scene.service.reviewed) == 14)
        assert b"".join(each[:1] for each in scene.service.reviewed) == b"abc" + 11 * b"a"


def in_line(scene: Scene) -> int:
    """Of one peer, behind the one that is answered."""
    lanes = scene.server._routes._lanes.values()
    return sum(len(line) for lane in lanes for keys in lane._seconds.values() for line in keys._waiting.values())


async def test_explanations_have_the_turn_of_the_pods_namespace() -> None:
    async with serving() as scene:
        scene.service.reviewing.clear()
        tasks = []
        for number, namespace in enumerate("aaaabaa"):
            tasks.append(asyncio.create_task(scene.get(f"/explain?pod={namespace}/p")))
            await until(lambda number=number: len(scene.service.explained) + in_line(scene) == number + 1)  # type: ignore[misc]
        scene.service.reviewing.set()
        await asyncio.gather(*tasks)
        assert "".join(scene.service.explained) == "abaaaaa"


async def test_a_review_that_was_given_up_while_it_waited_takes_no_turn() -> None:
    async with serving() as scene, waiting(scene, [b"a", b"b", b"c"]) as writers:
        writers[1].transport.abort()
        await asyncio.sleep(0.1)
        scene.service.reviewing.set()
        await until(lambda: b"c" in scene.service.reviewed)
        assert scene.service.reviewed == [b"a", b"c"]
        assert await counted(scene, "webhook") == {"changed": 2, "disconnected": 1}


async def test_one_namespace_has_its_part_of_what_waits_and_others_and_short_bodies_pass() -> None:
    six = 6 << 20
    async with asyncio.timeout(60), serving() as scene, waiting(scene, [b"a" * six, b"a" * six]) as first:
        await until(lambda: scene.server._routes.held["webhook",] == 2 * (six - (64 << 10)))
        status, said = await scene.post("/webhook", b"a" * six)
        assert (status, said) == (503, "too many large requests at the same time; try again\n")
        others = [*[b"a" * (64 << 10)] * 20, b"b" * six]
        asked = [asyncio.create_task(scene.post("/webhook", each)) for each in others]
        await until(lambda: max(scene.server._routes.held.values(), default=0) > 17 << 20)
        for each in first:
            each.transport.abort()  # their answers would take the room of the others' answers
        scene.service.reviewing.set()
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}
        await until(lambda: not scene.held)
