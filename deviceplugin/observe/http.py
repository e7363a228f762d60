"""The views over HTTP: metrics, the tree, usage, version and the two probes.

In: a `Rendering` and the metrics. Out: a server on `--query-addr`:`--query-port`. `/healthz` fails only if
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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc
import msgspec
import structlog

from deviceplugin.exposition import OPENMETRICS, wants_openmetrics
from deviceplugin.latest import Latest
from deviceplugin.model.cluster_view import TOKEN_HEADER
from deviceplugin.observe.glyphs import ASCII, BOXES
from deviceplugin.observe.graph import draw, graph_of
from deviceplugin.observe.metrics import AgentMetrics
from deviceplugin.observe.node_view import AgentState, NodePicture, Rendering
from deviceplugin.observe.usage import usage_of
from deviceplugin.serve.connections import ConnectionLimits, is_loopback
from deviceplugin.serve.messages import JSON, HttpRequest, HttpResponse, Route, sentence
from deviceplugin.serve.server import Limits, Server, bind_tcp
from deviceplugin.serve.token_file import TokenFile
from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc

log = structlog.get_logger("vcuda.observe")
_JSON = msgspec.json.Encoder()
_PROBE_DEADLINE_S = 1.0
_PROBE_PERIOD_S = 1.0
CONNECTIONS = ConnectionLimits(most=64, parts=4)
"""In each state of the agent: for kubelet, Prometheus and people, a quarter of them for one address at most."""
_END_S = 1.0
_MOST_ANSWERS = 8 << 20
_BUG = "vcuda internal error; see the agent log on this node"
_WAITS = "this agent waits until another agent of this node has ended"
_OTHER = "/..."


class GpuManagerViews(Protocol):
    """What gpu-manager showed at `/metric` and, as a part of ours, at `/usage` (the module `gpu_manager.views`)."""

    def metrics_text(self, picture: NodePicture) -> bytes: ...

    def usage_document(self, picture: NodePicture) -> Mapping[str, Any]: ...


_Render = Callable[[NodePicture, AgentState], HttpResponse]


def listen(server: Server, address: str, port: int) -> int:
    """The bound port."""
    sockets = bind_tcp(address, port, address_flag="--query-addr", port_flag="--query-port")
    for each in sockets:
        server.listen(each)
    return int(sockets[0].getsockname()[1])


class QueryServer:
    """Serves the views from `start` until `stop`; `port` is the one that is bound.

    Without `names_for_all` only readers on loopback, and those with the token `names`, see the names of pods.
    """

    def __init__(
        self,
        rendering: Rendering,
        metrics: AgentMetrics,
        gpu_manager: GpuManagerViews,
        *,
        version: str,
        names_for_all: bool = True,
        names: TokenFile | None = None,
        connections: ConnectionLimits = CONNECTIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rendering = rendering
        self._metrics = metrics
        self._gpu_manager = gpu_manager
        self._version = version
        self._names_for_all = names_for_all
        self._names = names or TokenFile(None)
        self._healthy = Latest[tuple[str, ...]](_PROBE_PERIOD_S, clock)
        answers = {
            "/metrics": self._show_metrics,
            "/metric": self._show_metrics,
            "/graph": self._graph,
            "/usage": self._usage,
            "/version": self._show_version,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }
        routes = {path: Route(answer) for path, answer in answers.items()}
        self._server = Server(routes, bug=_BUG, limits=Limits(connections, answers=_MOST_ANSWERS), clock=clock)
        self._server.connections.on_closed = metrics.connection_closed
        self.port = 0

    async def start(self, address: str, port: int) -> None:
        """Raises ConfigError if it cannot listen."""
        self.port = listen(self._server, address, port)

    async def stop(self) -> None:
        await self._server.stop(within=_END_S)

    async def _show_metrics(self, request: HttpRequest) -> HttpResponse:
        """At gpu-manager's path, `/metric`, its metrics stand beside ours."""
        with_gpu_managers = request.path == "/metric"
        accept = OPENMETRICS if not with_gpu_managers and wants_openmetrics(request.header("Accept")) else ""

        def render(picture: NodePicture, state: AgentState) -> HttpResponse:
            body, content_type = self._metrics.render_with(picture, state, accept)
            more = self._gpu_manager.metrics_text(picture) if with_gpu_managers else b""
            return HttpResponse(200, body + more, content_type)

        return await self._show(request, f"{request.path} {accept}", render, changes=self._metrics.changes)

    async def _graph(self, request: HttpRequest) -> HttpResponse:
        if "application/json" in request.header("Accept"):
            return await self._show(request, "graph in JSON", lambda picture, _: _json(graph_of(picture)))
        characters = ASCII if "ascii" in request.query else BOXES
        name = "graph in ASCII" if characters is ASCII else "graph"
        return await self._show(request, name, lambda picture, _: HttpResponse(200, draw(picture, characters).encode()))

    async def _usage(self, request: HttpRequest) -> HttpResponse:
        by_pod = self._gpu_manager.usage_document
        return await self._show(request, "usage", lambda picture, _: _json(usage_of(picture, by_pod)))

    async def _show(self, request: HttpRequest, name: str, render: _Render, *, changes: int = 0) -> HttpResponse:
        if not (self._names_for_all or is_loopback(request.peer) or self._shows_token(request)):
            name, render = f"{name} without names", _without_names(render)
        return await self._rendering.get(name, render, changes=changes) or sentence(500, _BUG)

    def _shows_token(self, request: HttpRequest) -> bool:
        proxied = request.header(TOKEN_HEADER)
        return self._names.is_shown(f"Bearer {proxied}" if proxied else request.header("Authorization"))

    async def _show_version(self, _: HttpRequest) -> HttpResponse:
        return _json({"version": self._version})

    async def _healthz(self, _: HttpRequest) -> HttpResponse:
        sockets = self._rendering.view.state().sockets
        return _verdict(await self._healthy.get(lambda: silent_sockets(sockets), sockets))

    async def _readyz(self, _: HttpRequest) -> HttpResponse:
        return _verdict(self._rendering.view.state().not_ready)


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


def _json(document: object) -> HttpResponse:
    return HttpResponse(200, _JSON.encode(document) + b"\n", JSON)


def _verdict(phrases: tuple[str, ...]) -> HttpResponse:
    return sentence(503, "; ".join(phrases)) if phrases else sentence(200, "ok")


@asynccontextmanager
async def standing_by(address: str, port: int, *, is_ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Raises ConfigError if it cannot listen."""

    async def healthz(_: HttpRequest) -> HttpResponse:
        return sentence(200, "ok")

    async def readyz(_: HttpRequest) -> HttpResponse:
        if is_ready():
            return sentence(200, f"ok: {_WAITS}")
        return sentence(503, "kubelet has not registered the driver for claims")

    async def other(_: HttpRequest) -> HttpResponse:
        return sentence(503, _WAITS)

    routes = {"/healthz": Route(healthz), "/readyz": Route(readyz), _OTHER: Route(other)}
    server = Server(
        routes,
        find=lambda path: path if path in routes else _OTHER,
        bug=_BUG,
        limits=Limits(CONNECTIONS, answers=_MOST_ANSWERS),
    )
    listen(server, address, port)
    try:
        yield
    finally:
        await server.stop(within=0)
