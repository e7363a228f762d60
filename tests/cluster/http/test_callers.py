"""Who reaches the port may not place pods with the scheduler's rights: real TLS, real certificates."""

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from deviceplugin.cluster.certificates.keypair import KeyPair, ServerTls, make_ca, make_certificate
from deviceplugin.cluster.http.server import SchedulerServer, Verb
from deviceplugin.errors import ConfigError
from deviceplugin.scheduler.serving_certificate import client_ca
from deviceplugin.serve.connections import ConnectionLimits
from deviceplugin.serve.messages import certificate_names
from deviceplugin.serve.server import Limits
from tests.cluster.http.clients import client_certificate, showing
from tests.cluster.http.scene import DAY, NAMES, StandIn

SCHEDULER = "system:kube-scheduler"


class Guarded(StandIn):
    """Obeys kube-scheduler's certificate alone, from wherever it comes."""

    @property
    def verbs(self) -> tuple[Verb, ...]:
        clients = (SCHEDULER, "scheduler.example.com")
        self.held.set()
        return Verb("webhook", self.webhook), Verb("bind", self.bind, clients=clients)


class Door:
    def __init__(self, folder: Path, limits: Limits | None = None) -> None:
        now = dt.datetime.now(dt.UTC)
        self.folder = folder
        self.ours, self.clients, self.foreign = (make_ca(now, 30 * DAY) for _ in range(3))
        (folder / "clients.crt").write_bytes(self.clients.chain)
        self.service = Guarded()
        self.tls = ServerTls(make_certificate(NAMES, self.ours, now, DAY))
        client_ca(folder / "clients.crt", trust=self.tls.trust).load()
        self.server = SchedulerServer(self.service, context=self.tls.context, version="1", limits=limits)

    async def ask(self, path: str, shown: KeyPair | None) -> tuple[int, str]:
        connector = aiohttp.TCPConnector(ssl=showing(self.ours.chain, shown, self.folder))
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"https://127.0.0.1:{self.server.port}{path}"
            async with session.request("POST" if path in ("/bind", "/webhook") else "GET", url) as answer:
                return answer.status, await answer.text()


@asynccontextmanager
async def door(folder: Path, limits: Limits | None = None) -> AsyncIterator[Door]:
    made = Door(folder, limits)
    await made.server.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.server.stop()


async def test_kube_schedulers_certificate_is_obeyed(tmp_path: Path) -> None:
    async with door(tmp_path) as found:
        assert (await found.ask("/bind", client_certificate(found.clients, SCHEDULER)))[0] == 200
        named = client_certificate(found.clients, "anything", dns="scheduler.example.com")
        assert (await found.ask("/bind", named))[0] == 200
        assert found.service.bound == 2


async def test_a_missing_or_foreign_certificate_is_refused_with_the_name_that_is_needed(tmp_path: Path) -> None:
    async with door(tmp_path) as found:
        for shown in (None, client_certificate(found.clients, "system:node:n1")):
            status, text = await found.ask("/bind", shown)
            assert status == 403
            assert text == (
                "/bind requires a client certificate issued to system:kube-scheduler or scheduler.example.com\n"
            )
        assert found.service.bound == 0
        assert 'requests_total{outcome="unauthorized",verb="bind"} 2.0' in (await found.ask("/metrics", None))[1]


async def test_a_connection_with_a_certificate_is_not_displaced(tmp_path: Path) -> None:
    async with door(tmp_path, Limits(ConnectionLimits(most=1))) as found:
        connections = found.server._everybody.connections
        shown = client_certificate(found.clients, SCHEDULER)
        connector = aiohttp.TCPConnector(ssl=showing(found.ours.chain, shown, tmp_path))
        async with aiohttp.ClientSession(connector=connector) as open_:
            url = f"https://127.0.0.1:{found.server.port}/bind"
            async with open_.post(url) as answer:
                assert answer.status == 200
            first = set(connections.open)
            for _ in range(3):
                assert (await found.ask("/webhook", None))[0] == 200
            async with open_.post(url) as answer:
                assert answer.status == 200
            assert first <= set(connections.open)


async def test_api_server_probes_and_people_need_no_certificate(tmp_path: Path) -> None:
    paths = ("/webhook", "/metrics", "/healthz", "/readyz", "/explain?pod=d/p")
    async with door(tmp_path) as found:
        assert {path: (await found.ask(path, None))[0] for path in paths} == dict.fromkeys(paths, 200)


async def test_a_certificate_that_proves_nothing_ends_in_the_handshake(tmp_path: Path) -> None:
    async with door(tmp_path) as found:
        for how, shown in {
            "foreign": client_certificate(found.foreign, SCHEDULER),
            "expired": client_certificate(found.clients, SCHEDULER, life=-DAY),
            "a server's": client_certificate(found.clients, SCHEDULER, serves=True),
        }.items():
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await found.ask("/bind", shown)
            assert found.service.bound == 0, how
        assert (await found.ask("/bind", client_certificate(found.clients, SCHEDULER)))[0] == 200


async def test_another_ca_counts_for_new_connections_and_open_ones_stay(tmp_path: Path) -> None:
    async with door(tmp_path) as found:
        before, after = (client_certificate(each, SCHEDULER) for each in (found.clients, found.foreign))
        connector = aiohttp.TCPConnector(ssl=showing(found.ours.chain, before, tmp_path))
        async with aiohttp.ClientSession(connector=connector) as open_:
            url = f"https://127.0.0.1:{found.server.port}/bind"
            async with open_.post(url) as answer:
                assert answer.status == 200
            found.tls.trust(found.foreign.chain)
            async with open_.post(url) as answer:
                assert answer.status == 200
        assert (await found.ask("/bind", after))[0] == 200
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await found.ask("/bind", before)
        now = dt.datetime.now(dt.UTC)
        found.tls.show(make_certificate(NAMES, found.ours, now, DAY))
        assert (await found.ask("/bind", after))[0] == 200, "a renewed certificate changes nothing of it"
        assert (await found.ask("/bind", None))[0] == 403


class Resuming:
    """A client that resumes its last TLS session."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._port = port
        self._context = context
        self._session: ssl.SSLSession | None = None

    def ask(self) -> tuple[bytes, bool | None]:
        """The beginning of the answer to a Bind, and whether a session was resumed for it."""
        with (
            socket.create_connection(("127.0.0.1", self._port), timeout=10) as plain,
            self._context.wrap_socket(plain, server_hostname=NAMES[0], session=self._session) as tls,
        ):
            tls.sendall(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            said = tls.recv(12)
            self._session = tls.session
            return said, tls.session_reused


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_is_not_resumed_under_another_ca(tmp_path: Path, version: ssl.TLSVersion) -> None:
    async with door(tmp_path) as found:
        context = showing(found.ours.chain, client_certificate(found.clients, SCHEDULER), tmp_path)
        context.maximum_version = version
        client = Resuming(found.server.port, context)
        assert await asyncio.to_thread(client.ask) == (b"HTTP/1.1 200", False)
        assert await asyncio.to_thread(client.ask) == (b"HTTP/1.1 200", True)
        found.tls.trust(found.foreign.chain)
        with contextlib.suppress(OSError):  # TLS 1.3 has the client read its refusal, or the end, where the answer was
            assert (await asyncio.to_thread(client.ask))[0] == b""
        assert found.service.bound == 2


def test_a_file_without_a_ca_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    tls = ServerTls(make_ca(dt.datetime.now(dt.UTC), DAY))
    with pytest.raises(ConfigError, match=f"{path} .*cannot be read: No such file"):
        client_ca(path, trust=tls.trust).load()
    for content in (b"", b"no certificate"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"{path} .*no certificate in PEM"):
            client_ca(path, trust=tls.trust).load()


def test_a_certificate_without_names_matches_no_client() -> None:
    assert certificate_names(None) == certificate_names({}) == frozenset()
