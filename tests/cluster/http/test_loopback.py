"""The listener without TLS for a scheduler in the same pod: what clients that are broken, slow or gone meet there."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.serve.connections import ConnectionLimits
from deviceplugin.serve.server import Limits
from sandbox.cluster.processes import free_ports
from tests.cluster.http.scene import Scene, serving
from tests.cluster.http.test_routes import counted

ASKED = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
SLOW = b'POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n"slow"'
BOUND = b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
USUAL = Limits()
QUICK = Limits(ConnectionLimits(most=4, arrive=0.2, silent=0.2, idle=0.4, sweep=0.05))
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Port:
    """Opens connections to the listener, and closes them when the test ends."""

    number: int
    opened: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connected(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        self.opened.append(writer)
        return reader, writer


@asynccontextmanager
async def beside(limits: Limits = USUAL, *, end_within: float = 5.0) -> AsyncIterator[tuple[Scene, Port]]:
    port = Port(free_ports(1)[0])
    async with asyncio.timeout(60):
        async with serving(loopback_port=port.number, limits=limits, end_within=end_within) as scene:
            try:
                yield scene, port
            finally:
                for writer in port.opened:
                    writer.close()


async def answered(client: Client) -> tuple[int, bytes, bytes]:
    """Status, head and body."""
    head = await client[0].readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return int(head.split()[1]), head, await client[0].readexactly(length)


async def told(port: Port, sent: bytes) -> tuple[int, str]:
    """What is answered to these bytes, after which the connection ends."""
    client = await port.connected()
    client[1].write(sent)
    status, head, body = await answered(client)
    assert b"\r\nConnection: close\r\n" in head
    assert await client[0].read() == b""
    return status, body.decode()


async def test_a_connection_serves_one_request_after_the_other_and_every_way_to_send_it() -> None:
    async with beside() as (scene, port):
        client = await port.connected()
        for sent in (ASKED, ASKED.replace(b"/filter", b"/filter?timeout=5s")):
            client[1].write(sent)
            status, head, body = await answered(client)
            assert (status, body) == (200, b'{"NodeNames":["n1"]}')
            assert b"\r\nContent-Type: application/json\r\n" in head
            assert b"\r\nDate: " in head
            assert b"Connection:" not in head
        for byte in ASKED:
            client[1].write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await answered(client))[0] == 200
        client[1].write(b"POST /filter HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        assert b"\r\nConnection: close\r\n" in (await answered(client))[1]
        assert await client[0].read() == b""
        assert await counted(scene, "filter") == {"chosen": 4}


async def test_requests_sent_in_one_go_are_answered_in_their_order() -> None:
    async with beside() as (scene, port):
        client = await port.connected()
        client[1].write(BOUND + ASKED * 3)
        await scene.service.under_way.wait()
        client[1].write(ASKED * 50)
        await client[1].drain()
        scene.service.held.set()
        assert (await answered(client))[2] == b'{"Error":""}'
        for _ in range(53):
            assert (await answered(client))[2] == b'{"NodeNames":["n1"]}'


async def test_what_is_no_request_gets_a_sentence_and_ends_the_connection() -> None:
    cases = [
        (b"GET / HTTP/1.1\r\n\r\n", 404, "no such path; the paths are /bind, /filter"),
        (b"POST /webhook HTTP/1.1\r\n\r\n", 404, "no such path; the paths are /bind, /filter"),
        (b"GET /filter HTTP/1.1\r\n\r\n", 405, "GET is not allowed on this path; use POST"),
        (b"\x16\x03\x01\x02\x00\x01", 400, "the request is not HTTP/1.1"),
        (b"POST /filter HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400, "the request is not HTTP/1.1"),
        (b"POST /filter HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, 431, "the headers are too large"),
        (b"POST /" + b"a" * 100_000, 431, "the headers are too large"),
    ]
    async with beside() as (_, port):
        found = [await told(port, sent) for sent, *_ in cases]
    assert found == [(status, f"{sentence}\n") for _, status, sentence in cases]


async def test_a_client_that_is_gone_when_it_is_refused_leaves_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The kernel answers the refusal with a reset at once, after which the end of the stream cannot be written."""
    async with beside() as (_, port):
        for _ in range(5):
            client = socket.create_connection(("127.0.0.1", port.number))
            await asyncio.sleep(0.05)  # it is accepted, and its reading begins
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            client.close()
        assert (await told(port, ASKED[:-2].replace(b"POST", b"GET")))[0] == 405
    gc.collect()  # errors of tasks that nobody waits for are logged when these are freed
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_errors_of_a_verb_have_their_status_and_the_connection_goes_on() -> None:
    async with beside() as (scene, port):
        client = await port.connected()
        for body, status, words in (
            (b"x", 400, b"the filter request cannot be read\n"),
            (b'"bug"', 500, b"vcuda internal error; see the scheduler's log\n"),
            (b'"kube"', 500, b"the API server is away\n"),
        ):
            client[1].write(b"POST /filter HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            assert (await answered(client))[::2] == (status, words)
        assert await counted(scene, "filter") == {"malformed": 1, "failed": 2}
        scene.service.missing = ("it has not read the cluster's pods",)
        assert await told(port, ASKED) == (
            503,
            "the scheduler is not ready yet: it has not read the cluster's pods\n",
        )


async def test_a_body_has_a_largest_size_for_itself_and_with_others() -> None:
    async with beside() as (scene, port):
        head = b"POST /filter HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
        large = 8 << 20
        status, words = await told(port, head % (3 * large) + b"x" * (3 * large))
        assert (status, words) == (413, "the body is larger than 8 MiB; send names instead of whole nodes\n")
        slow = [await port.connected() for _ in range(4)]
        for _, writer in slow:
            writer.write(head % large + b"x" * (large - 1))
            await writer.drain()
        while scene.server.held_bytes != 4 * (large - 1 - (64 << 10)):
            await asyncio.sleep(0.01)
        assert await told(port, head % large + b"x" * (large // 2)) == (
            503,
            "too many large requests at the same time; try again\n",
        )
        for _, writer in slow:
            writer.transport.abort()
        while scene.server.held_bytes:
            await asyncio.sleep(0.01)
        assert (await told(port, ASKED.replace(b"Host: x", b"Connection: close")))[0] == 200
        assert await counted(scene, "filter") == {"too_large": 1, "busy": 1, "disconnected": 4, "chosen": 1}


async def test_a_client_that_waits_for_leave_to_send_gets_it() -> None:
    async with beside() as (_, port):
        client = await port.connected()
        client[1].write(ASKED[:-2].replace(b"Host: x", b"Expect: 100-continue"))
        assert await client[0].readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client[1].write(b"{}")
        assert (await answered(client))[0] == 200


async def test_slow_silent_and_idle_connections_end() -> None:
    async with beside(QUICK) as (scene, port):
        late = (408, "the request did not arrive within 0.2s; send it at once\n")
        assert await told(port, ASKED[:-1]) == late
        assert await told(port, ASKED[:20]) == late
        silent, idle = await port.connected(), await port.connected()
        idle[1].write(ASKED)
        assert (await answered(idle))[0] == 200
        assert (await silent[0].read(), await idle[0].read()) == (b"", b"")
        assert await counted(scene, "filter") == {"slow": 1, "chosen": 1}
        assert 'connections_closed_total{reason="silent"} 3.0' in (await scene.get("/metrics"))[1]


async def test_with_too_many_connections_the_idle_one_that_was_used_longest_ago_ends() -> None:
    async with beside(Limits(ConnectionLimits(most=4))) as (scene, port):
        busy, first, second, third = [await port.connected() for _ in range(4)]
        busy[1].write(BOUND)
        await scene.service.under_way.wait()
        for client in (second, third, first):
            client[1].write(ASKED)
            assert (await answered(client))[0] == 200
        last = await port.connected()
        assert await second[0].read() == b""
        for client in (third, first, last):
            client[1].write(ASKED)
            assert (await answered(client))[0] == 200
        scene.service.held.set()
        assert (await answered(busy))[0] == 200
        assert 'connections_closed_total{reason="displaced"} 1.0' in (await scene.get("/metrics"))[1]


async def test_what_was_begun_for_a_client_that_leaves_runs_to_its_end() -> None:
    async with beside() as (scene, port):
        client = await port.connected()
        client[1].write(BOUND)
        await scene.service.under_way.wait()
        client[1].transport.abort()
        await asyncio.sleep(0.05)
        scene.service.held.set()
        while not scene.service.bound:
            await asyncio.sleep(0.01)
        assert await counted(scene, "bind") == {"bound": 1}


async def test_long_work_for_a_client_that_leaves_ends_and_those_behind_it_are_not_begun() -> None:
    async with beside() as (scene, port):
        client = await port.connected()
        client[1].write(SLOW + SLOW + ASKED)
        await scene.service.under_way.wait()
        client[1].transport.abort()
        while not scene.service.stopped:
            await asyncio.sleep(0.01)
        assert await counted(scene, "filter") == {"disconnected": 1}
        assert scene.server.held_bytes == 0


async def test_what_is_dropped_behind_the_last_answer_of_a_connection_takes_no_room() -> None:
    async with beside() as (scene, port):
        scene.service.missing = ("nodes",)
        status, _ = await told(port, ASKED + ASKED)
        assert (status, scene.server.held_bytes) == (503, 0)


async def test_a_stop_waits_for_answers_and_not_for_idle_connections() -> None:
    async with beside() as (scene, port):
        idle, busy = await port.connected(), await port.connected()
        busy[1].write(BOUND)
        await scene.service.under_way.wait()
        stopping = asyncio.create_task(scene.server.stop())
        assert await idle[0].read() == b""
        with pytest.raises(ConnectionRefusedError):
            await port.connected()
        assert not stopping.done()
        scene.service.held.set()
        status, head, _ = await answered(busy)
        assert (status, b"Connection: close" in head) == (200, True)
        await stopping


async def test_before_a_stop_each_connection_ends_with_its_next_answer() -> None:
    """So that a client with open connections finds the other replica while this one still answers."""
    async with beside() as (scene, port):
        client = await port.connected()
        client[1].write(ASKED)
        assert b"Connection: close" not in (await answered(client))[1]
        stopping = asyncio.create_task(scene.server.stop(drain=0.5))
        await asyncio.sleep(0)
        client[1].write(ASKED)
        assert b"Connection: close" in (await answered(client))[1]
        assert (await told(port, ASKED))[0] == 200, "new connections are answered too"
        assert not stopping.done()
        await stopping


async def test_a_stop_ends_what_takes_too_long() -> None:
    async with beside(end_within=0.2) as (scene, port):
        busy = await port.connected()
        busy[1].write(BOUND)
        await scene.service.under_way.wait()
        await scene.server.stop()
        assert await busy[0].read() == b""


@given(st.lists(st.binary(max_size=60) | st.sampled_from([ASKED, CHUNKED, ASKED[:30], b"\r\n"]), max_size=6))
async def test_no_bytes_stop_it(parts: list[bytes]) -> None:
    async with beside() as (scene, port):
        client = await port.connected()
        with contextlib.suppress(OSError):  # it may have been refused meanwhile
            for part in parts:
                client[1].write(part)
                await asyncio.sleep(0)
            client[1].write_eof()
            await client[0].read()
        assert (await told(port, ASKED.replace(b"Host: x", b"Connection: close")))[0] == 200
        assert scene.server.held_bytes == 0
