"""The listener: TLS, and an orderly shutdown.

In: a `Router`, an address, an SSL context whose certificate may change at any time. Out: a server from `start` to
`stop`, optionally a second one without TLS on 127.0.0.1: Go's client keeps two idle connections and opens a new one for
each further Bind, and then the handshake is most of the time of a Bind. Shutdown is: report not ready; serve until
clients have noticed (`drain`); close the listeners; finish requests in flight; return.
"""

import asyncio
import socket
import ssl

from aiohttp import web

from deviceplugin.cluster.http.answers import Answers
from deviceplugin.cluster.http.app import Router
from deviceplugin.cluster.http.body import Bodies
from deviceplugin.cluster.http.loopback import USUAL, LoopbackLimits, LoopbackListener
from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.cluster.http.verbs import Service
from deviceplugin.connections import Connections
from deviceplugin.errors import ConfigError
from deviceplugin.listen import bind_tcp

_LOOPBACK = "127.0.0.1"


class SchedulerServer:
    """`port` is the bound port."""

    def __init__(
        self,
        service: Service,
        *,
        context: ssl.SSLContext,
        version: str,
        bodies: Bodies | None = None,
        connections: Connections | None = None,
        loopback_limits: LoopbackLimits = USUAL,
        metrics_period: float = 1.0,
    ) -> None:
        self.metrics = SchedulerMetrics(service.gauges, version=version)
        self._connections = connections or Connections()
        self._connections.on_closed = self.metrics.connection_closed
        answers = Answers(service, self.metrics)
        restricted = tuple(each for each in service.verbs if each.is_restricted)
        self._beside = LoopbackListener(restricted, answers, loopback_limits, self.metrics.connection_closed)
        self._router = Router(
            service, self.metrics, answers, bodies=bodies, connections=self._connections, metrics_period=metrics_period
        )
        self._context = context
        self._runner: web.ServerRunner | None = None
        self._end_within = 0.0
        self.port = 0

    async def start(self, address: str, port: int, *, loopback_port: int = 0, end_within: float = 10.0) -> None:
        """Raises a ConfigError if it cannot listen; without `loopback_port` there is only TLS."""
        server = web.Server(self._router.answer)
        self._runner = web.ServerRunner(server, shutdown_timeout=end_within)
        await self._runner.setup()
        bound: list[socket.socket] = []
        try:
            bound += _bind(address, port, port_flag="--listen-port")
            plain = _bind(_LOOPBACK, loopback_port, port_flag="--loopback-port") if loopback_port else []
        except ConfigError:
            for each in bound:
                each.close()
            await self._runner.cleanup()
            raise
        for each in bound:
            self._connections.listen(each, server, self._context)
        for each in plain:
            await self._beside.start(each)
        self._end_within = end_within
        self.port = bound[0].getsockname()[1]

    @property
    def held_bodies(self) -> int:
        """Bytes of bodies that came by the loopback port and are in memory."""
        return self._beside.held.total()

    async def stop(self, *, drain: float = 0.0) -> None:
        if self._runner is None:
            return
        self._router.stopping = self._beside.stopping = True
        await asyncio.sleep(drain)
        self._connections.stop_listening()
        await asyncio.gather(self._beside.stop(within=self._end_within), self._runner.cleanup())
        self._runner = None


def _bind(address: str, port: int, *, port_flag: str) -> list[socket.socket]:
    return bind_tcp(address, port, address_flag="--listen-addr", port_flag=port_flag)
