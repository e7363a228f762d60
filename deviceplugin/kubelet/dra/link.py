"""Keeps the driver registered with kubelet: kubelet restarts, a socket is deleted, another agent takes over.

In: kubelet's directories; later, when the agent is ready, the claims. Out: two sockets: one that kubelet's plugin
watcher finds in `plugins_registry`, and one in a directory of the driver's own, which the first names. Kubelet dials
the first again after each of its own starts, so the agent has nothing to do then but to learn of it. The names of both
are new in each process: kubelet calls the one that registered last, so an agent that starts is registered while its
predecessor still serves, and no call of kubelet's fails between them. Invariant: the driver's socket serves before the
other one names it.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import structlog

from deviceplugin.errors import KubeletError
from deviceplugin.kubelet.dra.prepare import Claims
from deviceplugin.kubelet.dra.service import VERSIONS, DraService, Forwarding, HealthService
from deviceplugin.kubelet.grpc_endpoint import Endpoint, RegistryService, SocketWatch, is_served
from deviceplugin.kubelet.registration import RegistrationTimer
from deviceplugin.model.gpu import Inventory
from deviceplugin.wire import dra_health_pb2_grpc, dra_pb2_grpc

log = structlog.get_logger("vcuda.dra")
_LAST_CALLS_S = 5.0
"""Longer than a call that need not wait for room; kubelet repeats one that fails after a minute."""


class DraLink:
    """From `start` to `stop`. `root` is kubelet's. Calls wait for `serve`, or go to the agent that still serves.

    `run` until it is cancelled does the same for a group of tasks, also after `start`.
    """

    def __init__(self, *, driver: str, root: Path, pool: str) -> None:
        name = secrets.token_hex(4)  # another agent of the node may still serve beside this one
        self._sockets = (root / "plugins" / driver, "dra-*.sock")
        self._registries = (root / "plugins_registry", f"{driver}-*-reg.sock")
        self._service = DraService(Forwarding(self._others))
        self.health = HealthService(pool)
        self._own = Endpoint(
            self._sockets[0] / f"dra-{name}.sock",
            partial(dra_pb2_grpc.add_DRAPluginServicer_to_server, self._service),
            partial(dra_health_pb2_grpc.add_DRAResourceHealthServicer_to_server, self.health),
        )
        registry = RegistryService(
            driver, kind="DRAPlugin", versions=VERSIONS, endpoint=str(self._own.path), on_registered=self._registered
        )
        self._found = Endpoint(self._registries[0] / f"{driver}-{name}-reg.sock", registry=registry)
        self._on_registered: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None
        self.is_registered = False
        self._serves = False

    @property
    def is_serving(self) -> bool:
        """Kubelet has taken the driver, and this agent answers."""
        return self.is_registered and self._serves

    @property
    def sockets(self) -> tuple[Path, ...]:
        """Those that should answer now."""
        return (self._own.path, self._found.path)

    def serve(self, claims: Claims, inventory: Callable[[], Inventory], *, on_registered: Callable[[], None]) -> None:
        """From now on this agent answers. `on_registered` is called each time kubelet has taken it, and if it has."""
        self._service.serve(claims)
        self.health.serve(inventory, claims.name)
        self._on_registered = on_registered
        self._serves = True
        if self.is_registered:
            on_registered()

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._bind(), name="sockets for claims")

    async def run(self) -> None:
        self.start()
        assert self._task is not None
        await self._task

    async def stop(self) -> None:
        if self._task is None:
            return
        if not self._task.cancelling():  # a second cancel would interrupt the last calls
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _bind(self) -> None:
        timer = RegistrationTimer()
        watch = SocketWatch(self._found.path.parent, {self._found.path.name})
        try:
            while True:
                if not self._is_in_place and timer.may_try():
                    await self._try_to_bind(timer)
                await watch.wait(at_rest=self._is_in_place)
        finally:
            watch.stop()
            # Kubelet finds the driver no more, then the streams end, for which the server waits.
            await self._found.stop()
            self.health.end()
            await self._own.stop(grace=_LAST_CALLS_S)

    @property
    def _is_in_place(self) -> bool:
        return self._own.is_in_place() and self._found.is_in_place()

    def remove_dead(self) -> None:
        """The sockets of agents that were killed: kubelet would go on dialling them. Raises OSError."""
        own = {path.name for path in self.sockets}
        for folder, pattern in (self._registries, self._sockets):
            for path in folder.glob(pattern):
                if path.name not in own and not is_served(path):
                    path.unlink(missing_ok=True)

    def _others(self) -> Iterable[Path]:
        folder, pattern = self._sockets
        return [path for path in folder.glob(pattern) if path.name != self._own.path.name]

    def _registered(self) -> None:
        self.is_registered = True
        self._on_registered()

    async def _try_to_bind(self, timer: RegistrationTimer) -> None:
        try:
            await self._found.stop()  # kubelet must not find a driver that does not serve yet
            await self._own.start()
            await self._found.start()
        except KubeletError as error:
            if timer.failed():
                log.warning("dra_socket_failed", error=error.message)
        else:
            timer.succeeded()
