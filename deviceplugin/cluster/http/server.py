"""The listener: TLS, idle connections, and an orderly shutdown.

In: a `Router`, an address, an SSL context whose certificate may change at any time. Out: a server from `start` to
`stop`, optionally a second one without TLS on 127.0.0.1: Go's client keeps two idle connections and opens a new one for
each further Bind, and then the handshake is most of the time of a Bind. Shutdown is: report not ready; serve until
clients have noticed (`drain`); close the listeners; finish requests in flight; return.
"""

import asyncio
import ssl
import time
from collections.abc import Callable

from aiohttp import web

from deviceplugin.cluster.http.app import Router
from deviceplugin.cluster.http.body import Bodies
from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.cluster.http.verbs import Service
from deviceplugin.errors import ConfigError
from deviceplugin.listen import bind_tcp

_LOOPBACK = "127.0.0.1"
_IDLE_S = 120.0  # longer than the 90 s after which Go's clients close an idle connection
_NO_REQUEST_S = 15.0
_HANDSHAKE_S = 5.0
_LINGER_S = 1.0  # reads the rest of an unread body, so that its sender sees the answer and not a reset


class SchedulerServer:
    """`port` is the bound port."""

    def __init__(
        self,
        service: Service,
        *,
        context: ssl.SSLContext,
        version: str,
        bodies: Bodies | None = None,
        silent: float = _NO_REQUEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = SchedulerMetrics(service.gauges, version=version)
        self._router = Router(service, self.metrics, bodies=bodies, seen=self._note)
        self._context = context
        self._idle_limit = silent
        self._clock = clock
        self._first_seen: dict[object, float] = {}
        self._has_requested: set[object] = set()
        self._runner: web.ServerRunner | None = None
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, address: str, port: int, *, loopback_port: int = 0, end_within: float = 10.0) -> None:
        """Raises a ConfigError if it cannot listen; without `loopback_port` there is only TLS."""
        server = web.Server(self._router.answer, access_log=None, keepalive_timeout=_IDLE_S, lingering_time=_LINGER_S)
        self._runner = web.ServerRunner(server, shutdown_timeout=end_within)
        await self._runner.setup()
        try:
            await self._listen(address, port, port_flag="--listen-port", tls=True)
            if loopback_port:
                await self._listen(_LOOPBACK, loopback_port, port_flag="--loopback-port", tls=False)
        except ConfigError:
            self._close_listeners()
            await self._runner.cleanup()
            raise
        self.port = self._listeners[0].sockets[0].getsockname()[1]
        self._sweeper = asyncio.create_task(self._sweep(), name="idle connections")

    async def stop(self, *, drain: float = 0.0) -> None:
        if self._runner is None:
            return
        self._router.stopping = True
        await asyncio.sleep(drain)
        self._close_listeners()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._runner.cleanup()
        self._runner = None

    async def _listen(self, address: str, port: int, *, port_flag: str, tls: bool) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        for one in bind_tcp(address, port, address_flag="--listen-addr", port_flag=port_flag):
            listener = await asyncio.get_running_loop().create_server(
                self._runner.server,
                sock=one,
                ssl=self._context if tls else None,
                ssl_handshake_timeout=_HANDSHAKE_S if tls else None,
                ssl_shutdown_timeout=1.0 if tls else None,
                backlog=256,
            )
            self._listeners.append(listener)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _note(self, request: web.BaseRequest) -> None:
        self._has_requested.add(request.protocol)

    async def _sweep(self) -> None:
        """Closes connections without a first complete request; aiohttp times out later ones."""
        while self._runner is not None and self._runner.server is not None:
            now, open_ = self._clock(), self._runner.server.connections
            self._first_seen = {each: self._first_seen.get(each, now) for each in open_}
            self._has_requested.intersection_update(open_)
            for connection in open_:
                if connection not in self._has_requested and now - self._first_seen[connection] >= self._idle_limit:
                    connection.force_close()
            await asyncio.sleep(self._idle_limit / 3)
