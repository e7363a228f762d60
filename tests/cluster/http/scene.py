"""The service over real TLS on loopback, with a stand-in behind its routes that answers at once."""

import asyncio
import datetime as dt
import io
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import msgspec
from prometheus_client.core import Metric

from deviceplugin.cluster.certificates.keypair import KeyPair, ServerTls, make_ca, make_certificate
from deviceplugin.cluster.http import metrics
from deviceplugin.cluster.http.server import SchedulerServer, Verb, VerbResponse
from deviceplugin.errors import CallerGoneError, KubeError, ParseError
from deviceplugin.exposition import metric_of
from deviceplugin.latest import others_turn
from deviceplugin.serve.connections import Connections
from deviceplugin.serve.server import Limits

DAY = dt.timedelta(days=1)
NAMES = ("vcuda-scheduler.gpu.svc", "127.0.0.1")


@dataclass
class StandIn:
    """Echoes what it has `reviewed` of the bodies that `arrived`; the first sign of one is its namespace.

    `held` keeps bind waiting until it is set, and `reviewing` the webhook and explanations while it is clear. `slow`
    work ends with its client.
    """

    missing: tuple[str, ...] = ()
    leader: str = ""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    under_way: asyncio.Event = field(default_factory=asyncio.Event)
    bound: int = 0
    stopped: int = 0
    arrived: int = 0
    reviewed: list[bytes] = field(default_factory=list)
    explained: list[str] = field(default_factory=list)
    reviewing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.reviewing.set()

    @property
    def verbs(self) -> tuple[Verb, ...]:
        return (
            Verb("webhook", self.webhook, namespace_of=self._namespace_of),
            Verb("filter", self.filter, loopback_only=True),
            Verb("bind", self.bind, loopback_only=True),
        )

    def _namespace_of(self, body: bytes) -> str:
        """A whole body has come, and waits for its turn."""
        self.arrived += 1
        return body[:1].decode()

    def not_ready(self) -> tuple[str, ...]:
        return self.missing

    def not_leading(self) -> tuple[str, ...]:
        return (f"{self.leader} leads",) if self.leader else ()

    def gauges(self) -> list[Metric]:
        return [metric_of(metrics.LEADER, [((), 1)]), metric_of(metrics.EXPIRATION, [(("server",), 1.8e9)])]

    async def view(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], peer: str
    ) -> tuple[int, bytes]:
        if path == "/view/slow":
            await self._work()
        if path == "/view/bug":
            raise ZeroDivisionError
        found = {"path": path, "query": dict(query), "token": headers.get("X-Vcuda-Token", "")}
        return (404 if path == "/view/gone" else 200), msgspec.json.encode(found)

    async def explain(self, namespace: str, name: str, headers: Mapping[str, str], peer: str) -> tuple[int, bytes]:
        self.explained.append(namespace)
        await self.reviewing.wait()
        if name == "elsewhere":
            return 421, msgspec.json.encode({"error": "replica b leads", "leader": "b"})
        if name.startswith("unknown"):
            return 404, msgspec.json.encode({"error": f"pod {namespace}/{name} not found", "leader": ""})
        return 200, msgspec.json.encode({"pod": f"{namespace}/{name}", "sentence": "it waits"})

    async def webhook(self, body: bytes) -> VerbResponse:
        self.reviewed.append(body)
        await self.reviewing.wait()
        return VerbResponse(body, "changed")

    async def filter(self, body: bytes) -> VerbResponse:
        try:
            msgspec.json.decode(body)
        except msgspec.DecodeError:
            raise ParseError("the filter request cannot be read") from None
        if body == b'"bug"':
            raise ZeroDivisionError
        if body == b'"kube"':
            raise KubeError("the API server is away")
        if body == b'"slow"':
            await self._work()
        return VerbResponse(b'{"NodeNames":["n1"]}', "chosen", {"insufficient vcuda-memory on any one GPU": 2})

    async def bind(self, body: bytes) -> VerbResponse:
        self.under_way.set()
        await self.held.wait()
        self.bound += 1
        return VerbResponse(b'{"Error":""}', "bound")

    async def _work(self) -> None:
        self.under_way.set()
        try:
            while True:
                await others_turn()
        except CallerGoneError:
            self.stopped += 1
            raise


@dataclass
class Scene:
    service: StandIn
    server: SchedulerServer
    tls: ServerTls
    ca: KeyPair
    session: aiohttp.ClientSession

    @property
    def connections(self) -> Connections:
        """Of the door for everybody."""
        return self.server._everybody.connections

    @property
    def held(self) -> Counter[tuple[str, ...]]:
        """Bytes of bodies and answers at that door."""
        return self.server._everybody.held

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.port}"

    async def post(self, path: str, body: bytes) -> tuple[int, str]:
        async with self.session.post(f"{self.url}{path}", data=io.BytesIO(body)) as answer:
            return answer.status, await answer.text()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"{self.url}{path}") as answer:
            return answer.status, await answer.text()

    async def raw(self, peer: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection after the TLS handshake, without a request; `peer` is the client's address."""
        context = trusting(self.ca.chain)
        return await asyncio.open_connection("127.0.0.1", self.server.port, ssl=context, local_addr=(peer, 0))

    async def unread(self, body: bytes, peer: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which the answer to a review is due and nothing is read; the kernel holds 5 MiB at most."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        client.bind((peer, 0))
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.server.port))
        context = trusting(self.ca.chain)
        reader, writer = await asyncio.open_connection(sock=client, ssl=context, server_hostname="127.0.0.1")
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed: any transport
        writer.write(b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return reader, writer


def trusting(bundle: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=bundle.decode())


@asynccontextmanager
async def serving(
    *,
    limits: Limits | None = None,
    end_within: float = 5.0,
    loopback_port: int = 0,
    metrics_period: float = 0.0,
) -> AsyncIterator[Scene]:
    now = dt.datetime.now(dt.UTC)
    ca = make_ca(now, 30 * DAY)
    tls = ServerTls(make_certificate(NAMES, ca, now, 10 * DAY))
    service = StandIn()
    server = SchedulerServer(
        service,
        context=tls.context,
        version="1",
        limits=limits,
        metrics_period=metrics_period,
    )
    await server.start("127.0.0.1", 0, loopback_port=loopback_port, end_within=end_within)
    connector = aiohttp.TCPConnector(ssl=trusting(ca.chain))
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            yield Scene(service, server, tls, ca, session)
        finally:
            service.held.set()
            await server.stop()
