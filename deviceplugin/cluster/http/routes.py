"""The routes of the scheduler: every verb as a POST, and the pages for operators and probes.

In: a `Service`. Out: routes for a `serve.server.Server`, without a socket. Every bad input gets one sentence with the
right status; what becomes of each request of a verb is counted in the metrics.

What unknown callers send is worked on one at a time for all of them, peers in turn, and namespaces in turn within a
peer: the API server is one peer and sends the pods of all tenants. Large bodies wait for each other and small ones for
small ones, so a review of an ordinary pod waits for no dear one. While known callers wait for answers, the loop has
after each as long for these as the work took. A body that waits takes room, in which a namespace has a part.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.cluster.http.verbs import SMALL_BODY, Service, Verb, VerbResponse, unavailable
from deviceplugin.exposition import OPENMETRICS, wants_openmetrics
from deviceplugin.latest import Latest, PairsInTurn, require_caller
from deviceplugin.serve.connections import is_loopback
from deviceplugin.serve.messages import JSON, HttpError, HttpRequest, HttpResponse, Route, failure, sentence
from deviceplugin.serve.rooms import Key, Room
from deviceplugin.serve.server import Limits
from deviceplugin.ui import files

BUG = "vcuda internal error; see the scheduler's log"
_VIEW = "/view/"
_TOKENS = ("Authorization", "X-Vcuda-Token")
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
            raise unavailable(f"not ready yet: {'; '.join(missing)}")
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
            status, body = await self._service.explain(namespace, name, _tokens(request), request.peer)
        return HttpResponse(status, body, JSON)

    async def _view(self, request: HttpRequest) -> HttpResponse:
        status, body = await self._service.view(request.path, request.query, _tokens(request), request.peer)
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


def _tokens(request: HttpRequest) -> dict[str, str]:
    return {name: request.header(name) for name in _TOKENS}


def _check_caller(verb: Verb, request: HttpRequest) -> None:
    if verb.loopback_only and not is_loopback(request.peer):
        raise HttpError(403, "non_loopback", f"/{verb.name} accepts requests from loopback only")
    if verb.clients and request.names.isdisjoint(verb.clients):
        wanted = " or ".join(verb.clients)
        raise HttpError(403, "unauthorized", f"/{verb.name} requires a client certificate issued to {wanted}")
