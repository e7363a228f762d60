"""The bounds on connections that a test of a server's pages does not show: descriptors, and accept() that fails."""

import asyncio
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import structlog

from deviceplugin.serve.connections import ConnectionLimits, raise_descriptor_limit
from deviceplugin.serve.messages import HttpRequest, HttpResponse, Route, sentence
from deviceplugin.serve.server import Limits, Server, bind_tcp
from tests.observe.views import Clock
from tests.waiting import PATIENCE_S

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def soft_limit(descriptors: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def serving(
    limits: ConnectionLimits, asked: Callable[[], None] = lambda: None, *, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[int]:
    """The port of a server that says ok."""
    server = made(limits, asked, clock)
    yield await listening(server)
    await server.stop(within=0)


def made(
    limits: ConnectionLimits, asked: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
) -> Server:
    async def answer(request: HttpRequest) -> HttpResponse:
        asked()
        return sentence(200, "ok")

    return Server({"/": Route(answer)}, limits=Limits(limits), clock=clock)


async def listening(server: Server) -> int:
    (one,) = bind_tcp("127.0.0.1", 0, address_flag="--address", port_flag="--port")
    server.listen(one)
    return int(one.getsockname()[1])


def connected(port: int) -> socket.socket:
    """By the kernel; nobody has accepted it yet."""
    found = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    found.setblocking(False)
    return found


async def test_accept_without_descriptors_is_tried_again_and_told_once() -> None:
    loop = asyncio.get_running_loop()
    async with serving(ConnectionLimits(most=64, parts=4)) as port:
        clients = [connected(port) for _ in range(5)]
        next_descriptor = os.dup(0)
        os.close(next_descriptor)
        with structlog.testing.capture_logs() as told, soft_limit(next_descriptor):
            async with asyncio.timeout(PATIENCE_S):
                while not told:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(2.5)  # two more tries
        assert [each["event"] for each in told] == ["accept_failed"]
        assert "Too many open files" in told[0]["error"]
        async with asyncio.timeout(PATIENCE_S):
            for client in clients:
                await loop.sock_sendall(client, ASK)
                assert (await loop.sock_recv(client, 100)).startswith(b"HTTP/1.1 200 OK")
        for client in clients:
            client.close()


async def test_three_quarters_of_the_descriptors_are_for_others() -> None:
    loop = asyncio.get_running_loop()
    with soft_limit(80):  # so 20 connections, and 5 of one address
        server = made(ConnectionLimits(most=64, parts=4))
    port = await listening(server)
    try:
        clients = [connected(port) for _ in range(9)]
        async with asyncio.timeout(PATIENCE_S):
            for client in clients[:4]:
                with suppress(ConnectionError):
                    assert await loop.sock_recv(client, 1) == b""
            for client in clients[4:]:
                await loop.sock_sendall(client, ASK)
                assert (await loop.sock_recv(client, 100)).startswith(b"HTTP/1.1 200 OK")
        for client in clients:
            client.close()
    finally:
        await server.stop(within=0)


async def test_who_asked_least_recently_gives_way_and_who_waits_for_an_answer_does_not() -> None:
    loop, clock = asyncio.get_running_loop(), Clock()

    async def is_answered(client: socket.socket) -> bool:
        with suppress(ConnectionError):
            await loop.sock_sendall(client, ASK)
            return (await loop.sock_recv(client, 1000)).startswith(b"HTTP/1.1 200 OK")
        return False

    async with serving(ConnectionLimits(most=8, parts=4), clock=clock) as port:  # 2 of one address
        clients = [connected(port), connected(port)]
        async with asyncio.timeout(PATIENCE_S):
            assert await is_answered(clients[1])
            clock.now += 1
            assert await is_answered(clients[0])
            clients.append(connected(port))
            assert not await is_answered(clients[2])
            clock.now += 4
            clients.append(connected(port))
            assert await is_answered(clients[3])
            assert [await is_answered(client) for client in clients] == [True, False, False, True]
        for client in clients:
            client.close()


def test_the_soft_limit_becomes_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with soft_limit(min(hard, 512)):
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


async def test_a_peer_that_pipelines_leaves_each_turn_between_two_requests_to_others() -> None:
    turns: list[int] = []
    turn = 0
    async with serving(ConnectionLimits(), lambda: turns.append(turn)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK * 50)
        async with asyncio.timeout(PATIENCE_S):
            while len(turns) < 50:
                turn += 1
                await asyncio.sleep(0)
            for _ in range(50):
                await reader.readuntil(b"ok")
        writer.close()
    assert len(set(turns)) == 50


async def test_the_port_of_a_server_that_was_stopped_is_free_at_once() -> None:
    """An agent that waited for its predecessor opens its views on the port of its probes."""
    first = Server({})
    port = await listening(first)
    await first.stop(within=0)
    (one,) = bind_tcp("127.0.0.1", port, address_flag="--address", port_flag="--port")
    one.close()
