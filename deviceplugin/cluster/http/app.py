"""The routes: every verb as a POST, and the pages that operators and probes read.

In: a `Service`. Out: the handler of an aiohttp `web.Server`, without a socket. Every bad input is one sentence with the
right status, every bug one general sentence and a line in the log. Nothing that a client does is an error of ours: one
that goes away while it is answered is counted and forgotten, and what was begun for it is brought to its end. There are
a dozen fixed paths, so a table finds them: aiohttp's application and router would be a fifth of what a request costs.
"""

import ipaddress
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from aiohttp import web

from deviceplugin.cluster.http.body import Bodies, Refused
from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.cluster.http.verbs import Answer, NotNowError, Service, Verb
from deviceplugin.errors import ParseError, VcudaError

log = structlog.get_logger("vcuda.http")
_Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]
_READING = ("GET", "HEAD")
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class _Route:
    methods: tuple[str, ...]
    answer: _Handler


def is_near(peer: str | None) -> bool:
    """Whether an address, as a connection has it, is a loopback one; IPv4 may stand in IPv6."""
    if peer == "127.0.0.1":
        return True  # nearly always; to parse it takes longer than all else that is asked of a caller
    try:
        address = ipaddress.ip_address((peer or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


class Front:
    """`answer` is the server's handler; `stopping` is set when a signal came, `seen` told of each request."""

    def __init__(
        self,
        service: Service,
        metrics: SchedulerMetrics,
        *,
        bodies: Bodies | None = None,
        seen: Callable[[web.BaseRequest], None] = lambda _: None,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._bodies = bodies or Bodies()
        self._seen = seen
        self._routes = {f"/{verb.name}": _Route(("POST",), self._handler(verb)) for verb in service.verbs} | {
            "/explain": _Route(_READING, self._explain),
            "/metrics": _Route(_READING, self._show_metrics),
            "/healthz": _Route(_READING, self._healthz),
            "/readyz": _Route(_READING, self._readyz),
        }
        self.stopping = False

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self._seen(request)
        route = self._routes.get(request.path)
        try:
            if route is None:
                response = _sentence(404, f"there is no such path; there are {', '.join(sorted(self._routes))}")
            elif request.method not in route.methods:
                response = _other_method(request, route)
            else:
                response = await route.answer(request)
        except Exception:
            log.exception("a request could not be answered; please report this line", path=request.path)
            response = _sentence(500, "vcuda failed in a way it should not; its log says more")
        if self.stopping:
            response.force_close()
        return response

    def _handler(self, verb: Verb) -> _Handler:
        async def handle(request: web.BaseRequest) -> web.Response:
            began = time.perf_counter()
            rejections: Mapping[str, int] = {}
            try:
                _check_caller(verb, request)
                body = await self._bodies.read(request)
                began = time.perf_counter()
                answer = await self._answer(verb, body)
                outcome, rejections = answer.outcome, answer.rejections
                return web.Response(body=answer.body, headers=_JSON)
            except Refused as refused:
                outcome = refused.outcome
                response = _sentence(refused.status, refused.sentence)
                response.force_close()  # what is left of the body will not be read
                return response
            except VcudaError as error:
                status, outcome = _status(error)
                response = _sentence(status, error.message)
                if isinstance(error, NotNowError):
                    response.force_close()  # behind one address there are several of us: the next call finds another
                return response
            except BaseException:
                outcome = "failed"
                raise
            finally:
                self._metrics.asked(verb.name, outcome, time.perf_counter() - began, rejections)

        return handle

    async def _answer(self, verb: Verb, body: bytes) -> Answer:
        if not verb.early and (missing := self._service.not_ready()):
            raise NotNowError(f"not ready yet: {'; '.join(missing)}")
        return await verb.answer(body)

    async def _explain(self, request: web.BaseRequest) -> web.Response:
        namespace, slash, name = request.query.get("pod", "").partition("/")
        if not slash or not namespace or not name or "/" in name:
            return _sentence(400, "name a pod as in /explain?pod=NAMESPACE/NAME")
        found = await self._service.explain(namespace, name)
        if found.status != 200:
            document = {"error": found.sentence, "leader": found.leader}
            return web.Response(status=found.status, body=msgspec.json.encode(document), headers=_JSON)
        return web.Response(body=found.body, headers=_JSON)

    async def _show_metrics(self, request: web.BaseRequest) -> web.Response:
        body, content_type = self._metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _healthz(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.BaseRequest) -> web.Response:
        missing = ("stopping",) if self.stopping else self._service.not_ready()
        if not missing and "leader" in request.query:
            missing = self._service.not_leading()
        return _sentence(503, "; ".join(missing)) if missing else web.Response(text="ok\n")


def shown_names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """In whose names a certificate is that TLS has found good: its common name, and its DNS names."""
    found = certificate or {}
    subject = {value for part in found.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(subject | {value for key, value in found.get("subjectAltName", ()) if key == "DNS"})


def _check_caller(verb: Verb, request: web.BaseRequest) -> None:
    if verb.near and not is_near(request.remote):
        raise Refused(403, "far_caller", f"/{verb.name} is for the kube-scheduler on this machine's loopback alone")
    if verb.clients and not shown_names(_certificate(request)).intersection(verb.clients):
        wanted = " or ".join(verb.clients)
        raise Refused(
            403, "stranger", f"/{verb.name} is for callers alone that show a certificate in the name of {wanted}"
        )


def _certificate(request: web.BaseRequest) -> Mapping[str, Any] | None:
    return None if request.transport is None else request.transport.get_extra_info("peercert")


def _other_method(request: web.BaseRequest, route: _Route) -> web.Response:
    wanted = ",".join(route.methods)
    response = _sentence(405, f"{request.method[:20]} is not what this path takes; use {wanted}")
    response.headers["Allow"] = wanted
    return response


def _status(error: VcudaError) -> tuple[int, str]:
    if isinstance(error, ParseError):
        return 400, "malformed"
    if isinstance(error, NotNowError):
        return 503, "not_now"
    return 500, "failed"


def _sentence(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
