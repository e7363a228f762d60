"""The listener: TLS, connections that never ask anything, and an end in order.

In: a `Front`, an address, an SSL context that may change its certificate at any time. Out: a server from `start` to
`stop`; beside it, where it is wanted, the same without TLS on 127.0.0.1: Go's client keeps two idle connections and
opens a new one for each further Bind, and then the handshake is most of what a Bind costs. Stopping is: not ready, so
that nobody is sent here any more; serve for the time that takes; close the doors; end what is under way; and only then
return.
"""

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Callable

from aiohttp import web

from deviceplugin.cluster.http.app import Front
from deviceplugin.cluster.http.body import Bodies
from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.cluster.http.verbs import Service
from deviceplugin.errors import ConfigError

_LOOPBACK = "127.0.0.1"
_IDLE_S = 120.0  # longer than the 90 s after which Go's clients drop a connection themselves
_SILENT_S = 15.0
_HANDSHAKE_S = 5.0
_LINGER_S = 1.0  # for the rest of a body that nobody reads, so that its sender sees the answer and not a reset


class SchedulerServer:
    """`port` is the one that is bound."""

    def __init__(
        self,
        service: Service,
        *,
        context: ssl.SSLContext,
        version: str,
        bodies: Bodies | None = None,
        silent: float = _SILENT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = SchedulerMetrics(service.figures, version=version)
        self._front = Front(service, self.metrics, bodies=bodies, seen=self._note)
        self._context = context
        self._silent = silent
        self._clock = clock
        self._met: dict[object, float] = {}
        self._asked: set[object] = set()
        self._runner: web.ServerRunner | None = None
        self._listeners: list[asyncio.Server] = []
        self._sweeping: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, address: str, port: int, *, loopback_port: int = 0, end_within: float = 10.0) -> None:
        """ConfigError where it cannot listen; without a `loopback_port` all is over TLS."""
        server = web.Server(self._front.answer, access_log=None, keepalive_timeout=_IDLE_S, lingering_time=_LINGER_S)
        self._runner = web.ServerRunner(server, shutdown_timeout=end_within)
        await self._runner.setup()
        try:
            await self._listen(address, port, tls=True)
            if loopback_port:
                await self._listen(_LOOPBACK, loopback_port, tls=False)
        except ConfigError:
            self._close_doors()
            await self._runner.cleanup()
            raise
        self.port = self._listeners[0].sockets[0].getsockname()[1]
        self._sweeping = asyncio.create_task(self._sweep(), name="silent connections")

    async def stop(self, *, drain: float = 0.0) -> None:
        if self._runner is None:
            return
        self._front.stopping = True
        await asyncio.sleep(drain)
        self._close_doors()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self._runner.cleanup()
        self._runner = None

    async def _listen(self, address: str, port: int, *, tls: bool) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        try:
            listener = await asyncio.get_running_loop().create_server(
                self._runner.server,
                address,
                port,
                ssl=self._context if tls else None,
                ssl_handshake_timeout=_HANDSHAKE_S if tls else None,
                ssl_shutdown_timeout=1.0 if tls else None,
                reuse_address=True,
                backlog=256,
            )
        except OSError as error:
            flags = "--listen-" if tls else "--loopback-"
            raise ConfigError(_refusal(flags, address, port, error)) from None
        self._listeners.append(listener)

    def _close_doors(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _note(self, request: web.BaseRequest) -> None:
        self._asked.add(request.protocol)

    async def _sweep(self) -> None:
        """A connection that asks nothing, or only half of something, is closed; aiohttp sees to later requests."""
        while self._runner is not None and self._runner.server is not None:
            now, open_ = self._clock(), self._runner.server.connections
            self._met = {each: self._met.get(each, now) for each in open_}
            self._asked.intersection_update(open_)
            for connection in open_:
                if connection not in self._asked and now - self._met[connection] >= self._silent:
                    connection.force_close()
            await asyncio.sleep(self._silent / 3)


def _refusal(flags: str, address: str, port: int, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"--listen-addr: {address} has no address; give one of this machine, or 0.0.0.0 for all"
    if error.errno == errno.EADDRINUSE:
        return f"{flags}port: port {port} on {address} is in use; stop what listens there or give another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--listen-addr: {address} is no address of this machine; give one that is, or 0.0.0.0 for all"
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return f"{flags}port: port {port} on {address} cannot be listened on: {reason}"
