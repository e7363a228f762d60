"""Clients that are slow, silent, half open or disconnected; orderly shutdown; a new certificate under load."""

import asyncio
import datetime as dt
import gc
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import ge
from pathlib import Path

import aiohttp
import pytest

from deviceplugin.cluster.certificates.issued import Rules
from deviceplugin.cluster.certificates.keypair import make_ca, make_certificate
from deviceplugin.cluster.certificates.rotation import Rotation
from deviceplugin.cluster.certificates.tls import ServerTls
from deviceplugin.cluster.http.body import Bodies
from deviceplugin.cluster.http.server import SchedulerServer
from deviceplugin.cluster.http.verbs import HttpError
from deviceplugin.connections import Connections
from deviceplugin.errors import ConfigError
from sandbox.cluster.processes import free_ports
from tests.cluster.certificates.api import ApiInMemory
from tests.cluster.http.scene import DAY, NAMES, Scene, StandIn, serving, trusting
from tests.cluster.http.test_routes import counted


async def until(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
REVIEW = b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


async def test_an_idle_connection_is_closed_early_unless_it_was_used_as_the_api_server_does() -> None:
    """Security 14: a connection that had asked anything once stayed open for two minutes."""
    async with serving(connections=Connections(idle=0.6)) as scene:
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
            assert await half.read() == b""
            assert (await looked.read()).endswith(b"ok\n")
        asking.write(REVIEW)
        assert await used.readuntil(b"{}")


async def test_a_request_that_takes_longer_than_the_idle_time_is_answered() -> None:
    async with serving(connections=Connections(idle=0.1)) as scene:
        under_way = asyncio.create_task(scene.post("/bind", b"{}"))
        await scene.service.under_way.wait()
        await asyncio.sleep(0.5)
        scene.service.held.set()
        assert await under_way == (200, '{"Error":""}')


async def test_a_peer_with_many_connections_displaces_its_own_and_not_those_of_others() -> None:
    connections = Connections(most=6)
    async with serving(connections=connections) as scene:
        used, asking = await scene.raw("127.0.0.3")
        asking.write(REVIEW)
        await used.readuntil(b"{}")
        flood = []
        for _ in range(12):
            reader, writer = await scene.raw("127.0.0.2")
            writer.write(HEALTH)
            await reader.readuntil(b"ok\n")
            flood.append((reader, writer))
            assert len(connections.open) <= 6
        async with asyncio.timeout(60):
            for reader, _ in flood[:7]:
                assert await reader.read() == b""
        asking.write(REVIEW)
        assert await used.readuntil(b"{}")
        assert (await scene.post("/webhook", b"{}"))[0] == 200


async def test_connections_without_a_handshake_count() -> None:
    connections = Connections(most=4)
    async with serving(connections=connections) as scene:
        flood = [socket.create_connection(("127.0.0.1", scene.server.port)) for _ in range(12)]
        assert (await scene.post("/webhook", b"{}"))[0] == 200
        assert len(connections.open) <= 4
        assert [each.recv(1) for each in flood[:7]] == [b""] * 7
        for each in flood:
            each.close()


async def test_connections_of_the_listener_on_loopback_are_not_bounded() -> None:
    (port,) = free_ports(1)
    connections = Connections(most=2)
    async with serving(connections=connections, loopback_port=port) as scene:
        several = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for _ in range(3):
            assert (await scene.post("/webhook", b"{}"))[0] == 200
            for reader, writer in several:
                writer.write(HEALTH)
                assert await reader.readuntil(b"ok\n")
        for _, writer in several:
            writer.close()


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


async def test_a_body_that_does_not_come_is_answered_with_408() -> None:
    async with serving(bodies=Bodies(within=0.2)) as scene:
        reader, writer = await scene.raw()
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        async with asyncio.timeout(60):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b"the body did not arrive within 0.2s; send it at once\n")
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


async def test_a_body_that_came_with_its_headers_takes_no_room_of_the_others() -> None:
    bodies = Bodies(room=0, free=0)
    async with serving(bodies=bodies) as scene:
        whole = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
        assert (await asked(scene, whole)).startswith(b"HTTP/1.1 200 ")
        assert (await asked(scene, whole[:-1])).startswith(b"HTTP/1.1 503 ")


async def test_a_body_is_limited_by_what_it_is_unpacked() -> None:
    async with serving() as scene:
        packed = gzip.compress(b" " * (9 << 20))
        head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        assert (await asked(scene, head % len(packed) + packed)).startswith(b"HTTP/1.1 413 ")


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


async def test_a_bind_whose_client_went_away_is_brought_to_its_end() -> None:
    async with serving() as scene:
        _, writer = await scene.raw()
        writer.write(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await scene.service.under_way.wait()
        writer.transport.abort()
        await asyncio.sleep(0.1)
        scene.service.held.set()
        await until(lambda: scene.service.bound == 1)


def uploads(path: str, declared: int, sent: int) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), declared) + b" " * sent


async def test_a_length_that_is_only_announced_takes_no_room_of_the_others() -> None:
    """Security 5: four connections that announced 32 MiB each made the webhook answer 503."""
    bodies = Bodies(room=1 << 20, free=0)
    async with serving(bodies=bodies) as scene:
        writers = [(await scene.raw())[1] for _ in range(8)]
        for writer in writers:
            writer.write(uploads("/webhook", 8 << 20, 1000))
        await until(lambda: bodies.held["webhook",] == 8000)
        assert await scene.post("/webhook", b" " * 200_000) == (200, " " * 200_000)
        assert bodies.held["webhook", "127.0.0.1"] == 8000
    await until(lambda: not bodies.held)


async def test_uploads_to_one_verb_or_from_one_peer_close_no_other() -> None:
    bodies = Bodies(room=1 << 20, free=0)
    async with serving(bodies=bodies) as scene:
        _, writer = await scene.raw()
        writer.write(uploads("/filter", 8 << 20, 200_000))
        await until(lambda: bodies.held["filter",] == 200_000)
        assert (await asked(scene, uploads("/filter", 100_001, 100_000))).startswith(b"HTTP/1.1 503 ")
        assert await scene.post("/webhook", b" " * 100_000) == (200, " " * 100_000)
        with bodies._room("filter", "10.0.0.9") as room:
            room.grow(1 << 18)
            with pytest.raises(HttpError, match="too many large requests at the same time; try again"):
                room.grow(1 << 19)
            assert bodies.held["filter",] == 200_000 + (1 << 18)
    await until(lambda: not bodies.held)


async def test_a_body_of_the_usual_size_passes_while_the_room_is_full() -> None:
    async with serving(bodies=Bodies(room=0)) as scene:
        assert (await asked(scene, uploads("/webhook", 70_001, 70_000))).startswith(b"HTTP/1.1 503 ")
        reader, writer = await scene.raw()
        writer.write(uploads("/webhook", 60_001, 60_000))
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(b" ")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_stopping_is_not_ready_then_drained_then_closed_and_requests_under_way_end() -> None:
    async with serving() as scene:
        under_way = asyncio.create_task(scene.post("/bind", b"{}"))
        await scene.service.under_way.wait()
        stopping = asyncio.create_task(scene.server.stop(drain=0.5))
        await asyncio.sleep(0.1)
        assert await scene.get("/readyz") == (503, "stopping\n")
        assert (await scene.post("/filter", b"{}"))[0] == 200
        await asyncio.sleep(0.6)
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


async def served_certificate(scene: Scene, name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", scene.server.port, ssl=context, server_hostname=name or "")
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(shown, bytes)
    return shown


@pytest.mark.parametrize("name", ["vcuda-scheduler.gpu.svc", None])
async def test_another_certificate_is_shown_with_and_without_a_name_and_open_connections_stay(name: str | None) -> None:
    async with serving() as scene:
        reader, writer = await scene.raw()
        before = await served_certificate(scene, name)
        now = dt.datetime.now(dt.UTC)
        scene.tls.show(make_certificate(NAMES, scene.ca, now, DAY))
        assert await served_certificate(scene, name) != before
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.readuntil(b"ok\n")


async def test_a_certificate_that_cannot_be_used_leaves_the_old_one_shown() -> None:
    async with serving() as scene:
        before = await served_certificate(scene, None)
        other = make_ca(dt.datetime.now(dt.UTC), DAY)
        broken = type(other)(scene.tls.shown.chain, other.key)
        with pytest.raises(ConfigError, match="the certificate cannot be served"):
            scene.tls.show(broken)
        assert await served_certificate(scene, None) == before
        assert (await scene.post("/filter", b"{}"))[0] == 200


CLIENTS = 6


class Rotating:
    """A service whose certificates are renewed by its own clock, with real clients meanwhile."""

    def __init__(self) -> None:
        self.api = ApiInMemory()
        # Ends at the present: every certificate that is made on the way is valid by the clients' clock.
        self.now = dt.datetime.now(dt.UTC) - 88 * DAY
        self.tls = ServerTls(make_ca(dt.datetime.now(dt.UTC), DAY))
        self.rotation = Rotation(
            self.api,
            namespace="gpu",
            secret="s",
            configuration="w",
            rules=Rules(NAMES, 90 * DAY, 100 * DAY),
            show=self.tls.show,
            now=lambda: self.now,
        )
        self.trusted = b""
        self.failures: list[str] = []
        self.requests = [0] * CLIENTS

    async def check(self) -> None:
        """Afterwards every third client trusts only the caBundle from before."""
        self.trusted = self.bundle
        await self.rotation.check(leads=True)

    @property
    def bundle(self) -> bytes:
        assert self.api.bundles is not None
        return self.api.bundles[0]

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[None]:
        server = SchedulerServer(StandIn(), context=self.tls.context, version="1")
        await server.start("127.0.0.1", 0)
        tasks = [asyncio.create_task(self._ask(server.port, number)) for number in range(CLIENTS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop()

    async def _ask(self, port: int, number: int) -> None:
        """Each request over its own connection."""
        name = NAMES[0] if number % 2 else None
        while True:
            context = trusting(self.bundle if number % 3 else self.trusted)
            try:
                await self._once(port, context, name)
                self.requests[number] += 1
            except (OSError, aiohttp.ClientError) as error:
                self.failures.append(f"{number}: {error!r}")
            await asyncio.sleep(0.005)

    async def _once(self, port: int, context: ssl.SSLContext, name: str | None) -> None:
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"https://127.0.0.1:{port}/webhook", data=b"{}", server_hostname=name) as answer,
        ):
            assert answer.status == 200

    async def serve_some(self) -> None:
        """Until each client has used what was trusted after the last check."""
        goals = [count + 2 for count in self.requests]
        await until(lambda: all(map(ge, self.requests, goals)) or bool(self.failures), seconds=120)


async def test_certificate_and_ca_rotate_under_load_without_a_failed_request() -> None:
    scene = Rotating()
    await scene.check()
    await scene.check()
    shown = [scene.tls.shown]
    async with scene.under_load():
        for days in (1, 61, 6, 1, 18.6, 0.1):
            scene.now += days * DAY
            await scene.check()
            if scene.tls.shown != shown[-1]:
                shown.append(scene.tls.shown)
            await scene.serve_some()
    assert scene.failures == []
    issuers = [pair.certificate.issuer for pair in shown]
    assert len(issuers) == 3, "one renewed by the same CA, one by the new one"
    assert issuers[0] == issuers[1] != issuers[2]
