"""The views over HTTP: metrics, the tree, usage, version and the two probes.

In: a `Rendering` and the metrics. Out: an aiohttp server on `--query-addr`:`--query-port`. `/healthz` fails only where
a restart would help: the event loop is blocked (then nothing answers) or the agent's gRPC servers do not answer. A
broken GPU or an absent kubelet is no reason for a restart. `/readyz` fails while pods cannot be served. All requests
are read-only, and no answer holds a traceback. The loop also answers kubelet, so clients here, however many, may not
hold it: connections are bounded, and pages are rendered elsewhere.

The probes of an agent that waits until its predecessor on the node has ended.

In: whether kubelet knows this agent. Out: an HTTP server on the agent's own address. It is ready as soon as kubelet
gives it calls, because the DaemonSet's controller ends the predecessor only then. It has no view: the predecessor does.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec
import structlog
from aiohttp import web

from deviceplugin.connections import Connections, is_loopback
from deviceplugin.exposition import OPENMETRICS, wants_openmetrics
from deviceplugin.latest import Latest
from deviceplugin.listen import bind_tcp
from deviceplugin.observe.gpu_manager_views import metrics_text
from deviceplugin.observe.graph import ASCII, BOXES, draw
from deviceplugin.observe.graph_json import graph_of
from deviceplugin.observe.metrics import AgentMetrics
from deviceplugin.observe.node_view import AgentState, NodePicture, Rendering
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
        rendering: Rendering,
        metrics: AgentMetrics,
        *,
        version: str,
        names_for_all: bool = True,
        idle_s: float = _FIRST_REQUEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = Connections(most=_MOST_CONNECTIONS, parts=_PARTS, idle=idle_s, clock=clock)
        self._connections.on_closed = metrics.connection_closed
        app = make_app(_Pages(rendering, metrics, version, names_for_all=names_for_all, clock=clock), self._connections)
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
    app.router.add_get("/metric", pages.gpu_manager_metrics)
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
    """One method for each route. Without `names_for_all` only readers on loopback see the names of pods."""

    def __init__(
        self,
        rendering: Rendering,
        metrics: AgentMetrics,
        version: str,
        *,
        names_for_all: bool,
        clock: Callable[[], float],
    ) -> None:
        self._rendering = rendering
        self._view = rendering.view
        self._metrics = metrics
        self._version = version
        self._names_for_all = names_for_all
        self._healthy = Latest[tuple[str, ...]](_PROBE_PERIOD_S, clock)

    async def metrics(self, request: web.Request) -> web.Response:
        accept = OPENMETRICS if wants_openmetrics(request.headers.get("Accept", "")) else ""

        def render(picture: NodePicture, state: AgentState) -> _Page:
            return _Page(*self._metrics.render_with(picture, state, accept))

        return await self._show(request, f"metrics {accept}", render, changes=self._metrics.changes)

    async def gpu_manager_metrics(self, request: web.Request) -> web.Response:
        """At gpu-manager's path: its metrics beside ours."""

        def render(picture: NodePicture, state: AgentState) -> _Page:
            body, content_type = self._metrics.render_with(picture, state)
            return _Page(body + metrics_text(picture), content_type)

        return await self._show(request, "gpu-manager's metrics", render, changes=self._metrics.changes)

    async def graph(self, request: web.Request) -> web.Response:
        if "application/json" in request.headers.get("Accept", ""):
            return await self._show(request, "graph in JSON", lambda picture, _: _json(graph_of(picture)))
        characters = ASCII if "ascii" in request.query else BOXES
        name = "graph in ASCII" if characters is ASCII else "graph"
        return await self._show(request, name, lambda picture, _: _Page(draw(picture, characters).encode(), _TEXT))

    async def usage(self, request: web.Request) -> web.Response:
        return await self._show(request, "usage", lambda picture, _: _json(usage_of(picture)))

    async def _show(self, request: web.Request, name: str, render: _Render, *, changes: int = 0) -> web.Response:
        if not (self._names_for_all or is_loopback(request.remote)):
            name, render = f"{name} without names", _without_names(render)
        return _shown(await self._rendering.get(name, render, changes=changes))

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
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:  # what a server of claims says, and it is alive
                return f"the server on {socket} does not answer ({error.code().name.lower()})"
    return ""


def _without_names(render: _Render) -> _Render:
    return lambda picture, state: render(picture.without_names(), state)


def _shown(page: _Page | None) -> web.Response:
    return (page or _BROKEN).response


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


_WAITS = "this agent waits until another agent of this node has ended"


@asynccontextmanager
async def standing_by(address: str, port: int, *, is_ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Raises ConfigError where it cannot listen."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        if is_ready():
            return web.Response(text=f"ok: {_WAITS}\n")
        return web.Response(status=503, text="kubelet has not registered the driver for claims\n")

    async def other(_request: web.Request) -> web.Response:
        return web.Response(status=503, text=f"{_WAITS}\n")

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/{other:.*}", other)
    runner = web.AppRunner(app, shutdown_timeout=0)
    sockets = bind_tcp(address, port, address_flag="--query-addr", port_flag="--query-port")
    await runner.setup()
    try:
        for each in sockets:
            await web.SockSite(runner, each).start()
        yield
    finally:
        await runner.cleanup()
