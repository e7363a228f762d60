"""Accepts connections, and bounds how many of them unknown peers keep open.

In: listening sockets, with TLS or without, and aiohttp's server. Out: connections, until `close`.
Known are callers with a verified client certificate. Everybody else can only be told apart by address: the API server
shows no certificate. The two groups have the same bound, each for itself.

A TLS connection takes about 240 KiB from the moment it is accepted, so handshakes count too. Headers and answers that
the peer does not read can take 1 MiB more. If there are too many, the peer with the most loses one: one that was not
answered yet, or else the one that has been idle longest. So a peer that opens many displaces its own connections, and
the API server's and kubelet's stay. A server can also bound the connections of one peer; a peer whose connections all
have got an answer a moment ago is refused another one. A connection that has not been answered is closed after a short
idle time, and aiohttp closes the others.

Half of the descriptors are never given to connections: they are for kubelet's sockets, the journal and other files. If
accept() fails, the next try is after a pause, and the log tells it once a minute.

What a connection held is free as soon as it ends: errors are cut from the frames that refer to both. A cycle would
wait for the collector, which the scheduler runs once an hour over all objects, with 256 KiB for each handshake.
"""

import asyncio
import contextlib
import enum
import ipaddress
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from aiohttp import web, web_protocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from deviceplugin.log import Pace

log = structlog.get_logger("vcuda.connections")
_MOST = 512
_IDLE_S = 15.0
_HANDSHAKE_S = 5.0
_SHUTDOWN_S = 1.0
_BACKLOG = 256
_RETRY_S = 1.0
_MOST_UNREAD = 64 << 10  # bytes of answers; asyncio's default with TLS is 512 KiB
_READ_S = 5.0  # after this, the peer has read its answer or never will
_PART = 4  # of the descriptors
_OPTIONS: Mapping[str, Any] = {
    "max_headers": 24,  # clients send ten
    "max_field_size": 4096,  # name and value of each header
    "access_log": None,
    "keepalive_timeout": 120.0,  # longer than the 90 s after which Go's clients close an idle connection
    "lingering_time": 1.0,  # reads the rest of an unread body, so that its sender sees the answer and not a reset
}
# aiohttp reads so many requests of a connection ahead, while the peer does not read its answer: 32 with the largest
# headers are 20 MiB. No client of ours sends a request before the last one is answered.
web_protocol.MAX_MSG_QUEUE_SIZE = 1


def is_loopback(peer: str | None) -> bool:
    """Whether a peer address is a loopback address; an IPv4 address may be mapped into IPv6."""
    if peer == "127.0.0.1":
        return True  # the usual case; parsing takes longer than all other checks of a caller
    try:
        address = ipaddress.ip_address((peer or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def raise_descriptor_limit() -> None:
    """The soft limit is for programs that call select(2); 1,024 descriptors are few for a server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def within_descriptors(most: int) -> int:
    """For each of the two groups."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(_PART, min(most, soft // _PART))


@dataclass(slots=True, eq=False)
class _Connection:
    """`since` is the time of its last request, or of its begin; `served`: a verb was answered with success."""

    peer: str
    since: float
    handshake: asyncio.Task[None]
    socket: socket.socket
    known: bool = False
    busy: bool = False
    served: bool = False


class ClosedBecause(enum.Enum):
    """Why a connection was closed from here."""

    DISPLACED = "displaced"
    REFUSED = "refused"
    SILENT = "silent"


CLOSED = (
    "displaced by a new one while too many were open, refused because its address has its part, or silent for too long"
)


class _Handler(RequestHandler):
    """One request of a connection for each turn of the event loop, and no line in the log for what is no HTTP.

    A peer can send thousands of requests a second.
    """

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(_MOST_UNREAD)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """What was read ahead may be an error: it refers to frames, and these to the handler."""
        for message, _ in self._messages:
            if (error := getattr(message, "exc", None)) is not None:
                error.__traceback__ = None
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """From Python 3.12 on, aiohttp begins the next request of the connection at once, and no other has its turn."""
        finished = await super().finish_response(request, resp, start_time)
        await asyncio.sleep(0)
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        exc.__traceback__ = None
        response = web.Response(status=status, text="the request is not HTTP/1.1, or its headers are too large\n")
        response.force_close()
        return response


class Connections:
    """`open` are those that are open or in their handshake, by handler; a peer may have one of `parts` of all.

    `on_closed` is called for each that is closed from here.
    """

    def __init__(
        self, *, most: int = _MOST, parts: int = 1, idle: float = _IDLE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = within_descriptors(most)
        self._most_of_one = max(1, self._most // parts)
        self._pace = Pace(clock=clock)
        self._idle = idle
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self.open: dict[object, _Connection] = {}
        self.on_closed: Callable[[ClosedBecause], None] = lambda _: None

    def listen(self, listening: socket.socket, server: web.Server, context: ssl.SSLContext | None) -> None:
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        accepting = self._accept(listening, server, context)
        self._tasks.append(asyncio.create_task(accepting, name="accept connections"))
        self._tasks[-1].add_done_callback(lambda _: listening.close())
        if len(self._tasks) == 1:
            self._tasks.append(asyncio.create_task(self._sweep(), name="idle connections"))

    def stop_listening(self) -> None:
        """Open connections stay."""
        for task in self._tasks:
            task.cancel()
        for connection in self.open.values():
            connection.handshake.cancel()

    def began(self, handler: object, *, has_certificate: bool) -> None:
        """A request came."""
        if connection := self.open.get(handler):
            connection.busy = True
            connection.known = connection.known or has_certificate

    def ended(self, handler: object, *, served: bool) -> None:
        if connection := self.open.get(handler):
            connection.busy, connection.since = False, self._clock()
            connection.served = connection.served or served

    async def _accept(self, listening: socket.socket, server: web.Server, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await readable(listening)
                accepted, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                self._tell("accept_failed", error=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            if self._make_room(address[0]):
                accepted.setblocking(False)
                handler = _Handler(server, loop=loop, **_OPTIONS)
                handshake = loop.create_task(_connect(accepted, handler, context), name="handshake")
                handshake.add_done_callback(partial(_close_failed, accepted, handler))
                self.open[handler] = _Connection(address[0], self._clock(), handshake, accepted)
            else:
                accepted.close()
                self.on_closed(ClosedBecause.REFUSED)
            await asyncio.sleep(0)  # the others' turn: accepting does not wait while there is one to accept

    def _make_room(self, peer: str) -> bool:
        """Whether this peer gets one more connection, if need be in the place of another."""
        if len(self.open) < min(self._most, self._most_of_one):
            return True
        self._forget_closed()
        group = {handler: each for handler, each in self.open.items() if not each.known}
        counts = Counter(each.peer for each in group.values())
        is_own_part = counts[peer] >= self._most_of_one < self._most
        if len(group) < self._most and not is_own_part:
            return True
        largest = counts[peer] if is_own_part else max(counts.values())
        peers = {peer} if is_own_part else {each for each, count in counts.items() if count == largest}
        self._tell("connections_full", peer=min(peers), connections=largest, most=self._most)
        candidates = [handler for handler, each in group.items() if each.peer in peers]
        last = min(candidates, key=lambda handler: _worth(group[handler]))
        if is_own_part and self._is_in_use(group[last]):
            return False
        self._drop(last, ClosedBecause.DISPLACED)
        return True

    def _is_in_use(self, connection: _Connection) -> bool:
        return connection.busy or (connection.served and self._clock() - connection.since < _READ_S)

    def _drop(self, handler: object, reason: ClosedBecause) -> None:
        """At once: asyncio would keep the descriptor of a peer that reads nothing until it has written everything."""
        connection = self.open.pop(handler)
        assert isinstance(handler, RequestHandler)
        handler.force_close()
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.handshake.cancel()
        self.on_closed(reason)

    def _forget_closed(self) -> None:
        self.open = {
            handler: each
            for handler, each in self.open.items()
            if not each.handshake.done() or each.socket.fileno() >= 0
        }

    async def _sweep(self) -> None:
        """aiohttp closes the served ones."""
        while True:
            self._forget_closed()
            now = self._clock()
            for handler, each in list(self.open.items()):
                if not (each.busy or each.served) and now - each.since >= self._idle:
                    self._drop(handler, ClosedBecause.SILENT)
            await asyncio.sleep(self._idle / 3)

    def _tell(self, event: str, **fields: object) -> None:
        """Once a minute: peers can cause this thousands of times a second."""
        if self._pace.allows(event):
            log.warning(event, **fields)


def _worth(connection: _Connection) -> tuple[bool, bool, float]:
    """The least is dropped first."""
    return connection.busy, connection.served, connection.since


async def readable(one: socket.socket) -> None:
    """Not `sock_accept`: if it is cancelled at the wrong moment, the accepted socket is lost and stays open."""
    loop, descriptor = asyncio.get_running_loop(), one.fileno()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _connect(accepted: socket.socket, handler: RequestHandler, context: ssl.SSLContext | None) -> None:
    """Raises OSError: no TLS, or gone, or late."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: handler,
            accepted,
            ssl=context,
            ssl_handshake_timeout=_HANDSHAKE_S if context else None,
            ssl_shutdown_timeout=_SHUTDOWN_S if context else None,
        )
    except BaseException as error:
        error.__traceback__ = None
        raise


def _close_failed(accepted: socket.socket, handler: RequestHandler, handshake: asyncio.Task[None]) -> None:
    """Also of a task that was cancelled before it began: nothing else has the socket then."""
    if handshake.cancelled() or handshake.exception() is not None:
        accepted.close()
        handler.connection_lost(None)  # otherwise it and its parser refer to each other
