"""What a connection held is free when it has ended, however it ended: nothing waits for the collector of cycles.

The scheduler collects what has lived a while once an hour. 4,000 connections of 256 KiB, or 250 bodies of 4 MiB, that
waited for it were all the memory that the chart gives.
"""

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest

from deviceplugin.serve.connection import HttpConnection
from deviceplugin.serve.connections import ConnectionLimits, Connections
from deviceplugin.serve.server import Limits
from tests.cluster.http.scene import Scene, serving
from tests.waiting import PATIENCE_S, until

ROUNDS = 6
LAST = 2  # some frame may still refer to the last ones
MOST = 4
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    """Set aside and so not counted: what other tests left in this process, such as a handler in a traceback."""
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def silent(scene: Scene) -> socket.socket:
    return socket.create_connection(("127.0.0.1", scene.server.port), timeout=PATIENCE_S)


async def gone_in_its_handshake(scene: Scene, connections: Connections) -> None:
    with silent(scene):
        await asyncio.sleep(0.01)


async def no_tls(scene: Scene, connections: Connections) -> None:
    with silent(scene) as client:
        client.sendall(b"x" * 100)
        await until(lambda: not connections.open)


async def displaced(scene: Scene, connections: Connections) -> None:
    clients = [silent(scene) for _ in range(6)]
    await until(lambda: len(connections.open) == MOST)
    for client in clients:
        client.close()
    await until(lambda: all(each.handshake.done() for each in connections.open.values()))


async def said(scene: Scene, request: bytes, *, until_answered: bool = True) -> None:
    reader, writer = await scene.raw()
    writer.write(request)
    if until_answered:
        await reader.readuntil(b"\n")
    else:
        await asyncio.sleep(0.01)
    writer.transport.abort()


async def no_http(scene: Scene, connections: Connections) -> None:
    await said(scene, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")


async def served(scene: Scene, connections: Connections) -> None:
    await said(scene, HEALTH)


async def too_large(scene: Scene, connections: Connections) -> None:
    await said(scene, b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")


async def slow(scene: Scene, connections: Connections) -> None:
    await said(scene, b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx")


async def gone_in_its_body(scene: Scene, connections: Connections) -> None:
    await said(scene, b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx", until_answered=False)


async def gone_before_its_answer(scene: Scene, connections: Connections) -> None:
    await said(scene, b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", until_answered=False)
    scene.service.held.set()


async def answer_not_read(scene: Scene, connections: Connections) -> None:
    _, writer = await scene.unread(b" " * (7 << 20))
    await until(lambda: all(each.socket.fileno() < 0 for each in connections.open.values()))
    writer.transport.abort()


Way = Callable[[Scene, Connections], Awaitable[None]]
WAYS: tuple[Way, ...] = (
    *(gone_in_its_handshake, no_tls, displaced, no_http, served, too_large, slow),
    *(gone_in_its_body, gone_before_its_answer),
    answer_not_read,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__name__))
async def test_nothing_of_a_connection_stays(way: Way) -> None:
    async with serving(limits=Limits(ConnectionLimits(most=MOST, arrive=0.1, sweep=0.05), read=0.1)) as scene:
        connections = scene.connections
        for _ in range(ROUNDS):
            async with asyncio.timeout(PATIENCE_S):
                await way(scene, connections)
        await until(lambda: handlers(connections) <= LAST)


def handlers(connections: Connections) -> int:
    """Those that this test has made."""
    connections._forget_closed()  # as it does itself every five seconds
    return sum(isinstance(each, HttpConnection) for each in gc.get_objects())
