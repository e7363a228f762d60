"""The views over HTTP: metrics, the tree, usage, version and the two probes.

In: a `NodeView` and the metrics. Out: an aiohttp server on `--query-addr`:`--query-port`. `/healthz` fails only where a
restart would help: the event loop is blocked (then nothing answers) or the agent's gRPC servers do not answer. A broken
GPU or an absent kubelet is no reason for a restart. `/readyz` fails while pods cannot be served. All requests are
read-only, and no answer holds a traceback.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import msgspec
import structlog
from aiohttp import web

from deviceplugin.listen import bind_tcp
from deviceplugin.observe.graph_json import graph_of
from deviceplugin.observe.graph_text import ASCII, BOXES, draw
from deviceplugin.observe.metrics import AgentMetrics
from deviceplugin.observe.node_view import NodeView
from deviceplugin.observe.usage import usage_of
from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc

log = structlog.get_logger("vcuda.observe")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_JSON = msgspec.json.Encoder()
_PROBE_DEADLINE_S = 1.0


class QueryServer:
    """Serves the views from `start` until `stop`; `port` is the one that is bound."""

    def __init__(self, view: NodeView, metrics: AgentMetrics, *, version: str) -> None:
        self._runner = web.AppRunner(make_app(view, metrics, version=version), access_log=None)
        self.port = 0

    async def start(self, address: str, port: int) -> None:
        """Raises ConfigError where it cannot listen."""
        sockets = bind_tcp(address, port, address_flag="--query-addr", port_flag="--query-port")
        self.port = sockets[0].getsockname()[1]
        await self._runner.setup()
        for one in sockets:
            await web.SockSite(self._runner, one).start()

    async def stop(self) -> None:
        await self._runner.cleanup()


def make_app(view: NodeView, metrics: AgentMetrics, *, version: str) -> web.Application:
    """The routes without a socket."""
    pages = _Pages(view, metrics, version)
    app = web.Application(middlewares=[_no_traceback])
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/metric", pages.metrics)  # gpu-manager's path
    app.router.add_get("/graph", pages.graph)
    app.router.add_get("/usage", pages.usage)
    app.router.add_get("/version", pages.version)
    app.router.add_get("/healthz", pages.healthz)
    app.router.add_get("/readyz", pages.readyz)
    return app


class _Pages:
    """One method for each route."""

    def __init__(self, view: NodeView, metrics: AgentMetrics, version: str) -> None:
        self._view = view
        self._metrics = metrics
        self._version = version

    async def metrics(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def graph(self, request: web.Request) -> web.Response:
        picture = self._view.picture()
        if "application/json" in request.headers.get("Accept", ""):
            return _json(graph_of(picture))
        return web.Response(text=draw(picture, ASCII if "ascii" in request.query else BOXES))

    async def usage(self, request: web.Request) -> web.Response:
        return _json(usage_of(self._view.picture()))

    async def version(self, request: web.Request) -> web.Response:
        return _json({"version": self._version})

    async def healthz(self, request: web.Request) -> web.Response:
        return _verdict(await silent_sockets(self._view.state().sockets))

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


def _json(document: object) -> web.Response:
    return web.Response(body=_JSON.encode(document) + b"\n", content_type="application/json")


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
        return web.Response(status=500, text="vcuda internal error; see the agent log on this node\n")
