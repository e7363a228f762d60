"""Ends the grants of claims that kubelet will never unprepare.

In: the ledger's grants of claims, kubelet's record, the API server. Out: ended grants. Kubelet forgets a claim when its
record is lost, and nobody tells the driver. A claim has ended if kubelet's record does not have it and the API server
says that it is gone, or given to no pod of this node, in two rounds in a row, and no process has its files mounted.
Nothing is ended because something could not be read. Device-plugin grants are for `agent.reconciler`, which in turn
does not see these.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from deviceplugin.errors import KubeNotFoundError, VcudaError
from deviceplugin.kubelet.dra.prepare import Claims
from deviceplugin.kubelet.dra.state_file import StateFile
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.claims import Claim, ClaimRef, ClaimUid

log = structlog.get_logger("vcuda.dra")
_ROUNDS = 2


class ClaimReconciler:
    """`run` until it is cancelled; `reconcile` is one round."""

    def __init__(
        self,
        ledger: Ledger,
        claims: Claims,
        state: StateFile,
        *,
        get_claim: Callable[[ClaimRef], Awaitable[Claim]],
        running: Callable[[Iterable[Grant]], frozenset[str]],
        driver: str,
        pool: str,
        period_s: float,
    ) -> None:
        self._ledger = ledger
        self._claims = claims
        self._state = state
        self._get_claim = get_claim
        self._running = running
        self._driver = driver
        self._pool = pool
        self._period_s = period_s
        self._rounds: dict[ClaimUid, int] = {}

    async def run(self) -> None:
        while True:
            await self.reconcile()
            await asyncio.sleep(self._period_s)

    async def reconcile(self) -> None:
        """Errors are logged, never raised."""
        held: dict[ClaimRef, list[Grant]] = {}
        for grant in self._ledger.grants():
            if grant.source is Source.CLAIM:
                owner = grant.allocation.owner.pod
                held.setdefault(ClaimRef(ClaimUid(owner.uid), owner.namespace, owner.name), []).append(grant)
        try:
            known = self._state.read().claims
            rounds = {ref.uid: self._rounds.get(ref.uid, 0) + 1 for ref in held if await self._is_over(ref, known)}
        except VcudaError as error:
            log.warning("claims_not_compared", error=error.message)
            return
        self._rounds = rounds
        for ref, grants in held.items():
            if rounds.get(ref.uid, 0) >= _ROUNDS:
                await self._end(ref, grants)

    async def _is_over(self, ref: ClaimRef, known: Iterable[ClaimUid]) -> bool:
        if ref.uid in known:
            return False
        try:
            claim = await self._get_claim(ref)
        except KubeNotFoundError:
            return True
        here = any(each.driver == self._driver and each.pool == self._pool for each in claim.devices or ())
        return not (here and claim.consumers)

    async def _end(self, ref: ClaimRef, grants: list[Grant]) -> None:
        if await asyncio.to_thread(self._running, grants):
            log.warning("claim_kept", claim=str(ref), reason="it has ended, but processes still have its files mounted")
            return
        log.warning("claim_forgotten", claim=str(ref), reason="kubelet does not know it, and its pods are gone")
        await self._claims.unprepare(ref)
