"""Compares the ledger's grants of claims with kubelet's record, in both directions, and with what pods name.

In: the ledger, kubelet's record, the API server, the node's pods. Out: ended grants, rebuilt ones, and a report of each
container that holds two.

Kubelet forgets a claim when its record is lost, and nobody tells the driver. A claim has ended if kubelet's record does
not have it and the API server says that it is gone, or given to no pod of this node, in two rounds in a row, and no
process has its files mounted. The other way round, a claim that kubelet recorded and the journal lost is held by its
containers under the name that kubelet wrote down: it is adopted with that name. Nothing is ended because something
could not be read, and nothing is granted before all of it was read (`is_complete`). Device-plugin grants are for
`agent.reconciler`, which in turn does not see these.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator

import structlog

from deviceplugin.errors import ClaimError, KubeNotFoundError, VcudaError
from deviceplugin.kubelet.dra.claim_pods import joined
from deviceplugin.kubelet.dra.prepare import Claims
from deviceplugin.kubelet.dra.state_file import PreparedClaim, StateFile
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import ContainerRef, PodUid
from deviceplugin.model.claims import Claim, ClaimRef, ClaimUid
from deviceplugin.model.pod import Pod, PodContainer

log = structlog.get_logger("vcuda.dra")
_ROUNDS = 2


class ClaimReconciler:
    """`run` until it is cancelled; `reconcile` is one round. `running`: which grants living processes have mounted."""

    def __init__(
        self,
        ledger: Ledger,
        claims: Claims,
        state: StateFile,
        *,
        running: Callable[[Iterable[Grant]], frozenset[str]],
        get_claim: Callable[[ClaimRef], Awaitable[Claim]],
        pods: Callable[[], Iterable[Pod]],
        report_joined: Callable[[PodContainer, Pod, Collection[str]], None],
        period_s: float,
    ) -> None:
        self._ledger = ledger
        self._claims = claims
        self._state = state
        self._get_claim = get_claim
        self._running = running
        self._pods = pods
        self._report_joined = report_joined
        self._told: frozenset[ContainerRef] = frozenset()
        self._period_s = period_s
        self._rounds: dict[ClaimUid, int] = {}
        self._given_up: set[ClaimUid] = set()
        self._is_complete = False

    def is_complete(self) -> bool:
        """Whether the ledger had every claim of kubelet's record once; later ones it always has."""
        if not self._is_complete:
            try:
                self._is_complete = not any(self._lost())
            except VcudaError as error:
                log.warning("claims_not_compared", error=error.message)
        return self._is_complete

    async def run(self) -> None:
        while True:
            await self.reconcile()
            await asyncio.sleep(self._period_s if self.is_complete() else min(self._period_s, 1.0))

    async def reconcile(self) -> None:
        """Errors are logged, never raised."""
        try:
            for each in tuple(self._lost()):
                await self._adopt(each)
            await self._end_forgotten()
            self._tell_joined()
        except VcudaError as error:
            log.warning("claims_not_compared", error=error.message)

    def _lost(self) -> Iterator[PreparedClaim]:
        """Claims whose containers may hold a grant that the ledger does not have."""
        for uid, prepared in self._state.read().claims.items():
            if prepared.cdi and uid not in self._given_up and not self._ledger.of_pod(PodUid(uid)):
                yield prepared

    async def _adopt(self, prepared: PreparedClaim) -> None:
        try:
            grants = await self._claims.rebuilt(prepared, created=time.time())
        except (ClaimError, KubeNotFoundError) as error:
            self._given_up.add(prepared.ref.uid)  # nothing says what it holds; kubelet ends it with its pods
            log.warning("claim_not_rebuilt", claim=str(prepared.ref), error=error.message)
            return
        for grant in self._ledger.adopt(grants):
            log.warning("claim_rebuilt", claim=str(prepared.ref), grant=grant.id)

    async def _end_forgotten(self) -> None:
        held: dict[ClaimRef, list[Grant]] = {}
        for grant in self._ledger.grants():
            if grant.source is Source.CLAIM:
                owner = grant.allocation.owner.pod
                held.setdefault(ClaimRef(ClaimUid(owner.uid), owner.namespace, owner.name), []).append(grant)
        known = self._state.read().claims
        self._rounds = {ref.uid: self._rounds.get(ref.uid, 0) + 1 for ref in held if await self._is_over(ref, known)}
        for ref, grants in held.items():
            if self._rounds.get(ref.uid, 0) >= _ROUNDS:
                await self._end(ref, grants)

    def _tell_joined(self) -> None:
        """Each container once. A pod may join claims that are prepared, and kubelet does not call for it."""
        requests: dict[tuple[str, str], list[str]] = {}
        for grant in self._ledger.grants():
            if grant.source is Source.CLAIM:
                owner = grant.allocation.owner
                requests.setdefault((owner.pod.namespace, owner.pod.name), []).append(owner.name)
        found = {container.ref: (container, pod, held) for container, pod, held in joined(requests, self._pods())}
        for ref in found.keys() - self._told:
            self._report_joined(*found[ref])
        self._told = frozenset(found)

    async def _is_over(self, ref: ClaimRef, known: Iterable[ClaimUid]) -> bool:
        if ref.uid in known:
            return False
        try:
            claim = await self._get_claim(ref)
        except KubeNotFoundError:
            return True
        return not (self._claims.is_here(claim) and claim.consumers)

    async def _end(self, ref: ClaimRef, grants: list[Grant]) -> None:
        if await asyncio.to_thread(self._running, grants):
            log.warning("claim_kept", claim=str(ref), reason="it has ended, but processes still have its files mounted")
            return
        log.warning("claim_forgotten", claim=str(ref), reason="kubelet does not know it, and its pods are gone")
        await self._claims.unprepare(ref)
