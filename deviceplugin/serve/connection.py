"""One connection of HTTP/1.1: its requests parsed by httptools, and answered in their order.

In: bytes. Out: bytes. A request that comes while another is answered waits, and the socket is not read meanwhile; more
than a few that wait end the connection, because no client of ours sends a request before the last one is answered.
After a refusal the connection ends too, because the rest of that request may still be on its way.

Bounds for every sender: the bytes and the number of headers; the bytes of a body, which needs a length; seconds until a
request is whole; bytes of answers that are not read, and seconds until they are. Only bytes that have arrived count,
because a declared length costs its sender nothing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

import httptools
import msgspec

from deviceplugin.latest import CALLER_HAS_GONE
from deviceplugin.serve.messages import (
    HttpError,
    HttpRequest,
    HttpResponse,
    Route,
    certificate_names,
    cut,
    refusal,
    slow,
    too_large,
)
from deviceplugin.serve.rooms import Room

_MOST_HEAD = 32 << 10
_MOST_HEADERS = 64  # clients send ten
_MOST_DUE = 64
_PIECE = 64 << 10
_MOST_UNREAD = 64 << 10  # bytes of answers; asyncio's default with TLS is 512 KiB
_LINGER_S = 1.0
_HEAD = b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nDate: %s\r\n%s\r\n"
_CLOSE = b"Connection: close\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Door(Protocol):
    """What a connection knows of its server."""

    stopping: bool
    read_s: float
    clock: Callable[[], float]

    def route(self, request: HttpRequest) -> Route:
        """HttpError if there is none, or none for this method."""

    def body_room(self, request: HttpRequest, route: Route, size: int) -> Room | None:
        """None for a body of this size that needs none."""

    def answer_room(self, request: HttpRequest, route: Route | None) -> Room: ...
    async def answer(self, request: HttpRequest, route: Route) -> HttpResponse:
        """Raises nothing but a cancellation."""

    def lost(self, connection: "HttpConnection") -> None: ...


class _Arriving(msgspec.Struct):
    """The part of a request that is here. `request`, `route` and `room` are known when its headers are complete.

    `lines`: how many headers came, in `written` bytes, also of names that came before.
    """

    target: bytes = b""
    headers: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    lines: int = 0
    written: int = 0
    head: int = 0
    request: HttpRequest | None = None
    route: Route | None = None
    room: Room | None = None
    expects_continue: bool = False
    parts: list[bytes] = msgspec.field(default_factory=list)
    size: int = 0


class _Due(msgspec.Struct, frozen=True):
    """A whole request, or one that is answered without its body. `keeps`: the client wants to use the connection."""

    request: HttpRequest | None = None
    route: Route | None = None
    room: Room | None = None
    keeps: bool = False
    response: HttpResponse | None = None

    def leave(self) -> None:
        if self.room is not None:
            self.room.leave()


class HttpConnection(asyncio.Protocol):
    """`since`: monotonic time of the last request's begin or end; `known`: the peer has shown who it is.

    `served`: a request was answered with success.
    """

    def __init__(self, door: Door, peer: str, *, known: bool) -> None:
        self._door = door
        self.peer = peer
        self.known = known
        self.served = False
        self.since = self._door.clock()
        self._names: frozenset[str] = frozenset()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._arriving: _Arriving | None = None
        self._due: deque[_Due] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_paused = False
        self._is_writing = False
        self._ends = False  # nothing more is read

    @property
    def is_receiving(self) -> bool:
        return self._arriving is not None

    @property
    def is_working(self) -> bool:
        """The peer waits for what is worked on, and not for an answer that it does not read."""
        return self._arriving is not None or (self._answering is not None and not self._is_writing)

    @property
    def is_busy(self) -> bool:
        """Or it ends by itself."""
        return self._answering is not None or self._arriving is not None or self._ends

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(_MOST_UNREAD)
        self._transport = transport
        if certificate := transport.get_extra_info("peercert"):
            self._names, self.known = certificate_names(certificate), True

    def connection_lost(self, exc: BaseException | None) -> None:
        """Long work for the client ends at its next turn, and what follows is not begun.

        The parser refers to this object, and would be a cycle.
        """
        self._drop_due()
        if self._arriving is not None and self._arriving.route is not None:
            self._arriving.route.refused(cut())
        self._forget()
        self._ends, self._transport, self._parser = True, None, None
        self._may_write.set()
        self._door.lost(self)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        if self._ends or self._transport is None or self._parser is None:
            return
        if self._answering is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(HttpError(400, "malformed", "the request is not HTTP/1.1"))
            return
        if self._arriving is not None and self._arriving.request is None:
            self._arriving.head += len(data)
            if self._arriving.head > _MOST_HEAD:
                self._refuse(_headers_too_large())
        elif self._arriving is not None and self._arriving.expects_continue and self._answering is None:
            self._arriving.expects_continue = False
            self._transport.write(_CONTINUE)

    # What the parser calls: after a refusal too, for what is left of the bytes that it was given.

    def on_message_begin(self) -> None:
        if not self._ends:
            self._arriving = _Arriving()
            self.since = self._door.clock()

    def on_url(self, url: bytes) -> None:
        if self._arriving is not None:
            self._arriving.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        arriving = self._arriving
        if arriving is not None:
            arriving.headers.setdefault(name.lower(), value)
            arriving.lines += 1
            arriving.written += len(name) + len(value)
            if arriving.lines > _MOST_HEADERS:
                self._refuse(_headers_too_large())

    def on_headers_complete(self) -> None:
        arriving, parser = self._arriving, self._parser
        if arriving is None or parser is None:
            return
        method = parser.get_method().decode()
        request = HttpRequest(method, arriving.target, arriving.headers, self.peer, self._names, self._has_gone)
        arriving.request = request
        try:
            if arriving.written > _MOST_HEAD:
                raise _headers_too_large()
            arriving.route = self._door.route(request)
            arriving.route.check(request)
            self._expect_body(arriving, request, arriving.route)
        except HttpError as error:
            if arriving.route is not None:
                arriving.route.refused(error)
            self._refuse(error)

    def on_body(self, body: bytes) -> None:
        arriving = self._arriving
        if arriving is None or arriving.route is None:
            return
        arriving.size += len(body)
        arriving.parts.append(body)
        try:
            _check_size(arriving.size, arriving.route)
            if arriving.room is not None:
                arriving.room.grow(arriving.size)
        except HttpError as error:
            arriving.route.refused(error)
            self._refuse(error)

    def on_message_complete(self) -> None:
        arriving, self._arriving = self._arriving, None
        if arriving is None or arriving.request is None or arriving.route is None or self._parser is None:
            return
        arriving.request.body = b"".join(arriving.parts)
        if arriving.room is not None and not arriving.route.is_trusted:
            arriving.room.leave()  # it waits for its turn in a room of another kind (`cluster.http.server`)
        self._add(_Due(arriving.request, arriving.route, arriving.room, self._parser.should_keep_alive()))

    # What the server calls.

    def refuse_slow(self, within: float) -> None:
        late = slow(within)
        if self._arriving is not None and self._arriving.route is not None:
            self._arriving.route.refused(late)
        self._refuse(late)

    def close_if_idle(self) -> None:
        if not self.is_busy and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What becomes of a request.

    def _expect_body(self, arriving: _Arriving, request: HttpRequest, route: Route) -> None:
        headers = request.headers
        if headers.get(b"transfer-encoding"):
            # A chunk may be one byte: its wrapping would cost a hundred times what it carries, and is not counted.
            raise HttpError(411, "no_length", "the body needs a Content-Length; chunks are not read")
        if headers.get(b"content-encoding", b"") not in (b"", b"identity"):
            raise HttpError(415, "malformed", "the body is packed; send it without a Content-Encoding")
        length = headers.get(b"content-length", b"")
        size = int(length) if length.isdigit() else 0
        _check_size(size, route)
        arriving.room = self._door.body_room(request, route, size)
        arriving.expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"

    def _refuse(self, error: HttpError) -> None:
        self._forget()
        self._ends = True
        self._add(_Due(response=refusal(error)))

    def _forget(self) -> None:
        arriving, self._arriving = self._arriving, None
        if arriving is not None and arriving.room is not None:
            arriving.room.leave()

    def _add(self, due: _Due) -> None:
        if len(self._due) >= _MOST_DUE and due.response is None:
            due.leave()
            self._refuse(HttpError(400, "malformed", "too many requests that wait for their answers on one connection"))
            return
        self._due.append(due)
        if self._answering is None:
            self._answering = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        CALLER_HAS_GONE.set(self._has_gone)
        try:
            while self._due and self._transport is not None:
                await self._answer_one(self._due.popleft())
                if self._due:
                    await asyncio.sleep(0)  # the others' turn: a peer can send thousands of requests at once
        finally:
            self._answering = None
        self.since = self._door.clock()
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    async def _answer_one(self, due: _Due) -> None:
        response = due.response
        if due.request is not None and due.route is not None:
            try:
                response = await self._door.answer(due.request, due.route)
            finally:
                due.leave()
            self.served = self.served or (due.route.counts and response.status == HTTPStatus.OK)
        assert response is not None
        await self._send(response, due)

    async def _send(self, response: HttpResponse, due: _Due) -> None:
        self._is_writing, self.since = True, self._door.clock()
        keeps = due.keeps and not response.closes and not self._door.stopping
        body = b"" if due.request is not None and due.request.method == "HEAD" else response.body
        head = _head(response, keeps)
        if len(body) <= _PIECE:
            await self._write(head + body)
        elif due.request is not None:
            keeps = await self._send_large(head, body, due.request, due.route) and keeps
        self._is_writing = False
        if not keeps and self._transport is not None:
            self._drop_due()
            self._end(self._transport)

    async def _send_large(self, head: bytes, body: bytes, request: HttpRequest, route: Route | None) -> bool:
        """Piece by piece, because asyncio takes a buffer of any size and calls it written. False if it has no room."""
        with self._door.answer_room(request, route) as room:
            try:
                room.grow(len(body))
            except HttpError as error:
                await self._write(_head(refusal(error), keeps=False) + refusal(error).body)
                return False
            await self._write(head)
            view = memoryview(body)
            for at in range(0, len(body), _PIECE):
                await self._write(view[at : at + _PIECE])
            return True

    async def _write(self, data: bytes | memoryview) -> None:
        """Waits until a part is read, and gives a peer up that reads too slowly."""
        if self._transport is None:
            return
        self._transport.write(data)
        if self._may_write.is_set():
            return
        try:
            async with asyncio.timeout(self._door.read_s):
                await self._may_write.wait()
        except TimeoutError:
            self.abort()
            self._transport = None

    def _drop_due(self) -> None:
        for due in self._due:
            due.leave()
        self._due.clear()

    def _has_gone(self) -> bool:
        return self._transport is None

    def _end(self, transport: asyncio.Transport) -> None:
        """After a refusal the rest is read and dropped: a close before would reset the connection, and the answer."""
        if not self._ends:
            self._ends = True
            transport.close()
        else:
            asyncio.get_running_loop().call_later(_LINGER_S, transport.close)


def _check_size(size: int, route: Route) -> None:
    if size > route.largest:
        raise too_large(route.largest, route.instead)


def _headers_too_large() -> HttpError:
    return HttpError(431, "malformed", "the headers are too large")


def _head(response: HttpResponse, keeps: bool) -> bytes:
    more = b"" if keeps else _CLOSE
    for key, value in response.headers.items():
        more = b"%s: %s\r\n%s" % (key.encode(), value.encode(), more)
    kind, size = response.content_type.encode(), len(response.body)
    return _HEAD % (response.status, _reason(response.status), kind, size, _date(int(time.time())), more)


@lru_cache
def _reason(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode()


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
