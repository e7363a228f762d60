"""One connection of a known scheduler: its requests parsed by httptools, and answered in their order.

In: bytes. Out: bytes. A request that comes while another is answered waits, and the socket is not read meanwhile. After
a refusal the connection ends, because the rest of that request may still be on its way. Bodies have the limits of
`body`, but no peer is told from another.
"""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

import httptools

from deviceplugin.cluster.http.answers import Answers, HttpAnswer, sentence
from deviceplugin.cluster.http.body import BodyRoom, check_size, cut, most_of, slow
from deviceplugin.cluster.http.verbs import HttpError, Verb
from deviceplugin.latest import CALLER_HAS_GONE

_MOST_HEAD = 64 << 10
_LINGER_S = 1.0
_TEXT, _JSON = b"text/plain; charset=utf-8", b"application/json"
_HEAD = b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nDate: %s\r\n%s\r\n"
_CLOSE = b"Connection: close\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Listener(Protocol):
    """What a connection knows of all of them."""

    verbs: dict[bytes, Verb]
    answers: Answers
    held: Counter[tuple[str, ...]]
    stopping: bool

    def opened(self, connection: "VerbConnection") -> None: ...
    def used(self, connection: "VerbConnection") -> None: ...
    def closed(self, connection: "VerbConnection") -> None: ...


@dataclass(frozen=True, slots=True)
class _Due:
    """Complete. `keeps`: the client wants to use the connection again."""

    verb: Verb
    body: bytes
    room: BodyRoom
    keeps: bool


@dataclass(slots=True)
class _Arriving:
    """The part of a request that is here. `verb` and the `room` of its body are known when its headers are complete."""

    path: bytes = b""
    head: int = 0
    expects_continue: bool = False
    verb: Verb | None = None
    room: BodyRoom | None = None
    parts: list[bytes] = field(default_factory=list)
    size: int = 0


class VerbConnection(asyncio.Protocol):
    """`since`: monotonic time of the last request's begin or end; `is_receiving`: a part of a request is here."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._arriving: _Arriving | None = None
        self._due: deque[_Due | HttpAnswer] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._is_paused = False
        self._ends = False  # nothing more is read
        self.since = time.monotonic()
        self.served = False

    @property
    def is_receiving(self) -> bool:
        return self._arriving is not None

    @property
    def is_busy(self) -> bool:
        """Or it ends by itself."""
        return self._answering is not None or self._arriving is not None or self._ends

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._listener.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Long work for the client ends at its next turn, and what follows is not begun.

        The parser refers to this object, and would be a cycle.
        """
        self._drop_due()
        if self._arriving is not None and self._arriving.verb is not None:
            self._listener.answers.refused(self._arriving.verb, cut())
        self._forget()
        self._ends, self._transport, self._parser = True, None, None
        self._listener.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._ends or self._transport is None or self._parser is None:
            return
        if self._answering is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(_plain(400, "the request is not HTTP/1.1"))
            return
        if self._arriving is not None and self._arriving.verb is None:
            self._arriving.head += len(data)
            if self._arriving.head > _MOST_HEAD:
                self._refuse(_plain(431, "the headers are too large"))

    # What the parser calls: after a refusal too, for what is left of the bytes that it was given.

    def on_message_begin(self) -> None:
        if not self._ends:
            self._arriving = _Arriving()
            self.since = time.monotonic()

    def on_url(self, url: bytes) -> None:
        if self._arriving is not None:
            self._arriving.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._arriving is not None and name.lower() == b"expect":
            self._arriving.expects_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        arriving, parser, transport = self._arriving, self._parser, self._transport
        if arriving is None or parser is None or transport is None:
            return
        verb = self._listener.verbs.get(arriving.path.partition(b"?")[0])
        if verb is None:
            paths = b", ".join(sorted(self._listener.verbs)).decode()
            self._refuse(_plain(404, f"no such path on this port; the paths are {paths}"))
        elif parser.get_method() != b"POST":
            self._refuse(_plain(405, f"only POST is allowed on /{verb.name}"))
        else:
            arriving.verb = verb
            arriving.room = BodyRoom(self._listener.held, {(verb.name,): most_of(verb)})
            if arriving.expects_continue and self._answering is None:
                transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        arriving = self._arriving
        if arriving is None or arriving.verb is None or arriving.room is None:
            return
        arriving.size += len(body)
        arriving.parts.append(body)
        try:
            check_size(arriving.size, arriving.verb)
            arriving.room.grow(arriving.size)
        except HttpError as error:
            self._refuse_body(arriving.verb, error)

    def on_message_complete(self) -> None:
        arriving, self._arriving = self._arriving, None
        if arriving is None or arriving.verb is None or arriving.room is None or self._parser is None:
            return
        body = b"".join(arriving.parts)
        self._add(_Due(arriving.verb, body, arriving.room, self._parser.should_keep_alive()))

    # What the listener calls.

    def refuse_slow(self, within: float) -> None:
        late = slow(within)
        if self._arriving is not None and self._arriving.verb is not None:
            self._refuse_body(self._arriving.verb, late)
        else:
            self._refuse(_plain(late.status, late.sentence))

    def close_if_idle(self) -> None:
        if not self.is_busy and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What becomes of a request.

    def _refuse_body(self, verb: Verb, why: HttpError) -> None:
        self._refuse(self._listener.answers.refused(verb, why))

    def _refuse(self, answer: HttpAnswer) -> None:
        self._forget()
        self._ends = True
        self._add(answer)

    def _forget(self) -> None:
        arriving, self._arriving = self._arriving, None
        if arriving is not None and arriving.room is not None:
            arriving.room.leave()

    def _add(self, due: _Due | HttpAnswer) -> None:
        self._due.append(due)
        if self._answering is None:
            self._answering = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        try:
            while self._due:
                self._send(*await self._next(self._due.popleft()))
        finally:
            self._answering = None
        self.since = time.monotonic()
        self._listener.used(self)
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    async def _next(self, due: _Due | HttpAnswer) -> tuple[HttpAnswer, bool]:
        """The answer, and whether another request may follow."""
        if isinstance(due, HttpAnswer):
            return due, False
        listener = self._listener
        working = CALLER_HAS_GONE.set(self._has_gone)
        try:
            answer = await listener.answers.counted(due.verb, due.body)
        finally:
            CALLER_HAS_GONE.reset(working)
            due.room.leave()
        self.served = self.served or answer.status == HTTPStatus.OK
        return answer, due.keeps and not answer.closes and not listener.stopping

    def _drop_due(self) -> None:
        for due in self._due:
            if isinstance(due, _Due):
                due.room.leave()
        self._due.clear()

    def _has_gone(self) -> bool:
        return self._transport is None

    def _send(self, answer: HttpAnswer, keeps: bool) -> None:
        if self._transport is None:
            return
        kind = _JSON if answer.status == HTTPStatus.OK else _TEXT
        reason = HTTPStatus(answer.status).phrase.encode()
        ending = b"" if keeps else _CLOSE
        head = _HEAD % (answer.status, reason, kind, len(answer.body), _date(int(time.time())), ending)
        self._transport.write(head + answer.body)
        if not keeps:
            self._drop_due()
            self._end(self._transport)

    def _end(self, transport: asyncio.Transport) -> None:
        """After a refusal the rest is read and dropped: a close before would reset the connection, and the answer."""
        if not self._ends:
            self._ends = True
            transport.close()
        else:
            asyncio.get_running_loop().call_later(_LINGER_S, transport.close)


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


def _plain(status: int, text: str) -> HttpAnswer:
    return HttpAnswer(status, sentence(text), "refused", closes=True)
