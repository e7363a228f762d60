"""Accepts connections, and bounds how many of them unknown peers keep open.

In: listening sockets, with TLS or without, and the factory of aiohttp's protocols. Out: connections, until `close`.
Known are callers of the listener without TLS, which is on loopback only, and those with a verified client certificate.
Everybody else can only be told apart by address: the API server shows no certificate.

A TLS connection takes about 240 KiB from the moment it is accepted, so handshakes count too. If there are too many, the
peer with the most loses the one that has been idle longest. So a peer that opens many displaces its own connections,
and the API server's stay. One that has not been answered as the API server's are is closed after a short idle time.
"""

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from aiohttp.web_protocol import RequestHandler

log = structlog.get_logger("vcuda.http")
_MOST = 512
_IDLE_S = 15.0
_HANDSHAKE_S = 5.0
_SHUTDOWN_S = 1.0
_BACKLOG = 256
_RETRY_S = 1.0

_Handler = RequestHandler
_Factory = Callable[[], _Handler]


@dataclass(slots=True, eq=False)
class _Connection:
    """`since` is the time of its last request, or of its begin; `served`: a verb was answered with success."""

    peer: str
    since: float
    known: bool
    handshake: asyncio.Task[None]
    busy: bool = False
    served: bool = False


class Connections:
    """`open` are those that are open or in their handshake, by handler."""

    def __init__(
        self, *, most: int = _MOST, idle: float = _IDLE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._idle = idle
        self._clock = clock
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.open: dict[object, _Connection] = {}

    def listen(self, listening: socket.socket, factory: _Factory, context: ssl.SSLContext | None) -> None:
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._sockets.append(listening)
        self._tasks.append(asyncio.create_task(self._accept(listening, factory, context), name="accept connections"))
        if len(self._tasks) == 1:
            self._tasks.append(asyncio.create_task(self._sweep(), name="idle connections"))

    def stop_listening(self) -> None:
        """Open connections stay."""
        for task in self._tasks:
            task.cancel()
        for each in self._sockets:
            each.close()
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

    async def _accept(self, listening: socket.socket, factory: _Factory, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.warning("accept_failed", error=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            self._make_room()
            handler = factory()
            handshake = loop.create_task(_connect(accepted, handler, context), name="handshake")
            self.open[handler] = _Connection(address[0], self._clock(), context is None, handshake)
            await asyncio.sleep(0)  # the others' turn: accepting does not wait while there is one to accept

    def _make_room(self) -> None:
        if len(self.open) < self._most:
            return
        self._forget_closed()
        unknown = {handler: each for handler, each in self.open.items() if not each.known}
        if len(unknown) < self._most:
            return
        counts = Counter(each.peer for each in unknown.values())
        largest = max(counts.values())
        candidates = [handler for handler, each in unknown.items() if counts[each.peer] == largest]
        self._drop(min(candidates, key=lambda handler: (unknown[handler].busy, unknown[handler].since)))

    def _drop(self, handler: object) -> None:
        self.open.pop(handler).handshake.cancel()
        assert isinstance(handler, RequestHandler)
        handler.force_close()

    def _forget_closed(self) -> None:
        for handler, connection in list(self.open.items()):
            assert isinstance(handler, RequestHandler)
            if connection.handshake.done() and handler.transport is None:
                del self.open[handler]

    async def _sweep(self) -> None:
        """aiohttp closes the served ones."""
        while True:
            self._forget_closed()
            now = self._clock()
            for handler, each in list(self.open.items()):
                if not (each.busy or each.served) and now - each.since >= self._idle:
                    self._drop(handler)
            await asyncio.sleep(self._idle / 3)


async def _connect(accepted: socket.socket, handler: RequestHandler, context: ssl.SSLContext | None) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: handler,
            accepted,
            ssl=context,
            ssl_handshake_timeout=_HANDSHAKE_S if context else None,
            ssl_shutdown_timeout=_SHUTDOWN_S if context else None,
        )
    except OSError:
        return  # no TLS, or gone, or late; asyncio has closed the socket
