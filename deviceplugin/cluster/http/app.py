"""The routes: every verb as a POST, and the pages for operators and probes.

In: a `Service`. Out: the handler of an aiohttp `web.Server`, without a socket. Every bad input gets one sentence with
the right status, every bug one general sentence and a log line. Long work for a client that has disconnected ends at
its next turn (`latest.next_turn`); all else that was begun for it runs to its end, such as a Binding. There are a dozen
fixed paths, so a dict finds them: aiohttp's application and router would take a fifth of a request's time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import structlog
from aiohttp import web

from deviceplugin.cluster.http.answers import BUG, Answers, HttpAnswer, answer_to
from deviceplugin.cluster.http.body import JSON, Bodies
from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.cluster.http.verbs import SMALL_BODY, HttpError, Service, Verb, VerbResponse
from deviceplugin.connections import Connections, is_loopback
from deviceplugin.errors import CallerGoneError
from deviceplugin.exposition import OPENMETRICS, wants_openmetrics
from deviceplugin.latest import CALLER_HAS_GONE, KeysInTurn, Latest, require_caller
from deviceplugin.ui import files

log = structlog.get_logger("vcuda.http")
_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
_READING = ("GET", "HEAD")
_VIEW = "/view/"


@dataclass(frozen=True, slots=True)
class _Route:
    methods: tuple[str, ...]
    answer: _Handler


class Router:
    """`answer` is the server's handler; set `stopping` on shutdown; `connections` hears of each request."""

    def __init__(
        self,
        service: Service,
        metrics: SchedulerMetrics,
        answers: Answers,
        *,
        bodies: Bodies | None = None,
        connections: Connections | None = None,
        metrics_period: float = 1.0,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._answers = answers
        self._bodies = bodies or Bodies()
        self._connections = connections or Connections()
        self._shown = {accept: Latest[tuple[bytes, str]](metrics_period) for accept in ("", OPENMETRICS)}
        self._routes = {f"/{verb.name}": _Route(("POST",), self._handler(verb)) for verb in service.verbs} | {
            "/explain": _Route(_READING, self._explain),
            "/metrics": _Route(_READING, self._show_metrics),
            "/healthz": _Route(_READING, self._healthz),
            "/readyz": _Route(_READING, self._readyz),
            _VIEW: _Route(_READING, self._view),
            files.PATH: _Route(_READING, _page),
        }
        self._turns: WeakValueDictionary[tuple[str, str, bool], KeysInTurn] = WeakValueDictionary()
        self.stopping = False

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._connections.began(request.protocol, has_certificate=bool(_certificate(request)))
        served = False
        working = CALLER_HAS_GONE.set(lambda: request.transport is None)
        try:
            response = await self._routed(request)
            served = request.method == "POST" and response.status == 200
            return response
        finally:
            CALLER_HAS_GONE.reset(working)
            self._connections.ended(request.protocol, served=served)

    async def _routed(self, request: web.BaseRequest) -> web.StreamResponse:
        route = self._routes.get(_place_of(request.path))
        response: web.StreamResponse
        try:
            if route is None:
                response = _text_response(404, f"no such path; the paths are {', '.join(sorted(self._routes))}")
            elif request.method not in route.methods:
                response = _method_not_allowed(request, route)
            else:
                response = await route.answer(request)
        except CallerGoneError as error:
            response = _text_response(400, error.message)
        except Exception:
            log.exception("request_failed", path=request.path)
            response = _text_response(500, BUG)
        if self.stopping:
            response.force_close()
        return response

    def _handler(self, verb: Verb) -> _Handler:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            began, outcome = time.perf_counter(), "failed"
            rejections: Mapping[str, int] = {}
            try:
                _check_caller(verb, request)
                body = await self._bodies.read(request, verb)
                began = time.perf_counter()
                found = await self._answer(verb, body, request)
                outcome, rejections = found.outcome, found.rejections
                return await self._bodies.answer(request, verb, found.body)
            except Exception as error:
                answer = answer_to(error, verb)
                outcome = answer.outcome
                return _response_of(answer)
            finally:
                self._metrics.observe(verb.name, outcome, time.perf_counter() - began, rejections)

        return handle

    async def _answer(self, verb: Verb, body: bytes, request: web.BaseRequest) -> VerbResponse:
        if verb.is_restricted:
            return await self._answers.asked(verb, body)
        namespace = verb.namespace_of(body)
        with self._bodies.waits(request, verb, namespace, len(body)):
            async with self._in_turn(request, namespace, is_large=len(body) > SMALL_BODY):
                return await self._answers.asked(verb, body)

    @asynccontextmanager
    async def _in_turn(
        self, request: web.BaseRequest, namespace: str, *, is_large: bool = False
    ) -> AsyncIterator[None]:
        """For unknown callers: one request of each peer, and then whatever else the loop has to do.

        The API server is one peer and sends the pods of all tenants: a small one waits for no large one, and a
        namespace for at most one of each other namespace. What was given up meanwhile costs nothing more.
        """
        turns = self._turns.setdefault((request.path, request.remote or "", is_large), KeysInTurn())
        async with turns.turn(namespace):
            require_caller()
            yield
            await asyncio.sleep(0)

    async def _explain(self, request: web.BaseRequest) -> web.Response:
        namespace, slash, name = request.query.get("pod", "").partition("/")
        if not slash or not namespace or not name or "/" in name:
            return _text_response(400, "no pod given; use /explain?pod=NAMESPACE/NAME")
        async with self._in_turn(request, namespace):
            status, body = await self._service.explain(namespace, name, request.headers)
        return web.Response(status=status, body=body, headers=JSON)

    async def _view(self, request: web.BaseRequest) -> web.Response:
        status, body = await self._service.view(request.path, request.query, request.headers)
        return web.Response(status=status, body=body, headers=JSON)

    async def _show_metrics(self, request: web.BaseRequest) -> web.Response:
        """Rendered once in a period: in a large cluster it takes this loop longer than a review of a pod."""
        accept = OPENMETRICS if wants_openmetrics(request.headers.get("Accept", "")) else ""

        async def render() -> tuple[bytes, str]:
            return self._metrics.render(accept)

        body, content_type = await self._shown[accept].get(render)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _healthz(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.BaseRequest) -> web.Response:
        missing = ("stopping",) if self.stopping else self._service.not_ready()
        if not missing and "leader" in request.query:
            missing = self._service.not_leading()
        return _text_response(503, "; ".join(missing)) if missing else web.Response(text="ok\n")


def _place_of(path: str) -> str:
    """The path under which the routes have it."""
    if path.startswith(_VIEW):
        return _VIEW
    return files.PATH if files.is_page(path) else path


async def _page(request: web.BaseRequest) -> web.Response:
    """Files that everybody may read: they say nothing of the cluster."""
    found = files.answer(request.path, request.headers.get("If-None-Match", ""))
    return web.Response(status=found.status, body=found.body, headers=found.headers)


def certificate_names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The common name and the DNS names of a certificate that TLS has verified."""
    found = certificate or {}
    subject = {value for part in found.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(subject | {value for key, value in found.get("subjectAltName", ()) if key == "DNS"})


def _check_caller(verb: Verb, request: web.BaseRequest) -> None:
    if verb.loopback_only and not is_loopback(request.remote):
        raise HttpError(403, "non_loopback", f"/{verb.name} accepts requests from loopback only")
    if verb.clients and not certificate_names(_certificate(request)).intersection(verb.clients):
        wanted = " or ".join(verb.clients)
        raise HttpError(403, "unauthorized", f"/{verb.name} requires a client certificate issued to {wanted}")


def _certificate(request: web.BaseRequest) -> Mapping[str, Any] | None:
    return None if request.transport is None else request.transport.get_extra_info("peercert")


def _method_not_allowed(request: web.BaseRequest, route: _Route) -> web.Response:
    wanted = ",".join(route.methods)
    response = _text_response(405, f"{request.method[:20]} is not allowed on this path; use {wanted}")
    response.headers["Allow"] = wanted
    return response


def _response_of(answer: HttpAnswer) -> web.Response:
    response = web.Response(status=answer.status, text=answer.body.decode())
    if answer.closes:
        response.force_close()
    return response


def _text_response(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
