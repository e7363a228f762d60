"""The scheduler's doors: one with TLS for everybody, and one without on 127.0.0.1 for a scheduler in the same pod.

In: a `Service`, an address, an SSL context whose certificate may change at any time. Out: servers from `start` to
`stop`. Go's client keeps two idle connections and opens a new one for each further Bind; with TLS the handshake is most
of the time of a Bind, which the second door saves. The end is: report not ready; serve until clients have noticed
(`drain`); accept nothing new; finish requests in flight; return.

The routes of the scheduler: every verb as a POST, and the pages for operators and probes.

In: a `Service`. Out: routes for a `serve.server.Server`, without a socket. Every bad input gets one sentence with the
right status; what becomes of each request of a verb is counted in the metrics.

What unknown callers send is worked on one at a time for all of them, peers in turn, and namespaces in turn within a
peer: the API server is one peer and sends the pods of all tenants. Large bodies wait for each other and small ones for
small ones, so a review of an ordinary pod waits for no dear one. While known callers wait for answers, the loop has
after each as long for these as the work took. A body that waits takes room, in which a namespace has a part.

What the service is asked, and what it needs to answer: the interface between HTTP and the decisions.

In: the body of a request as it came. Out: a `VerbResponse`, an `HttpError`, or a VcudaError: a ParseError is the
caller's fault (400), any other is the scheduler's (500). Not here: HTTP, and any decision.
"""

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import msgspec
from prometheus_client.core import Metric

from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.errors import ConfigError
from deviceplugin.exposition import OPENMETRICS, wants_openmetrics
from deviceplugin.latest import Latest, PairsInTurn, require_caller
from deviceplugin.model.cluster_view import TOKEN_HEADER
from deviceplugin.serve.connections import is_loopback
from deviceplugin.serve.messages import JSON, HttpError, HttpRequest, HttpResponse, Route, failure, sentence
from deviceplugin.serve.rooms import Key, Room
from deviceplugin.serve.server import Limits, Server, bind_tcp
from deviceplugin.ui import files

SMALL_BODY = 32 << 10
"""What is read in some milliseconds, whatever it says."""


def unavailable(sentence: str) -> HttpError:
    """A good request that this replica cannot answer now; the sentence says which replica can, or what is missing.

    Several replicas have one address: the next connection finds another.
    """
    return HttpError(503, "unavailable", sentence)


def not_ready_sentence(missing: Iterable[str]) -> str:
    return f"the scheduler is not ready yet: {'; '.join(missing)}"


class VerbResponse(msgspec.Struct, frozen=True):
    """`outcome` is a label of the metrics; `rejections` counts rejected nodes by reason."""

    body: bytes
    outcome: str = "answered"
    rejections: Mapping[str, int] = msgspec.field(default_factory=dict)


def _no_namespace(body: bytes) -> str:
    return ""


class Verb(msgspec.Struct, frozen=True):
    """One POST route; with `before_ready` it answers before the process is ready.

    `loopback_only`: only callers on loopback are answered, because the extender protocol has no authentication.
    `clients`: only callers with a client certificate in one of these names are answered; empty: no certificate needed.
    `largest`: the limit of a body in bytes; `instead` says what to send instead of a larger one. `outcomes` of answers.
    `namespace_of`: whose turn an unknown caller's body takes; it raises nothing.
    """

    name: str
    answer: Callable[[bytes], Awaitable[VerbResponse]]
    before_ready: bool = False
    loopback_only: bool = False
    clients: tuple[str, ...] = ()
    largest: int = 8 << 20
    instead: str = "send names instead of whole nodes"
    outcomes: tuple[str, ...] = ("answered",)
    namespace_of: Callable[[bytes], str] = _no_namespace

    @property
    def is_restricted(self) -> bool:
        """Only known callers are answered."""
        return self.loopback_only or bool(self.clients)


class Service(Protocol):
    """Everything behind the routes."""

    @property
    def verbs(self) -> tuple[Verb, ...]: ...
    def not_ready(self) -> tuple[str, ...]:
        """A phrase for each thing that is missing; empty when requests can be served."""

    def not_leading(self) -> tuple[str, ...]:
        """The same for the verbs of kube-scheduler, which only the leader answers."""

    def gauges(self) -> Iterable[Metric]:
        """What `metrics` lists as gauges, with the values of now."""

    async def view(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], peer: str
    ) -> tuple[int, bytes]:
        """HTTP status and a document of the cluster-wide view, or an error, as JSON; `path` begins with `/view/`."""

    async def explain(self, namespace: str, name: str, headers: Mapping[str, str], peer: str) -> tuple[int, bytes]:
        """HTTP status, and an explanation or an error as JSON; `headers` may show whose names the caller may read."""


BUG = "vcuda internal error; see the scheduler's log"
_VIEW = "/view/"
TOKENS = ("Authorization", TOKEN_HEADER)
FORWARDED = "X-Vcuda-Forwarded"
"""The replica that passes on what it was asked; who is asked so answers himself."""
_WAITING = 32  # bodies of the largest size; one peer may have half of them, and one namespace of it a sixteenth
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.1


class Routes:
    """`every` are for a server that anybody may reach, `restricted` for one that only known schedulers reach.

    `stopping` makes this replica unready. `held` are the bytes of bodies that wait for their turn.
    """

    def __init__(self, service: Service, metrics: SchedulerMetrics, *, metrics_period: float = 1.0) -> None:
        self._service = service
        self._metrics = metrics
        self._shown = {accept: Latest[tuple[bytes, str]](metrics_period) for accept in ("", OPENMETRICS)}
        self._lanes: dict[tuple[str, bool], PairsInTurn] = {}  # peers, and the namespaces of each
        self._known = 0  # restricted requests that are not answered yet
        self.held: Counter[Key] = Counter()
        self.stopping = False
        for verb in service.verbs:
            metrics.expect(verb.name, verb.outcomes)
        verbs = {f"/{verb.name}": self._of_verb(verb) for verb in service.verbs}
        self.restricted = {path: route for path, route in verbs.items() if route.is_trusted}
        self.every = verbs | {
            "/explain": Route(self._explain, counts=False),
            "/metrics": Route(self._show_metrics, counts=False),
            "/healthz": Route(self._healthz, counts=False),
            "/readyz": Route(self._readyz, counts=False),
            _VIEW: Route(self._view, counts=False),
            files.PATH: Route(_page, counts=False),
        }

    def _of_verb(self, verb: Verb) -> Route:
        return Route(
            partial(self._counted, verb),
            ("POST",),
            largest=verb.largest,
            instead=verb.instead,
            check=partial(_check_caller, verb),
            refused=partial(self._refused, verb),
            is_trusted=verb.is_restricted,
        )

    def _refused(self, verb: Verb, error: HttpError) -> None:
        self._metrics.observe(verb.name, error.outcome, 0.0, {})

    async def _counted(self, verb: Verb, request: HttpRequest) -> HttpResponse:
        """Raises nothing but a cancellation."""
        began, outcome = time.perf_counter(), "failed"
        rejections: Mapping[str, int] = {}
        try:
            found = await self._answer(verb, request)
            outcome, rejections = found.outcome, found.rejections
            return HttpResponse(200, found.body, JSON)
        except Exception as error:
            response, outcome = failure(error, path=f"/{verb.name}", bug=BUG)
            return response
        finally:
            self._metrics.observe(verb.name, outcome, time.perf_counter() - began, rejections)

    async def _answer(self, verb: Verb, request: HttpRequest) -> VerbResponse:
        if verb.is_restricted:
            self._known += 1
            try:
                return await self._asked(verb, request.body)
            finally:
                self._known -= 1
        namespace = verb.namespace_of(request.body)
        with self._waits(verb, request, namespace):
            async with self._in_turn(request, namespace):
                return await self._asked(verb, request.body)

    async def _asked(self, verb: Verb, body: bytes) -> VerbResponse:
        if not verb.before_ready and (missing := self._service.not_ready()):
            raise unavailable(not_ready_sentence(missing))
        return await verb.answer(body)

    def _waits(self, verb: Verb, request: HttpRequest, namespace: str) -> Room:
        """Until it was answered. Raises an HttpError with status 503."""
        limits: dict[Key, int] = {
            (verb.name,): _WAITING * verb.largest,
            (verb.name, request.peer): _WAITING // 2 * verb.largest,
            (verb.name, request.peer, namespace): _WAITING // 16 * verb.largest,
        }
        room = Room(self.held, limits, free=Limits().free)
        room.grow(len(request.body))
        return room

    @asynccontextmanager
    async def _in_turn(self, request: HttpRequest, namespace: str) -> AsyncIterator[None]:
        """What was given up meanwhile costs nothing more. The answer does not wait for the pause after it."""
        lane = self._lanes.setdefault((request.path, len(request.body) > SMALL_BODY), PairsInTurn())
        give = await lane.take(request.peer, namespace)
        began = time.perf_counter()
        try:
            require_caller()
            yield
        finally:
            asyncio.get_running_loop().call_later(self._pause(time.perf_counter() - began), give)

    def _pause(self, worked: float) -> float:
        """Also with no known caller long enough for the loop to read what one has sent meanwhile."""
        return min(worked, _LONGEST_PAUSE_S) if self._known else _SHORTEST_PAUSE_S

    async def _explain(self, request: HttpRequest) -> HttpResponse:
        namespace, slash, name = request.query.get("pod", "").partition("/")
        if not slash or not namespace or not name or "/" in name:
            return sentence(400, "no pod given; use /explain?pod=NAMESPACE/NAME")
        async with self._in_turn(request, namespace):
            status, body = await self._service.explain(namespace, name, _about_caller(request), request.peer)
        return HttpResponse(status, body, JSON)

    async def _view(self, request: HttpRequest) -> HttpResponse:
        status, body = await self._service.view(request.path, request.query, _about_caller(request), request.peer)
        return HttpResponse(status, body, JSON)

    async def _show_metrics(self, request: HttpRequest) -> HttpResponse:
        """Rendered once in a period: in a large cluster it takes this loop longer than a review of a pod."""
        accept = OPENMETRICS if wants_openmetrics(request.header("Accept")) else ""

        async def render() -> tuple[bytes, str]:
            return self._metrics.render(accept)

        body, content_type = await self._shown[accept].get(render)
        return HttpResponse(200, body, content_type)

    async def _healthz(self, request: HttpRequest) -> HttpResponse:
        return sentence(200, "ok")

    async def _readyz(self, request: HttpRequest) -> HttpResponse:
        missing = ("stopping",) if self.stopping else self._service.not_ready()
        if not missing and "leader" in request.query:
            missing = self._service.not_leading()
        return sentence(503, "; ".join(missing)) if missing else sentence(200, "ok")


def place_of(path: str) -> str:
    """The path under which the routes have it."""
    if path.startswith(_VIEW):
        return _VIEW
    return files.PATH if files.is_page(path) else path


async def _page(request: HttpRequest) -> HttpResponse:
    """Files that everybody may read: they say nothing of the cluster."""
    return files.answer(request.path, request.header("If-None-Match"))


def _about_caller(request: HttpRequest) -> dict[str, str]:
    return {name: request.header(name) for name in (*TOKENS, FORWARDED)}


def _check_caller(verb: Verb, request: HttpRequest) -> None:
    if verb.loopback_only and not is_loopback(request.peer):
        raise HttpError(403, "non_loopback", f"/{verb.name} accepts requests from loopback only")
    if verb.clients and request.names.isdisjoint(verb.clients):
        wanted = " or ".join(verb.clients)
        raise HttpError(403, "unauthorized", f"/{verb.name} requires a client certificate issued to {wanted}")


_LOOPBACK = "127.0.0.1"


class SchedulerServer:
    """`port` is the bound port."""

    def __init__(
        self,
        service: Service,
        *,
        context: ssl.SSLContext,
        version: str,
        limits: Limits | None = None,
        metrics_period: float = 1.0,
    ) -> None:
        self.metrics = SchedulerMetrics(service.gauges, version=version)
        self._routes = Routes(service, self.metrics, metrics_period=metrics_period)
        self._everybody = Server(self._routes.every, find=place_of, bug=BUG, limits=limits)
        self._beside = Server(self._routes.restricted, bug=BUG, limits=limits, are_known=True)
        self._servers = (self._everybody, self._beside)
        for each in self._servers:
            each.connections.on_closed = self.metrics.connection_closed
        self._context = context
        self._end_within = 0.0
        self.port = 0

    async def start(self, address: str, port: int, *, loopback_port: int = 0, end_within: float = 10.0) -> None:
        """Raises a ConfigError if it cannot listen; without `loopback_port` there is only TLS."""
        bound = _bind(address, port, port_flag="--listen-port")
        try:
            plain = _bind(_LOOPBACK, loopback_port, port_flag="--loopback-port") if loopback_port else []
        except ConfigError:
            for each in bound:
                each.close()
            raise
        for each in bound:
            self._everybody.listen(each, self._context)
        for each in plain:
            self._beside.listen(each)
        self._end_within = end_within
        self.port = bound[0].getsockname()[1]

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies and answers in memory now."""
        return sum(each.held.total() for each in self._servers) + self._routes.held.total()

    async def stop(self, *, drain: float = 0.0) -> None:
        self._routes.stopping = True
        for each in self._servers:
            each.stopping = True
        await asyncio.sleep(drain)
        await asyncio.gather(*(each.stop(within=self._end_within) for each in self._servers))


def _bind(address: str, port: int, *, port_flag: str) -> list[socket.socket]:
    return bind_tcp(address, port, address_flag="--listen-addr", port_flag=port_flag)
