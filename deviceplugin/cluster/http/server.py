"""The scheduler's doors: one with TLS for everybody, and one without on 127.0.0.1 for a scheduler in the same pod.

In: a `Service`, an address, an SSL context whose certificate may change at any time. Out: servers from `start` to
`stop`. Go's client keeps two idle connections and opens a new one for each further Bind; with TLS the handshake is most
of the time of a Bind, which the second door saves. The end is: report not ready; serve until clients have noticed
(`drain`); accept nothing new; finish requests in flight; return.
"""

import asyncio
import socket
import ssl

from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.cluster.http.routes import BUG, Routes, place_of
from deviceplugin.cluster.http.verbs import Service
from deviceplugin.errors import ConfigError
from deviceplugin.serve.server import Limits, Server, bind_tcp

_LOOPBACK = "127.0.0.1"


class SchedulerServer:
    """`port` is the bound port."""

    def __init__(
        self,
        service: Service,
        *,
        context: ssl.SSLContext,
        version: str,
        limits: Limits | None = None,
        metrics_period: float = 1.0,
    ) -> None:
        self.metrics = SchedulerMetrics(service.gauges, version=version)
        self._routes = Routes(service, self.metrics, metrics_period=metrics_period)
        self._everybody = Server(self._routes.every, find=place_of, bug=BUG, limits=limits)
        self._beside = Server(self._routes.restricted, bug=BUG, limits=limits, are_known=True)
        self._servers = (self._everybody, self._beside)
        for each in self._servers:
            each.connections.on_closed = self.metrics.connection_closed
        self._context = context
        self._end_within = 0.0
        self.port = 0

    async def start(self, address: str, port: int, *, loopback_port: int = 0, end_within: float = 10.0) -> None:
        """Raises a ConfigError if it cannot listen; without `loopback_port` there is only TLS."""
        bound = _bind(address, port, port_flag="--listen-port")
        try:
            plain = _bind(_LOOPBACK, loopback_port, port_flag="--loopback-port") if loopback_port else []
        except ConfigError:
            for each in bound:
                each.close()
            raise
        for each in bound:
            self._everybody.listen(each, self._context)
        for each in plain:
            self._beside.listen(each)
        self._end_within = end_within
        self.port = bound[0].getsockname()[1]

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies and answers in memory now."""
        return sum(each.held.total() for each in self._servers) + self._routes.held.total()

    async def stop(self, *, drain: float = 0.0) -> None:
        self._routes.stopping = True
        for each in self._servers:
            each.stopping = True
        await asyncio.sleep(drain)
        await asyncio.gather(*(each.stop(within=self._end_within) for each in self._servers))


def _bind(address: str, port: int, *, port_flag: str) -> list[socket.socket]:
    return bind_tcp(address, port, address_flag="--listen-addr", port_flag=port_flag)
