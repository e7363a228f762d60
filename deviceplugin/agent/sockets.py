"""`vcuda.sock` of each share, kept equal to the ledger: open from the proof at PreStartContainer to the grant's end.

In: the ledger's transitions. Out: servers opened and closed; after a restart of the agent all are back at once. What a
container registers is carried out by `container_watch`. A base path too long for sockets is said once.
"""

import asyncio

import structlog

from deviceplugin.container.gpu_manager.registration import LONGEST_PATH, RegistrationServers
from deviceplugin.ledger.grant import GrantId
from deviceplugin.ledger.ledger import Ledger, Transition

log = structlog.get_logger("vcuda.agent")
_AFTER_ANSWER_S = 0.02  # kubelet has its answer first; no container starts that fast


class GrantSockets:
    """`run` until it is cancelled."""

    def __init__(self, ledger: Ledger, servers: RegistrationServers) -> None:
        self._ledger = ledger
        self._servers = servers
        self._due = asyncio.Event()
        self._due.set()
        self._has_complained = False
        ledger.subscribe(self._changed)

    async def run(self) -> None:
        try:
            while True:
                await self._due.wait()
                await asyncio.sleep(_AFTER_ANSWER_S)
                self._due.clear()
                await self._settle()
        finally:
            await self._servers.close_all()

    async def _settle(self) -> None:
        wanted = self._wanted()
        for grant in self._servers.open_grants - wanted:
            await self._servers.close(grant)
        for grant in wanted - self._servers.open_grants:
            if not await self._servers.open(grant) and not self._has_complained:
                self._has_complained = True
                log.warning(
                    "containers with vcuda-controller's client cannot register",
                    path=str(self._servers.path(grant)),
                    cause=f"a socket's path has {LONGEST_PATH} bytes at most and its directory must be there; "
                    "check --virtual-manager-path",
                )

    def _wanted(self) -> frozenset[GrantId]:
        return frozenset(
            grant.id for grant in self._ledger.grants() if grant.proved and grant.allocation.request.is_share
        )

    def _changed(self, transition: Transition) -> None:
        self._due.set()
