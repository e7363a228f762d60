"""The views over HTTP: metrics, the tree, usage, version and the two probes.

In: a `NodeView` and the metrics. Out: an aiohttp server on `--query-addr`:`--query-port`. `/healthz` fails only where a
restart would help: the event loop is blocked (then nothing answers) or the agent's gRPC servers do not answer. A broken
GPU or an absent kubelet is no reason for a restart. `/readyz` fails while pods cannot be served. All requests are
read-only, and no answer holds a traceback. The loop also answers kubelet, so clients here, however many, may not hold
it: connections are bounded, and a page is rendered in a thread, once in a sample period and when grants, GPUs or
counters have changed.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec
import structlog
from aiohttp import web

from deviceplugin.connections import Connections
from deviceplugin.exposition import OPENMETRICS, wants_openmetrics
from deviceplugin.listen import bind_tcp
from deviceplugin.observe.graph_json import graph_of
from deviceplugin.observe.graph_text import ASCII, BOXES, draw
from deviceplugin.observe.latest import Latest
from deviceplugin.observe.metrics import AgentMetrics
from deviceplugin.observe.node_view import AgentState, NodePicture, NodeView
from deviceplugin.observe.usage import usage_of
from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc

log = structlog.get_logger("vcuda.observe")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_JSON = msgspec.json.Encoder()
_TEXT = "text/plain; charset=utf-8"
_PROBE_DEADLINE_S = 1.0
_PROBE_PERIOD_S = 1.0
_MOST_CONNECTIONS = 64  # for kubelet, Prometheus and people; each can take 1 MiB of headers
_PARTS = 4  # a quarter of them for one address at most
_FIRST_REQUEST_S = 15.0
_END_S = 1.0


class QueryServer:
    """Serves the views from `start` until `stop`; `port` is the one that is bound."""

    def __init__(
        self,
        view: NodeView,
        metrics: AgentMetrics,
        *,
        version: str,
        period_s: float,
        idle_s: float = _FIRST_REQUEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = Connections(most=_MOST_CONNECTIONS, parts=_PARTS, idle=idle_s, clock=clock)
        self._pages = _Pages(view, metrics, version, period_s=period_s, clock=clock)
        app = make_app(self._pages, self._connections)
        self._runner = web.AppRunner(app, shutdown_timeout=_END_S)
        self.port = 0

    async def start(self, address: str, port: int) -> None:
        """Raises ConfigError where it cannot listen."""
        sockets = bind_tcp(address, port, address_flag="--query-addr", port_flag="--query-port")
        self.port = sockets[0].getsockname()[1]
        await self._runner.setup()
        assert self._runner.server is not None
        for each in sockets:
            self._connections.listen(each, self._runner.server, None)

    async def stop(self) -> None:
        self._connections.stop_listening()
        await self._runner.cleanup()
        self._pages.close()


def make_app(pages: "_Pages", connections: Connections) -> web.Application:
    """The routes without a socket; `connections` hears of each request."""

    @web.middleware
    async def note(request: web.Request, handler: _Handler) -> web.StreamResponse:
        connections.began(request.protocol, has_certificate=False)
        try:
            return await handler(request)
        finally:
            connections.ended(request.protocol, served=True)

    app = web.Application(middlewares=[note, _no_traceback])
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/metric", pages.metrics)  # gpu-manager's path
    app.router.add_get("/graph", pages.graph)
    app.router.add_get("/usage", pages.usage)
    app.router.add_get("/version", pages.version)
    app.router.add_get("/healthz", pages.healthz)
    app.router.add_get("/readyz", pages.readyz)
    return app


@dataclass(frozen=True, slots=True)
class _Page:
    body: bytes
    content_type: str
    status: int = 200

    @property
    def response(self) -> web.Response:
        return web.Response(status=self.status, body=self.body, headers={"Content-Type": self.content_type})


_Render = Callable[[NodePicture, AgentState], _Page]
_BROKEN = _Page(b"vcuda internal error; see the agent log on this node\n", _TEXT, 500)


class _Pages:
    """One method for each route. Pages are made of a picture that the loop has taken, by one thread."""

    def __init__(
        self, view: NodeView, metrics: AgentMetrics, version: str, *, period_s: float, clock: Callable[[], float]
    ) -> None:
        self._view = view
        self._metrics = metrics
        self._version = version
        self._rendered: defaultdict[str, Latest[_Page]] = defaultdict(lambda: Latest(period_s, clock))
        self._healthy = Latest[tuple[str, ...]](_PROBE_PERIOD_S, clock)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="views")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def metrics(self, request: web.Request) -> web.Response:
        accept = OPENMETRICS if wants_openmetrics(request.headers.get("Accept", "")) else ""

        def render(picture: NodePicture, state: AgentState) -> _Page:
            return _Page(*self._metrics.render_with(picture, state, accept))

        return await self._page(f"metrics {accept}", render, changes=self._metrics.changes)

    async def graph(self, request: web.Request) -> web.Response:
        if "application/json" in request.headers.get("Accept", ""):
            return await self._page("graph in JSON", lambda picture, _: _json(graph_of(picture)))
        characters = ASCII if "ascii" in request.query else BOXES
        name = "graph in ASCII" if characters is ASCII else "graph"
        return await self._page(name, lambda picture, _: _Page(draw(picture, characters).encode(), _TEXT))

    async def usage(self, request: web.Request) -> web.Response:
        return await self._page("usage", lambda picture, _: _json(usage_of(picture)))

    async def _page(self, name: str, render: _Render, *, changes: int = 0) -> web.Response:
        picture, state = self._view.picture(), self._view.state()

        async def make() -> _Page:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._thread, render, picture, state)
            except Exception:
                log.exception("view_failed", view=name)
                return _BROKEN

        seldom = (picture.cordoned, picture.nvml_open, picture.repairs_pending)
        basis = (changes, state, picture.inventory, picture.grants, seldom)
        return (await self._rendered[name].get(make, basis)).response

    async def version(self, request: web.Request) -> web.Response:
        return _json({"version": self._version}).response

    async def healthz(self, request: web.Request) -> web.Response:
        sockets = self._view.state().sockets
        return _verdict(await self._healthy.get(lambda: silent_sockets(sockets), sockets))

    async def readyz(self, request: web.Request) -> web.Response:
        return _verdict(self._view.state().not_ready)


async def silent_sockets(sockets: Sequence[Path]) -> tuple[str, ...]:
    """One phrase for each gRPC socket that does not answer within a second.

    A real call over a real connection: a socket file says nothing about the server behind it.
    """
    phrases = await asyncio.gather(*(_probe(socket) for socket in sockets))
    return tuple(phrase for phrase in phrases if phrase)


async def _probe(socket: Path) -> str:
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        try:
            await rpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=_PROBE_DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            return f"the device plugin on {socket} does not answer ({error.code().name.lower()})"
    return ""


def _json(document: object) -> _Page:
    return _Page(_JSON.encode(document) + b"\n", "application/json")


def _verdict(phrases: tuple[str, ...]) -> web.Response:
    if phrases:
        return web.Response(status=503, text=f"{'; '.join(phrases)}\n")
    return web.Response(text="ok\n")


@web.middleware
async def _no_traceback(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception:
        log.exception("view_failed", path=request.path)
        return _BROKEN.response
