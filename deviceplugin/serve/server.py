"""A server: its routes, its bounds, and an orderly end. Every door of the product is one of these.

In: routes by path, listening sockets. Out: answers, from `listen` until `stop`. Every bad input gets one sentence with
the right status, every bug one general sentence and a line in the log. Work for a client that has gone ends at its next
turn (`latest.others_turn`); all else that was begun for it runs to its end, such as a Binding.

Bodies and answers are bounded in memory: each route has its own room, and of an unknown peer only a part of it. The
beginning of a body needs no room: a connection buffers that much in any case, and nearly all bodies are shorter. So
they always pass.
"""

import errno
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
import structlog

from deviceplugin.errors import ConfigError
from deviceplugin.serve.connection import HttpConnection
from deviceplugin.serve.connections import ConnectionLimits, Connections
from deviceplugin.serve.messages import HttpError, HttpRequest, HttpResponse, Route, failure, no_such_path
from deviceplugin.serve.rooms import Key, Room

log = structlog.get_logger("vcuda.http")
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # localhost may have an address of a family that is off here
_PEERS = 4  # this many may use all of a room, each for one body of the largest size


class Limits(msgspec.Struct, frozen=True):
    """`read`: seconds in which a peer must have read a part of its answer. Sizes in bytes.

    `free` of a body needs no room. `room`: for all bodies of a route; None for four of the largest size. `answers`: for
    all large answers to strangers; a peer may have a quarter.
    """

    connections: ConnectionLimits = msgspec.field(default_factory=ConnectionLimits)
    read: float = 10.0
    free: int = 64 << 10
    room: int | None = None
    answers: int = 32 << 20


class Server:
    """`find` says under which path the routes have a path; their paths are named to who asks for another.

    While `stopping`, each connection ends with its next answer. `held` are the bytes of bodies and answers in memory.
    With `are_known` all callers are trusted: nobody but a known program reaches the socket.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        find: Callable[[str], str] = lambda path: path,
        bug: str = "internal error; see the log",
        limits: Limits | None = None,
        are_known: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routes = routes
        self._find = find
        self._bug = bug
        self._limits = limits or Limits()
        self._are_known = are_known
        self.read_s = self._limits.read
        self.clock = clock
        self.stopping = False
        self.held: Counter[Key] = Counter()
        self.connections = Connections(self, self._limits.connections, are_known=are_known)

    def listen(self, listening: socket.socket, context: ssl.SSLContext | None = None) -> None:
        self.connections.listen(listening, context)

    async def stop(self, *, within: float) -> None:
        """Requests in flight have `within` seconds."""
        self.stopping = True
        await self.connections.close(within=within)

    # What a connection asks.

    def route(self, request: HttpRequest) -> Route:
        route = self._routes.get(self._find(request.path))
        if route is None:
            raise no_such_path(self._routes)
        if request.method not in route.methods:
            wanted = ",".join(route.methods)
            raise HttpError(
                405, "malformed", f"{request.method[:20]} is not allowed on this path; use {wanted}", Allow=wanted
            )
        return route

    def body_room(self, request: HttpRequest, route: Route, size: int) -> Room | None:
        if size <= self._limits.free:
            return None
        most = _PEERS * route.largest if self._limits.room is None else self._limits.room
        return self._room("body", request, route, most)

    def answer_room(self, request: HttpRequest, route: Route | None) -> Room:
        return self._room("answer", request, route, self._limits.answers)

    def _room(self, what: str, request: HttpRequest, route: Route | None, most: int) -> Room:
        path = self._find(request.path) if what == "body" else ""
        limits: dict[Key, int] = {(what, path): most}
        if not (self._are_known or (route is not None and route.is_trusted)):
            limits[(what, path, request.peer)] = most // _PEERS
        return Room(self.held, limits, free=self._limits.free)

    async def answer(self, request: HttpRequest, route: Route) -> HttpResponse:
        """Raises nothing but a cancellation."""
        try:
            return await route.answer(request)
        except Exception as error:
            return failure(error, path=request.raw_path, bug=self._bug)[0]

    def lost(self, connection: HttpConnection) -> None:
        self.connections.lost(connection)


def bind_tcp(address: str, port: int, *, address_flag: str, port_flag: str) -> list[socket.socket]:
    """Listening sockets at each address of a host name that this machine has, all on one port; 0 takes any free one.

    Any error of the kernel becomes a ConfigError that names the flag.
    """
    bound: list[socket.socket] = []
    refused: OSError | None = None
    try:
        for family, host in _places(address):
            try:
                taken = bound[0].getsockname()[1] if bound else port
                bound.append(socket.create_server((host, taken), family=family))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                refused = error
        if refused and not bound:
            raise refused
    except OSError as error:
        for one in bound:
            one.close()
        raise ConfigError(_why_not(address, port, error, address_flag, port_flag)) from None
    return bound


def _places(address: str) -> list[tuple[socket.AddressFamily, str]]:
    """IPv4 first, each address once."""
    found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return sorted({(family, str(place[0])) for family, _, _, _, place in found}, key=lambda place: place[0])


def _why_not(address: str, port: int, error: OSError, address_flag: str, port_flag: str) -> str:
    if isinstance(error, socket.gaierror):
        return f"{address_flag}: {address} cannot be resolved; use an address of this machine, or 0.0.0.0 for all"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address_flag}: {address} is not an address of this machine; use one that is, or 0.0.0.0 for all"
    if error.errno == errno.EADDRINUSE:
        return f"{port_flag}: port {port} on {address} is in use; stop what listens there or give another port"
    return f"{port_flag}: cannot listen on port {port} of {address}: {os.strerror(error.errno or 0).lower()}"
