"""Keeps the driver registered with kubelet, also when kubelet restarts or a socket is deleted.

In: the services, kubelet's directories. Out: two sockets: one that kubelet's plugin watcher finds in
`plugins_registry`, and one in a directory of the driver's own, which the first names. Kubelet dials the first again
after each of its own starts, so the agent has nothing to do then but to learn of it. Invariant: the driver's socket
serves before the other one names it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from deviceplugin.errors import KubeletError
from deviceplugin.kubelet.dra.service import VERSIONS, DraService, HealthService
from deviceplugin.kubelet.grpc_endpoint import Endpoint, RegistryService
from deviceplugin.kubelet.registration import RegistrationTimer
from deviceplugin.kubelet.socket_watch import SocketWatch
from deviceplugin.wire import dra_health_pb2_grpc, dra_pb2_grpc

log = structlog.get_logger("vcuda.dra")
_SOCKET = "dra.sock"


class DraLink:
    """`run` until it is cancelled. `root` is kubelet's; `on_registered` is called each time kubelet has taken it."""

    def __init__(
        self,
        service: DraService,
        health: HealthService,
        *,
        driver: str,
        root: Path,
        on_registered: Callable[[], None],
    ) -> None:
        self._own = Endpoint(
            root / "plugins" / driver / _SOCKET,
            partial(dra_pb2_grpc.add_DRAPluginServicer_to_server, service),
            partial(dra_health_pb2_grpc.add_DRAResourceHealthServicer_to_server, health),
        )
        registry = RegistryService(
            driver, kind="DRAPlugin", versions=VERSIONS, endpoint=str(self._own.path), on_registered=on_registered
        )
        self._found = Endpoint(root / "plugins_registry" / f"{driver}-reg.sock", registry=registry)

    @property
    def sockets(self) -> tuple[Path, ...]:
        """Those that should answer now."""
        return (self._own.path, self._found.path)

    async def run(self) -> None:
        timer = RegistrationTimer()
        watch = SocketWatch(self._found.path.parent, {self._found.path.name})
        try:
            while True:
                if not (self._own.is_in_place() and self._found.is_in_place()) and timer.may_try():
                    await self._try_to_bind(timer)
                await watch.wait()
        finally:
            watch.stop()
            await self._found.stop()
            await self._own.stop()

    async def _try_to_bind(self, timer: RegistrationTimer) -> None:
        try:
            await self._found.stop()
            await self._own.start()
            await self._found.start()
        except KubeletError as error:
            if timer.failed():
                log.warning("dra_socket_failed", error=error.message)
        else:
            timer.succeeded()
