"""Connections that are slow, silent, half open or many; the listeners; orderly shutdown."""

import asyncio
import gc
import socket
from pathlib import Path

import aiohttp
import pytest

from deviceplugin.cluster.http.server import SchedulerServer
from deviceplugin.errors import ConfigError
from deviceplugin.serve.connections import ConnectionLimits
from deviceplugin.serve.server import Limits
from sandbox.cluster.processes import free_ports
from tests.cluster.http.scene import StandIn, serving
from tests.waiting import in_background, until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


REVIEW = b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


async def test_an_idle_connection_is_closed_early_unless_it_was_used_as_the_api_server_does() -> None:
    """Security 14: a connection that had asked anything once stayed open for two minutes."""
    async with serving(limits=Limits(ConnectionLimits(silent=0.6, arrive=0.6, sweep=0.1))) as scene:
        silent, _ = await scene.raw()
        half, writing = await scene.raw()
        writing.write(b"POST /filter HTTP/1.1\r\nHost:")
        looked, looking = await scene.raw()
        looking.write(HEALTH)
        used, asking = await scene.raw()
        asking.write(REVIEW)
        await used.readuntil(b"{}")
        async with asyncio.timeout(60):
            assert await silent.read() == b""
            assert (await half.read()).startswith(b"HTTP/1.1 408 ")
            assert (await looked.read()).endswith(b"ok\n")
        asking.write(REVIEW)
        assert await used.readuntil(b"{}")


async def test_a_request_that_takes_longer_than_the_idle_time_is_answered() -> None:
    async with serving(limits=Limits(ConnectionLimits(silent=0.1, idle=0.1, sweep=0.05))) as scene:
        under_way = asyncio.create_task(scene.post("/bind", b"{}"))
        await scene.service.under_way.wait()
        await asyncio.sleep(0.5)
        scene.service.held.set()
        assert await under_way == (200, '{"Error":""}')


async def test_a_peer_with_many_connections_displaces_its_own_and_not_those_of_others() -> None:
    async with serving(limits=Limits(ConnectionLimits(most=6))) as scene:
        used, asking = await scene.raw("127.0.0.3")
        asking.write(REVIEW)
        await used.readuntil(b"{}")
        flood = []
        for _ in range(12):
            reader, writer = await scene.raw("127.0.0.2")
            writer.write(HEALTH)
            await reader.readuntil(b"ok\n")
            flood.append((reader, writer))
            assert len(scene.connections.open) <= 6
        async with asyncio.timeout(60):
            for reader, _ in flood[:7]:
                assert await reader.read() == b""
        asking.write(REVIEW)
        assert await used.readuntil(b"{}")
        assert (await scene.post("/webhook", b"{}"))[0] == 200


async def test_connections_without_a_handshake_count() -> None:
    async with serving(limits=Limits(ConnectionLimits(most=4))) as scene:
        flood = [socket.create_connection(("127.0.0.1", scene.server.port)) for _ in range(12)]
        assert (await scene.post("/webhook", b"{}"))[0] == 200
        assert len(scene.connections.open) <= 4
        assert 'connections_closed_total{reason="displaced"} 9.0' in (await scene.get("/metrics"))[1]
        assert [each.recv(1) for each in flood[:7]] == [b""] * 7
        for each in flood:
            each.close()


async def test_a_connection_without_handshake_delays_no_other() -> None:
    async with serving() as scene:
        with socket.create_connection(("127.0.0.1", scene.server.port)):
            assert (await scene.post("/filter", b"{}"))[0] == 200


async def test_a_stop_amid_handshakes_leaves_no_socket_open() -> None:
    """A socket that nobody closes is a warning when it is collected, and so an error of this test."""
    for count in range(1, 8):
        clients = []
        async with serving() as scene:
            clients = [socket.create_connection(("127.0.0.1", scene.server.port)) for _ in range(count)]
            for _ in range(count // 2):
                await asyncio.sleep(0)
        for client in clients:
            client.close()
    gc.collect()


async def test_requests_sent_in_one_go_are_answered_in_their_order() -> None:
    async with serving() as scene:
        parts = [b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d" % number for number in range(5)]
        reader, writer = await scene.raw()
        writer.write(b"".join(parts))
        async with asyncio.timeout(60):
            for number in range(5):
                assert await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(1) == b"%d" % number
        writer.close()


async def test_few_requests_are_read_ahead_from_a_peer_that_does_not_read_its_answer() -> None:
    async with serving() as scene:
        reader, writer = await scene.raw()
        writer.write(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" + HEALTH * 500)
        await scene.service.under_way.wait()
        (connection,) = scene.connections.open
        assert len(connection._due) <= 66
        scene.service.held.set()
        async with asyncio.timeout(60):
            said = await reader.read()
        assert (said.count(b"HTTP/1.1 200 "), said.count(b"HTTP/1.1 400 ")) == (64, 1)
        assert said.endswith(b"too many requests that wait for their answers on one connection\n")
        writer.close()


async def test_headers_are_short_and_few() -> None:
    async with serving() as scene:
        for headers in (b"X: %s\r\n" % (b"x" * 40_000), b"X: x\r\n" * 70):
            reader, writer = await scene.raw()
            writer.write(HEALTH[:-2] + headers + b"\r\n")
            async with asyncio.timeout(60):
                assert b" 431 Request Header Fields Too Large\r\n" in await reader.read()
            writer.close()


async def test_a_bind_whose_client_went_away_is_brought_to_its_end() -> None:
    async with serving() as scene:
        _, writer = await scene.raw()
        writer.write(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await scene.service.under_way.wait()
        writer.transport.abort()
        await asyncio.sleep(0.1)
        scene.service.held.set()
        await until(lambda: scene.service.bound == 1)


async def test_while_it_drains_it_is_not_ready_and_answers() -> None:
    async with serving() as scene, in_background(scene.server.stop(drain=600)):
        assert await scene.get("/readyz") == (503, "stopping\n")
        assert (await scene.post("/filter", b"{}"))[0] == 200


async def test_after_it_drained_it_is_closed_and_requests_under_way_end() -> None:
    async with serving(end_within=600) as scene:
        under_way = asyncio.create_task(scene.post("/bind", b"{}"))
        await scene.service.under_way.wait()
        stopping = asyncio.create_task(scene.server.stop(drain=0.1))
        await until(lambda: not listening_on(scene.server.port))
        with pytest.raises(aiohttp.ClientConnectorError):
            await scene.post("/filter", b"{}")
        assert not stopping.done()
        scene.service.held.set()
        assert await under_way == (200, '{"Error":""}')
        await stopping


async def test_what_does_not_end_in_time_is_cut() -> None:
    async with serving(end_within=0.2) as scene:
        under_way = asyncio.create_task(scene.post("/bind", b"{}"))
        await scene.service.under_way.wait()
        async with asyncio.timeout(5):
            await scene.server.stop()
        with pytest.raises(aiohttp.ClientError):
            await under_way


async def test_a_port_that_is_in_use_is_one_sentence() -> None:
    async with serving() as scene:
        other = SchedulerServer(StandIn(), context=scene.tls.context, version="1")
        with pytest.raises(ConfigError, match=r"--listen-port: port \d+ on 127.0.0.1 is in use"):
            await other.start("127.0.0.1", scene.server.port)
        with pytest.raises(ConfigError, match=r"--listen-addr: 192.0.2.1 is not an address of this machine"):
            await other.start("192.0.2.1", 0)


async def test_beside_it_kube_scheduler_is_answered_without_tls_on_loopback_alone() -> None:
    (port,) = free_ports(1)
    async with serving(loopback_port=port) as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert (await scene.post("/filter", b"{}"))[0] == 200, "over TLS as before"
        assert listening_on(port) == {"127.0.0.1"}
        await scene.server.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_loopback_port_that_is_in_use_is_one_sentence_and_nothing_listens() -> None:
    async with serving() as scene:
        other = SchedulerServer(StandIn(), context=scene.tls.context, version="1")
        (port,) = free_ports(1)
        with pytest.raises(ConfigError, match=r"--loopback-port: port \d+ on 127.0.0.1 is in use"):
            await other.start("127.0.0.1", port, loopback_port=scene.server.port)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


def listening_on(port: int) -> set[str]:
    """Addresses, by what the kernel says of IPv4 and IPv6."""
    found = set[str]()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                packed = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
                found.add(socket.inet_ntop(family, packed))
    return found
