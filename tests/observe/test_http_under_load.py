"""Many, slow and silent clients of the views: what else runs on the agent's loop goes on (Security 3 and 13)."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest

from deviceplugin.gpu_manager import views
from deviceplugin.gpu_manager.views import DisplayServer
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.model.gpu import ContainerUse
from deviceplugin.model.topology import Level
from deviceplugin.observe.http import CONNECTIONS, QueryServer
from deviceplugin.observe.metrics import AgentMetrics
from deviceplugin.observe.node_view import AgentState, NodePicture, Rendering
from deviceplugin.serve.connections import ConnectionLimits
from deviceplugin.structs import replace
from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc
from deviceplugin.wire import display_pb2 as display_pb
from deviceplugin.wire import display_pb2_grpc as display_rpc
from tests.observe.pictures import by_groups, gpu, grant, node
from tests.observe.views import Clock, StillView

PATIENCE_S = 60.0
GRANT = grant("ml/train/main", 0, cores=50, blocks=64)
PATIENT = replace(CONNECTIONS, silent=600.0)
TREE = by_groups(2, (Level.PIX, 2))


class Uses(Mapping[GrantId, ContainerUse]):
    """The use of containers: none. Each rendering asks once for each grant; `go` lets it go on."""

    def __init__(self, *, fails: bool = False) -> None:
        self.renderings = 0
        self.go = threading.Event()
        self.go.set()
        self._fails = fails

    def __getitem__(self, _: GrantId) -> ContainerUse:
        self.renderings += 1
        assert self.go.wait(PATIENCE_S)
        raise ZeroDivisionError if self._fails else KeyError

    def __iter__(self) -> Iterator[GrantId]:
        return iter(())

    def __len__(self) -> int:
        return 0


def shown(uses: Uses, *grants: Grant) -> NodePicture:
    return replace(node([gpu(0), gpu(1)], TREE, *grants or (GRANT,)), uses=uses)


@asynccontextmanager
async def serving(
    view: StillView, clock: Callable[[], float] | None = None, *, limits: ConnectionLimits = PATIENT
) -> AsyncIterator[str]:
    clock = clock or Clock()
    rendering = Rendering(view, period_s=10.0, clock=clock)
    server = QueryServer(rendering, AgentMetrics(version="1"), views, version="1", connections=limits, clock=clock)
    await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


async def status_of(url: str) -> int:
    """Over a connection of its own, as kubelet's probes."""
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as client, client.get(url) as answer:
        await answer.read()
        return answer.status


async def text_of(url: str) -> str:
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as client, client.get(url) as answer:
        return await answer.text()


@pytest.mark.parametrize("path", ["/metrics", "/usage"])
async def test_many_clients_cost_one_rendering_in_a_sample_period(path: str) -> None:
    uses, clock = Uses(), Clock()
    async with serving(StillView(shown(uses)), clock) as url, aiohttp.ClientSession() as client:

        async def scrape() -> None:
            for _ in range(5):
                async with client.get(url + path) as answer:
                    assert answer.status == 200

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(scrape() for _ in range(12)))
            assert uses.renderings == 1
            clock.now += 10
            await asyncio.gather(*(scrape() for _ in range(12)))
    assert uses.renderings == 2


async def test_a_page_shows_a_new_grant_at_once() -> None:
    uses = Uses()
    view = StillView(node([gpu(0), gpu(1)], TREE))
    async with serving(view) as url, aiohttp.ClientSession() as client:
        for expected in (0, 1):
            async with client.get(f"{url}/usage") as answer:
                assert len((await answer.json())["containers"]) == expected
            view.shown = shown(uses)


async def test_formats_that_a_client_invents_are_not_rendered_each() -> None:
    uses = Uses()
    async with serving(StillView(shown(uses))) as url, aiohttp.ClientSession() as client:
        for version in range(20):
            accept = f"application/openmetrics-text; version=1.0.{version}"
            async with client.get(f"{url}/metrics", headers={"Accept": accept}) as answer:
                assert answer.content_type == "application/openmetrics-text"
    assert uses.renderings == 1


async def test_a_page_that_cannot_be_rendered_is_tried_once_in_a_sample_period() -> None:
    uses = Uses(fails=True)
    async with serving(StillView(shown(uses))) as url:
        assert [await status_of(f"{url}/usage") for _ in range(5)] == [500] * 5
    assert uses.renderings == 1


async def test_calls_of_the_display_service_cost_one_rendering_in_a_sample_period(short_tmp: Path) -> None:
    """Security 13: each call was rendered on the loop that answers kubelet."""
    uses, clock, path = Uses(), Clock(), short_tmp / "display.sock"
    server = DisplayServer(Rendering(StillView(shown(uses)), period_s=10.0, clock=clock), version="1")
    await server.start(path)
    try:
        async with asyncio.timeout(PATIENCE_S), grpc.aio.insecure_channel(f"unix:{path}") as channel:
            stub = display_rpc.GPUDisplayStub(channel)
            uses.go.clear()
            waiting = [asyncio.ensure_future(stub.PrintUsages(display_pb.UsageRequest())) for _ in range(12)]
            assert (await stub.Version(display_pb.VersionRequest())).version == "1"  # the loop is free
            uses.go.set()
            assert ["uid-ml-train" in each.usage for each in await asyncio.gather(*waiting)] == [True] * 12
            assert uses.renderings == 1
            clock.now += 10
            await stub.PrintUsages(display_pb.UsageRequest())
            assert uses.renderings == 2
    finally:
        uses.go.set()
        await server.stop()


class Plugin(rpc.DevicePluginServicer):
    """Stands for everything that kubelet asks of the same loop."""

    async def GetDevicePluginOptions(self, request: pb.Empty, context: object) -> pb.DevicePluginOptions:  # noqa: N802
        return pb.DevicePluginOptions(pre_start_required=True)


@pytest.fixture
async def socket(short_tmp: Path) -> AsyncIterator[Path]:
    path = short_tmp / "vcore.sock"
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(Plugin(), server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    yield path
    await server.stop(None)


def view_with(socket: Path, uses: Uses) -> StillView:
    return StillView(shown(uses), AgentState(registered=True, synced=True, sockets=(socket,)))


async def test_a_long_rendering_holds_neither_kubelet_nor_probes_and_no_second_one_begins(socket: Path) -> None:
    uses = Uses()
    uses.go.clear()
    async with serving(view_with(socket, uses)) as url:
        try:
            waiting = [asyncio.create_task(status_of(url + path)) for path in ("/usage", "/metrics", "/usage")]
            async with asyncio.timeout(PATIENCE_S):
                while not uses.renderings:
                    await asyncio.sleep(0.01)
            assert await status_of(f"{url}/healthz") == 200  # which asks the plugin's socket
            assert await status_of(f"{url}/readyz") == 200
            assert uses.renderings == 1
        finally:
            uses.go.set()
        assert await asyncio.gather(*waiting) == [200, 200, 200]
    assert uses.renderings == 2


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def peers(url: str, address: str, count: int, says: bytes) -> AsyncIterator[list[Peer]]:
    """Connections from one address that begin a request and never end it."""
    port = int(url.rpartition(":")[2])
    found: list[Peer] = []
    try:
        for _ in range(count):
            found.append(await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))
            found[-1][1].write(says)
        yield found
    finally:
        for _, writer in found:
            writer.transport.abort()


def open_ones(found: list[Peer]) -> int:
    return sum(not reader.at_eof() and reader.exception() is None for reader, _ in found)


@pytest.mark.parametrize("says", [b"", b"GET /metrics HTTP/1.1\r\nHost:"], ids=["silent", "slow headers"])
async def test_one_address_takes_a_quarter_of_the_connections_at_most(socket: Path, says: bytes) -> None:
    async with (
        serving(view_with(socket, Uses())) as url,
        aiohttp.ClientSession() as neighbour,
        peers(url, "127.0.0.2", 100, says) as hostile,
    ):
        async with asyncio.timeout(PATIENCE_S), neighbour.get(f"{url}/usage") as answer:
            assert answer.status == 200
            while open_ones(hostile) > 16:
                await asyncio.sleep(0.01)
        assert open_ones(hostile) == 16
        assert await status_of(f"{url}/healthz") == 200


async def test_many_addresses_together_keep_nobody_out(socket: Path) -> None:
    async with serving(view_with(socket, Uses())) as url:
        found: list[Peer] = []
        async with (
            peers(url, "127.0.0.2", 16, b"") as a,
            peers(url, "127.0.0.3", 16, b"") as b,
            peers(url, "127.0.0.4", 16, b"") as c,
            peers(url, "127.0.0.5", 16, b"") as d,
            peers(url, "127.0.0.6", 16, b"") as e,
        ):
            found = [*a, *b, *c, *d, *e]
            assert await status_of(f"{url}/healthz") == 200
            async with asyncio.timeout(PATIENCE_S):
                while open_ones(found) > 64:
                    await asyncio.sleep(0.01)
            assert open_ones(found) >= 63
            assert await status_of(f"{url}/usage") == 200


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def is_let_in(url: str, address: str) -> bool:
    async with peers(url, address, 1, b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n") as ((reader, _),):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            return (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 OK")
    return False


async def test_a_client_that_reads_no_answer_gives_way_to_the_next() -> None:
    """Nothing else ends it: the kernel's buffers are full, and the server waits for them."""
    big = shown(Uses(), *(grant(f"ml/p{number}/c", 0) for number in range(2000)))
    ask = b"GET /usage HTTP/1.1\r\nHost: x\r\n\r\n" * 200
    clock = Clock()
    async with serving(StillView(big), clock) as url, peers(url, "127.0.0.2", 16, ask) as hostile:
        async with asyncio.timeout(PATIENCE_S):
            for reader, _ in hostile:
                await reader.readexactly(100)
            await asyncio.sleep(1.0)  # the kernel's buffers fill
            before = descriptors()
            while not await is_let_in(url, "127.0.0.2"):
                clock.now += 5
            while descriptors() >= before:  # the one that gave way keeps none, though its answer was not sent
                await asyncio.sleep(0.01)


async def test_headers_that_never_end_are_cut_off_in_time() -> None:
    async with (
        serving(StillView(), time.monotonic, limits=replace(CONNECTIONS, arrive=0.6, sweep=0.1)) as url,
        peers(url, "127.0.0.1", 3, b"GET /metrics HTTP/1.1\r\nHost:") as slow,
    ):
        async with asyncio.timeout(PATIENCE_S):
            for reader, _ in slow:
                assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        assert 'vcuda_connections_closed_total{reason="silent"} 3.0' in await text_of(f"{url}/metrics")
        assert await status_of(f"{url}/healthz") == 200
