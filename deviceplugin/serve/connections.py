"""Accepts connections, and bounds how many of them unknown peers keep open.

In: listening sockets, with TLS or without. Out: connections, until `close`. Known are callers with a verified client
certificate. Everybody else can only be told apart by address: the API server shows no certificate. The two groups have
the same bound, each for itself.

A TLS connection takes about 240 KiB from the moment it is accepted, so handshakes count too. If there are too many, the
peer with the most loses one: one that was not answered yet, or else the one that has been idle longest. So a peer that
opens many displaces its own connections, and the API server's and kubelet's stay. The connections of one peer can be
bounded too; a peer whose connections all have got an answer a moment ago is refused another one. A connection that has
not been answered is closed after a short idle time, and one that has been after a longer one.

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
from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from deviceplugin.log import Pace
from deviceplugin.serve.connection import Door, HttpConnection

log = structlog.get_logger("vcuda.connections")
_HANDSHAKE_S = 5.0
_SHUTDOWN_S = 1.0
_BACKLOG = 256
_RETRY_S = 1.0
_JUST_ANSWERED_S = 5.0  # after this, the peer has read its answer or never will
_PART = 4  # of the descriptors


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


class ClosedBecause(enum.Enum):
    """Why a connection was closed from here."""

    DISPLACED = "displaced"
    REFUSED = "refused"
    SILENT = "silent"


CLOSED = (
    "displaced by a new one while too many were open, refused because its address has its part, or silent for too long"
)


class ConnectionLimits(msgspec.Struct, frozen=True):
    """`most` connections of strangers, and as many of known callers; one peer may have one of `parts` of them.

    Seconds: `arrive` for a request to be whole, `silent` before the first answer, `idle` after it; `sweep` between two
    looks at all connections.
    """

    most: int = 512
    parts: int = 1
    arrive: float = 10.0
    silent: float = 15.0
    idle: float = 120.0  # longer than the 90 s after which Go's clients close an idle connection
    sweep: float = 2.0


class _Open(msgspec.Struct):
    """`handshake` makes the connection; `socket` is its own."""

    handshake: asyncio.Task[None]
    socket: socket.socket

    @property
    def is_open(self) -> bool:
        return not self.handshake.done() or self.socket.fileno() >= 0


class Connections:
    """`open` are those that are open or in their handshake. `on_closed` is called for each that is closed from here."""

    def __init__(self, door: Door, limits: ConnectionLimits, *, are_known: bool) -> None:
        self._door = door
        self._limits = limits
        self._are_known = are_known
        self._most = within_descriptors(limits.most)
        self._most_of_one = max(1, self._most // limits.parts)
        self._clock = door.clock
        self._pace = Pace(clock=door.clock)
        self._accepting: list[asyncio.Task[None]] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._none_open = asyncio.Event()
        self._none_open.set()
        self.open: dict[HttpConnection, _Open] = {}
        self.on_closed: Callable[[ClosedBecause], None] = lambda _: None

    def listen(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._accepting.append(asyncio.create_task(self._accept(listening, context), name="accept connections"))
        self._accepting[-1].add_done_callback(lambda _: listening.close())
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(), name="idle connections")

    async def close(self, *, within: float) -> None:
        """No new ones; idle ones end at once, the others after their answers, or when the time is over."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)  # the port is free for the next server
        for connection, each in tuple(self.open.items()):
            if each.handshake.done():
                connection.close_if_idle()
            else:
                each.handshake.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._none_open.wait()
        for connection in tuple(self.open):
            connection.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_S):
                await self._none_open.wait()
        if self._sweeping is not None:
            self._sweeping.cancel()

    def lost(self, connection: HttpConnection) -> None:
        self.open.pop(connection, None)
        if not self.open:
            self._none_open.set()

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
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
                self._begin(accepted, address[0], context)
            else:
                accepted.close()
                self.on_closed(ClosedBecause.REFUSED)
            await asyncio.sleep(0)  # the others' turn: accepting does not wait while there is one to accept

    def _begin(self, accepted: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        accepted.setblocking(False)
        connection = HttpConnection(self._door, peer, known=self._are_known)
        handshake = asyncio.create_task(_connect(accepted, connection, context), name="handshake")
        handshake.add_done_callback(partial(self._close_failed, accepted, connection))
        self.open[connection] = _Open(handshake, accepted)
        self._none_open.clear()

    def _close_failed(self, accepted: socket.socket, connection: HttpConnection, handshake: asyncio.Task[None]) -> None:
        """Also of a task that was cancelled before it began: nothing else has the socket then."""
        if handshake.cancelled() or handshake.exception() is not None:
            accepted.close()
            connection.connection_lost(None)  # otherwise it and its parser refer to each other

    def _make_room(self, peer: str) -> bool:
        """Whether this peer gets one more connection, if need be in the place of another."""
        if len(self.open) < min(self._most, self._most_of_one):
            return True
        self._forget_closed()
        group = [each for each in self.open if each.known is self._are_known]
        counts = Counter(each.peer for each in group)
        is_own_part = counts[peer] >= self._most_of_one < self._most
        if len(group) < self._most and not is_own_part:
            return True
        largest = counts[peer] if is_own_part else max(counts.values())
        peers = {peer} if is_own_part else {each for each, count in counts.items() if count == largest}
        self._tell("connections_full", peer=min(peers), connections=largest, most=self._most)
        last = min((each for each in group if each.peer in peers), key=_worth)
        if is_own_part and self._is_in_use(last):
            return False
        self._drop(last, ClosedBecause.DISPLACED)
        return True

    def _is_in_use(self, connection: HttpConnection) -> bool:
        return connection.is_working or (connection.served and self._clock() - connection.since < _JUST_ANSWERED_S)

    def _drop(self, connection: HttpConnection, reason: ClosedBecause) -> None:
        """At once: asyncio would keep the descriptor of a peer that reads nothing until it has written everything."""
        one = self.open.pop(connection)
        connection.abort()
        with contextlib.suppress(OSError):
            one.socket.shutdown(socket.SHUT_RDWR)
        one.handshake.cancel()
        self.on_closed(reason)

    def _forget_closed(self) -> None:
        for connection, one in tuple(self.open.items()):
            if not one.is_open:
                self.lost(connection)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._limits.sweep)
            self._forget_closed()
            now = self._clock()
            for connection in tuple(self.open):
                self._check(connection, now - connection.since)

    def _check(self, connection: HttpConnection, seconds: float) -> None:
        limits = self._limits
        if connection.is_receiving:
            if seconds >= limits.arrive:
                connection.refuse_slow(limits.arrive)
                self.on_closed(ClosedBecause.SILENT)
        elif not connection.is_busy and seconds >= (limits.idle if connection.served else limits.silent):
            if connection.served:
                connection.close_if_idle()
            else:
                self._drop(connection, ClosedBecause.SILENT)

    def _tell(self, event: str, **fields: object) -> None:
        """Once a minute: peers can cause this thousands of times a second."""
        if self._pace.allows(event):
            log.warning(event, **fields)


def _worth(connection: HttpConnection) -> tuple[bool, bool, float]:
    """The least is dropped first."""
    return connection.is_working, connection.served, connection.since


async def readable(one: socket.socket) -> None:
    """Not `sock_accept`: if it is cancelled at the wrong moment, the accepted socket is lost and stays open."""
    loop, descriptor = asyncio.get_running_loop(), one.fileno()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _connect(accepted: socket.socket, connection: HttpConnection, context: ssl.SSLContext | None) -> None:
    """Raises OSError: no TLS, or gone, or late."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection,
            accepted,
            ssl=context,
            ssl_handshake_timeout=_HANDSHAKE_S if context else None,
            ssl_shutdown_timeout=_SHUTDOWN_S if context else None,
        )
    except BaseException as error:
        error.__traceback__ = None
        raise
