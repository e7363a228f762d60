"""Paths and verbs: each request turned into one call of the store.

In: HTTP as kubectl, kubelet and vcuda speak it. Out: JSON, `Status` objects for refusals, watch streams. Not
here: what the verbs do (`store`).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from aiohttp import web

from sandbox.apiserver.faults import WATCH_HARMS, Fault, Faults, Harm, is_watch
from sandbox.apiserver.kinds import KINDS, ResourceKind
from sandbox.apiserver.listing import Pages, Selector, Snapshot, selector
from sandbox.apiserver.reviews import ACCESS, SELF, TOKENS, reviewed, who_asks
from sandbox.apiserver.status import ApiError, JsonObject, status
from sandbox.apiserver.store import Change, Store
from sandbox.apiserver.verbatim import answer, written

# ---- one watch: history after a version, then changes as they come, one JSON line each ----


@dataclass(frozen=True, slots=True)
class Watch:
    """The parameters of one watch request; `since` None starts with the present objects as ADDED."""

    resource: str
    namespace: str
    chosen: Selector
    since: int | None
    bookmarks: bool
    bookmark_seconds: float
    timeout_seconds: float

    async def serve(self, store: Store, response: web.StreamResponse, *, fault: Fault | None) -> None:
        """Writes until the time limit, the client's departure (cancellation) or a fault."""
        line = _Lines(response, fault)
        changed = asyncio.Event()
        stop = store.on_change(changed.set)
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await self._run(store, line, changed)
        except TimeoutError:
            if self.bookmarks:
                await line.write("BOOKMARK", self._bookmark(store.version))
        except ApiError as error:
            await line.write("ERROR", error.status)
        except _StreamCutError:
            pass
        finally:
            stop()

    async def _run(self, store: Store, line: "_Lines", changed: asyncio.Event) -> None:
        await line.start()
        at = self.since
        if at is None:
            at = store.version
            for item in store.objects(self.resource, namespace=self.namespace):
                if self.chosen(item):
                    await line.write("ADDED", item)
        while True:
            changed.clear()
            for change in store.changes(self.resource, at):
                for kind, item in self._seen(change):
                    await line.write(kind, item)
                at = change.version
            if not changed.is_set():
                await self._wait(store, line, changed)

    async def _wait(self, store: Store, line: "_Lines", changed: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self.bookmark_seconds):
                await changed.wait()
        except TimeoutError:
            if self.bookmarks:
                await line.write("BOOKMARK", self._bookmark(store.version))

    def _seen(self, change: Change) -> Iterator[tuple[str, JsonObject]]:
        if self.namespace and change.after["metadata"].get("namespace") != self.namespace:
            return
        was = change.before is not None and self.chosen(change.before)
        now = not change.deleted and self.chosen(change.after)
        if now:
            yield ("MODIFIED" if was else "ADDED"), change.after
        elif was:
            yield "DELETED", change.last_seen

    def _bookmark(self, version: int) -> JsonObject:
        meta = {"resourceVersion": str(version), "creationTimestamp": None}
        kind = KINDS[self.resource]
        return {"kind": kind.word, "apiVersion": kind.api_version, "metadata": meta}


class _StreamCutError(Exception):
    pass


class _Lines:
    """Writes events, and corrupts the one that the fault names."""

    def __init__(self, response: web.StreamResponse, fault: Fault | None) -> None:
        self._response = response
        self._fault = fault
        self._count = 0

    async def start(self) -> None:
        await self._spoil_if_due(b"")

    async def write(self, kind: str, item: JsonObject) -> None:
        line = written({"type": kind, "object": item}).encode() + b"\n"
        await self._spoil_if_due(line)
        self._count += 1
        await self._response.write(line)

    async def _spoil_if_due(self, line: bytes) -> None:
        fault = self._fault
        if fault is None or self._count < fault.after:
            return
        if fault.harm is Harm.SILENT_WATCH:
            await asyncio.Event().wait()
        elif fault.harm is Harm.ERROR_WATCH:
            event = {"type": "ERROR", "object": status(fault.code, "injected fault")}
            await self._response.write(json.dumps(event).encode() + b"\n")
            raise _StreamCutError
        elif fault.harm is Harm.GARBLED_WATCH:
            self._fault = None
            await self._response.write(b'{"type":"ADDED","object":{"metadata":\n')
        elif fault.harm is Harm.CUT_WATCH and line:
            await self._response.write(line[: len(line) // 2])
            raise _StreamCutError


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_FAULT = web.RequestKey("fault", Fault)
_STRATEGIC = "application/strategic-merge-patch+json"
_PATCHES = ("application/merge-patch+json", _STRATEGIC)
_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0-vcuda-stand-in", "platform": "linux/amd64"}


class Api:
    """The handlers; `token`, where set, is what a client must send."""

    def __init__(self, store: Store, *, token: str = "", bookmark_seconds: float = 60.0) -> None:
        self.store = store
        self.token = token
        self.bookmark_seconds = bookmark_seconds
        self.faults = Faults()
        self.pages = Pages()
        self.requests: list[tuple[str, str]] = []
        self.open_watches = 0

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=16 << 20)
        app.add_routes(
            [
                web.get("/version", _version),
                web.get("/{probe:healthz|livez|readyz}", _healthy),
                web.post("/api/v1/namespaces/{namespace}/pods/{name}/binding", self._bind),
                web.post(TOKENS, _review),
                web.post(ACCESS, _review),
                web.post(SELF, _who_asks),
            ]
        )
        for resource, kind in KINDS.items():
            self._serve(app.router, resource, kind)
        return app

    def _serve(self, router: web.UrlDispatcher, resource: str, kind: ResourceKind) -> None:
        whole = f"{kind.root}/{{resource:{resource}}}"
        place = f"{kind.root}/namespaces/{{namespace}}/{{resource:{resource}}}" if kind.namespaced else whole
        one = place + "/{name}"
        router.add_get(whole, self._list)
        if kind.namespaced:
            router.add_get(place, self._list)
        router.add_post(place, self._create)
        router.add_get(one, self._get)
        router.add_put(one, self._replace)
        router.add_delete(one, self._delete)
        router.add_patch(one, self._patch)
        router.add_get(one + "/{status:status}", self._get)
        router.add_patch(one + "/{status:status}", self._patch)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        try:
            self._authenticate(request)
            fault = self.faults.next_for(request)
            if fault is not None:
                request[_FAULT] = fault
                if fault.harm not in WATCH_HARMS and (spoiled := await _suffer(request, fault)):
                    return spoiled
            return await _answered(request, handler)
        except ApiError as error:
            return web.json_response(error.status, status=error.code)
        except web.HTTPNotFound:
            return web.json_response(status(404, "the server could not find the requested resource"), status=404)

    def _authenticate(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self.token and (scheme.lower(), token) != ("bearer", self.token):
            raise ApiError(401, "Unauthorized")

    async def _list(self, request: web.Request) -> web.StreamResponse:
        resource, namespace = _where(request)
        query = request.query
        chosen = selector(resource, fields=query.get("fieldSelector", ""), labels=query.get("labelSelector", ""))
        version = _number(query.get("resourceVersion", ""))
        if is_watch(request):
            watch = Watch(
                resource,
                namespace,
                chosen,
                since=version or None,
                bookmarks=query.get("allowWatchBookmarks", "").lower() in ("1", "true"),
                bookmark_seconds=self.bookmark_seconds,
                timeout_seconds=float(query.get("timeoutSeconds") or 1800),
            )
            return await self._watch(request, watch)
        if version is not None and version > self.store.version:
            raise ApiError(504, f"Timeout: Too large resource version: {version}, current: {self.store.version}")
        limit = _number(query.get("limit", "")) or 0
        if token := query.get("continue", ""):
            return answer(self.pages.following(KINDS[resource], token, limit))
        items = [item for item in self.store.objects(resource, namespace=namespace) if chosen(item)]
        return answer(self.pages.first(KINDS[resource], Snapshot(self.store.version, items), limit))

    async def _watch(self, request: web.Request, watch: Watch) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.open_watches += 1
        try:
            await watch.serve(self.store, response, fault=request.get(_FAULT))
        except ConnectionError:
            pass
        finally:
            self.open_watches -= 1
        if _FAULT in request and request.transport is not None:
            request.transport.close()
        return response

    async def _get(self, request: web.Request) -> web.StreamResponse:
        resource, namespace = _where(request)
        return answer(self.store.get(resource, request.match_info["name"], namespace=namespace))

    async def _create(self, request: web.Request) -> web.StreamResponse:
        resource, namespace = _where(request)
        body = await _body(request)
        if (body.get("metadata") or {}).get("resourceVersion"):
            raise ApiError(400, "resourceVersion should not be set on objects to be created")
        made = self.store.create(resource, body, namespace=namespace)
        return answer(made, status=201)

    async def _replace(self, request: web.Request) -> web.StreamResponse:
        resource, namespace = _where(request)
        name = request.match_info["name"]
        return answer(self.store.replace(resource, name, await _body(request), namespace=namespace))

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        resource, namespace = _where(request)
        if request.content_type not in _PATCHES:
            raise ApiError(415, f"the body of the request was in an unknown format: {request.content_type}")
        patched = self.store.patch(
            resource,
            request.match_info["name"],
            await _body(request),
            namespace=namespace,
            status="status" in request.match_info,
            strategic=request.content_type == _STRATEGIC,
        )
        return answer(patched)

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        resource, namespace = _where(request)
        options = await _body(request) if request.can_read_body else {}
        grace = options.get("gracePeriodSeconds", _number(request.query.get("gracePeriodSeconds", "")))
        gone = self.store.delete(
            resource,
            request.match_info["name"],
            namespace=namespace,
            grace=grace,
            preconditions=options.get("preconditions"),
        )
        return answer(gone)

    async def _bind(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        target, meta, name = body.get("target") or {}, body.get("metadata") or {}, request.match_info["name"]
        if meta.get("name", name) != name:
            raise ApiError(400, "name in URL does not match name in Binding object")
        if target.get("kind", "Node") not in ("Node", ""):
            raise ApiError(500, f'target.kind: Unsupported value: "{target["kind"]}"')  # no 422 (seen on 1.36)
        if not target.get("name"):
            raise ApiError(500, "target.name: Required value")
        _, namespace = _where(request)
        self.store.bind(name, target["name"], namespace=namespace, meta=meta)
        return answer({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}, status=201)


def _where(request: web.Request) -> tuple[str, str]:
    resource = request.match_info.get("resource", "pods")
    return resource, request.match_info.get("namespace", "") if KINDS[resource].namespaced else ""


def _number(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise ApiError(400, f'"{text}" is not a number')
    return int(text)


async def _body(request: web.Request) -> JsonObject:
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise ApiError(400, f"the body of the request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body of the request is not an object")
    return body


async def _suffer(request: web.Request, fault: Fault) -> web.StreamResponse | None:
    match fault.harm:
        case Harm.STATUS:
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            return answer(status(fault.code, "injected fault"), status=fault.code, headers=headers)
        case Harm.BODY:
            return web.Response(body=fault.body, content_type="application/json")
        case Harm.HANG:
            await asyncio.Event().wait()
        case Harm.SLOW:
            await asyncio.sleep(fault.seconds)
        case Harm.RESET:
            return _hung_up(request)
    return None


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    answer = await handler(request)
    fault = request.get(_FAULT)
    return _hung_up(request) if fault is not None and fault.harm is Harm.LOST else answer


def _hung_up(request: web.Request) -> web.StreamResponse:
    """The client is gone: no answer arrives."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _review(request: web.Request) -> web.StreamResponse:
    return answer(reviewed(request.path, await _body(request)), status=201)


async def _who_asks(request: web.Request) -> web.StreamResponse:
    return answer(who_asks(await _body(request), request.headers.get("Authorization", "")), status=201)


async def _version(_: web.Request) -> web.StreamResponse:
    return answer(_VERSION)


async def _healthy(_: web.Request) -> web.StreamResponse:
    return web.Response(text="ok")
