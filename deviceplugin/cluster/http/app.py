"""The routes: every verb as a POST, and the pages that operators and probes read.

In: a `Service`. Out: an aiohttp application without a socket. Every bad input is one sentence with the right status,
every bug one general sentence and a line in the log. Nothing that a client does is an error of ours: one that goes away
while it is answered is counted and forgotten, and what was begun for it is brought to its end.
"""

import ipaddress
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog
from aiohttp import web

from deviceplugin.cluster.http.body import Bodies, Refused
from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.cluster.http.verbs import Answer, NotNowError, Service, Verb
from deviceplugin.errors import ParseError, VcudaError

log = structlog.get_logger("vcuda.http")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_near(peer: str | None) -> bool:
    """Whether an address, as a connection has it, is a loopback one; IPv4 may stand in IPv6."""
    try:
        address = ipaddress.ip_address((peer or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


class Front:
    """Makes the application; `stopping` is set when a signal came, `seen` when a connection has asked something."""

    def __init__(
        self,
        service: Service,
        metrics: SchedulerMetrics,
        *,
        bodies: Bodies | None = None,
        seen: Callable[[web.Request], None] = lambda _: None,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._bodies = bodies or Bodies()
        self._seen = seen
        self.stopping = False

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._outermost])
        for verb in self._service.verbs:
            app.router.add_post(f"/{verb.name}", self._handler(verb))
        app.router.add_get("/explain", self._explain)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        return app

    @web.middleware
    async def _outermost(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        self._seen(request)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = _sentence(error.status, self._refusal(request, error))
            response.headers.update({name: text for name, text in error.headers.items() if name == "Allow"})
        except Exception:
            log.exception("a request could not be answered; please report this line", path=request.path)
            response = _sentence(500, "vcuda failed in a way it should not; its log says more")
        if self.stopping:
            response.force_close()
        return response

    def _refusal(self, request: web.Request, error: web.HTTPException) -> str:
        if error.status == 404:
            paths = ", ".join(sorted({resource.canonical for resource in request.app.router.resources()}))
            return f"there is no such path; there are {paths}"
        if error.status == 405:
            return f"{request.method[:20]} is not what this path takes; use {error.headers.get('Allow', 'POST')}"
        return f"the request is not what it should be: {error.reason}"

    def _handler(self, verb: Verb) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            began = time.perf_counter()
            rejections: dict[str, int] = {}
            try:
                _check_caller(verb, request)
                body = await self._bodies.read(request, verb.limit)
                began = time.perf_counter()
                answer = await self._answer(verb, body)
                outcome, rejections = answer.outcome, dict(answer.rejections)
                return web.Response(body=answer.body, content_type="application/json")
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

    async def _explain(self, request: web.Request) -> web.StreamResponse:
        namespace, slash, name = request.query.get("pod", "").partition("/")
        if not slash or not namespace or not name or "/" in name:
            return _sentence(400, "name a pod as in /explain?pod=NAMESPACE/NAME")
        found = await self._service.explain(namespace, name)
        if found.status != 200:
            document = {"error": found.sentence, "leader": found.leader}
            return web.Response(
                status=found.status, body=msgspec.json.encode(document), content_type="application/json"
            )
        return web.Response(body=found.body, content_type="application/json")

    async def _show_metrics(self, request: web.Request) -> web.StreamResponse:
        body, content_type = self._metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        missing = ("stopping",) if self.stopping else self._service.not_ready()
        if not missing and "leader" in request.query:
            missing = self._service.not_leading()
        return _sentence(503, "; ".join(missing)) if missing else web.Response(text="ok\n")


def shown_names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """In whose names a certificate is that TLS has found good: its common name, and its DNS names."""
    found = certificate or {}
    subject = {value for part in found.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(subject | {value for key, value in found.get("subjectAltName", ()) if key == "DNS"})


def _check_caller(verb: Verb, request: web.Request) -> None:
    if verb.near and not is_near(request.remote):
        raise Refused(403, "far_caller", f"/{verb.name} is for the kube-scheduler on this machine's loopback alone")
    if verb.clients and not shown_names(_certificate(request)).intersection(verb.clients):
        wanted = " or ".join(verb.clients)
        raise Refused(
            403, "stranger", f"/{verb.name} is for callers alone that show a certificate in the name of {wanted}"
        )


def _certificate(request: web.Request) -> Mapping[str, Any] | None:
    return None if request.transport is None else request.transport.get_extra_info("peercert")


def _status(error: VcudaError) -> tuple[int, str]:
    if isinstance(error, ParseError):
        return 400, "malformed"
    if isinstance(error, NotNowError):
        return 503, "not_now"
    return 500, "failed"


def _sentence(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
