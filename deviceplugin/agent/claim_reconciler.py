"""Compares the grants of claims with kubelet's record and with what pods name, and writes the status of each claim.

In: the ledger, kubelet's record, the API server, the node's pods, the GPUs' health. Out: ended grants, rebuilt ones, a
report of each container that holds two, and `status.devices` of the claims. Device-plugin grants are for
`agent.reconciler`, which in turn does not see these.

Kubelet forgets a claim when its record is lost, and nobody tells the driver. A claim has ended if kubelet's record does
not have it and the API server says that it is gone, or given to no pod of this node, in two rounds in a row, and no
process has its files mounted. The other way round, a claim that kubelet recorded and the journal lost is held by its
containers under the name that kubelet wrote down: it is adopted with that name on those of its GPUs that are here, and
waits for the others. It is given up only if the API server says that it is gone. Nothing is ended because something
could not be read, and nothing is granted before all of it was read (`is_complete`). What one claim lacks is nothing to
the others.

`ClaimStatus` writes what was prepared for a claim, and when one of its GPUs fails, for `kubectl describe`: behind the
answers to kubelet, a few claims a second. Nothing waits for it, and what cannot be written is tried again while the
claim is held. The words are those of the moment of a change, so a claim is written once for each. A claim is first
written when it is a few seconds old: its containers start then, often with those of many others, and kubelet and the
API server have enough to do.
"""

import asyncio
import datetime as dt
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import structlog

from deviceplugin.errors import CapacityError, ClaimError, KubeNotFoundError, VcudaError
from deviceplugin.kube.transport import TokenBucket
from deviceplugin.kubelet.dra.claim_grants import joined
from deviceplugin.kubelet.dra.prepare import Claims
from deviceplugin.kubelet.dra.slice_publisher import device_name
from deviceplugin.kubelet.dra.state_file import PreparedClaim, StateFile
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.log import Pace
from deviceplugin.model.allocation import ContainerRef, GpuShare, PodUid
from deviceplugin.model.claims import Claim, ClaimRef, ClaimUid, DeviceStatus
from deviceplugin.model.gpu import Gpu, Inventory
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.units import memory_text

log = structlog.get_logger("vcuda.dra")
_ROUNDS = 2
_READS = 8  # at once


class _LostClaim(msgspec.Struct, frozen=True):
    """A claim that the journal lost, as it was read last."""

    prepared: PreparedClaim
    claim: Claim


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
        self._ended: set[ClaimUid] = set()
        self._waiting: dict[ClaimUid, _LostClaim] = {}
        self._unwritten: dict[ClaimUid, Claim] = {}
        self._pace = Pace()
        self._is_complete = False
        claims.ended = self._forget

    def is_complete(self) -> bool:
        """Whether the ledger has what is known of kubelet's record, and all of that was read once. Later it always is.

        Asked before each grant: a GPU that came back is first for the claims that were prepared with it.
        """
        try:
            for each in tuple(self._waiting.values()):
                self._adopt(each)
            if not self._is_complete:
                self._is_complete = all(uid in self._waiting for uid in self._lost())
        except VcudaError as error:
            log.warning("claims_not_compared", error=error.message)
            return False
        return self._is_complete

    @property
    def awaits_gpus(self) -> bool:
        """Whether claims that kubelet has as prepared were given GPUs that are not here."""
        return bool(self._waiting)

    async def run(self) -> None:
        while True:
            await self.reconcile()
            await asyncio.sleep(self._period_s if self.is_complete() else min(self._period_s, 1.0))

    async def reconcile(self) -> None:
        """Errors are logged, never raised."""
        try:
            await self._look_at_lost()
            await self._write_files()
            await self._end_forgotten()
            self._tell_joined()
        except VcudaError as error:
            log.warning("claims_not_compared", error=error.message)

    def _lost(self) -> dict[ClaimUid, PreparedClaim]:
        """Claims whose containers may hold a grant that the ledger does not have."""
        return {
            uid: prepared
            for uid, prepared in self._state.read().claims.items()
            if prepared.cdi and uid not in self._ended and not self._ledger.of_pod(PodUid(uid))
        }

    async def _look_at_lost(self) -> None:
        """What one claim says or does not say is nothing to the others."""
        recorded = self._state.read().claims
        self._ended.intersection_update(recorded)
        self._waiting = {uid: each for uid, each in self._waiting.items() if uid in recorded}
        lost = {**{uid: each.prepared for uid, each in self._waiting.items()}, **self._lost()}
        some = asyncio.Semaphore(_READS)

        async def look(prepared: PreparedClaim) -> None:
            async with some:
                await self._look(prepared)

        await asyncio.gather(*map(look, lost.values()))

    async def _look(self, prepared: PreparedClaim) -> None:
        uid = prepared.ref.uid
        try:
            claim = await self._get_claim(prepared.ref)
            if uid not in self._ended:  # meanwhile
                self._waiting[uid] = _LostClaim(prepared, claim)
                self._adopt(self._waiting[uid])
        except KubeNotFoundError as error:
            self._forget(uid)  # nothing says what it holds; kubelet ends it with its pods
            log.warning("claim_not_rebuilt", claim=str(prepared.ref), error=error.message)
        except VcudaError as error:
            self._warn("claim_unread", prepared.ref, error)

    def _adopt(self, known: _LostClaim) -> None:
        """It waits on where GPUs are missing, or where the API server does not say what it was given."""
        ref = known.claim.ref
        try:
            grants = self._claims.adopt(known.prepared, known.claim)
        except (ClaimError, CapacityError) as error:
            self._warn("claim_not_rebuilt", ref, error)
            return
        for grant in grants:
            log.warning("claim_rebuilt", claim=str(ref), grant=grant.id)
        if self._ledger.of_pod(PodUid(ref.uid)) and self._claims.is_all_here(known.claim):
            del self._waiting[ref.uid]
            self._unwritten[ref.uid] = known.claim

    async def _write_files(self) -> None:
        """What fails is tried again: kubelet starts the containers again without a call."""
        for uid, claim in tuple(self._unwritten.items()):
            try:
                await self._claims.write(claim)
            except VcudaError as error:
                self._warn("claim_not_restored", claim.ref, error)
            else:
                self._unwritten.pop(uid, None)

    def _forget(self, uid: ClaimUid) -> None:
        """It is gone, or kubelet ended it: its record stays a little longer."""
        self._ended.add(uid)
        self._waiting.pop(uid, None)
        self._unwritten.pop(uid, None)

    def _warn(self, event: str, ref: ClaimRef, error: VcudaError) -> None:
        if self._pace.allows((event, ref.uid)):
            log.warning(event, claim=str(ref), error=error.message)

    async def _end_forgotten(self) -> None:
        owners = (each.allocation.owner.pod for each in self._ledger.grants() if each.source is Source.CLAIM)
        held = dict.fromkeys(ClaimRef(ClaimUid(owner.uid), owner.namespace, owner.name) for owner in owners)
        known = self._state.read().claims
        over = [ref for ref in held if ref.uid not in known and await self._is_over(ref)]
        self._rounds = {ref.uid: self._rounds.get(ref.uid, 0) + 1 for ref in over}
        for ref in over:
            if self._rounds[ref.uid] >= _ROUNDS and not self._claims.is_called(ref.uid):
                await self._end(ref)

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

    async def _is_over(self, ref: ClaimRef) -> bool:
        """Kubelet records a claim before it calls, so the record is read last."""
        try:
            claim = await self._get_claim(ref)
            is_needed = self._claims.is_here(claim) and bool(claim.consumers)
        except KubeNotFoundError:
            is_needed = False
        except VcudaError as error:
            self._warn("claim_unread", ref, error)
            return False
        return not is_needed and ref.uid not in self._state.read().claims

    async def _end(self, ref: ClaimRef) -> None:
        """To look takes a while, in which kubelet may prepare it for another pod: its call waits."""
        async with self._claims.alone(ref.uid):
            if await asyncio.to_thread(self._running, self._ledger.of_pod(PodUid(ref.uid))):
                reason = "it has ended, but processes still have its files mounted"
                log.warning("claim_kept", claim=str(ref), reason=reason)
            elif await self._is_over(ref):
                log.warning("claim_ended", claim=str(ref), reason="kubelet does not know it, and its pods are gone")
                await self._claims.release(ref)


_LOOK_S = 1.0
_FIRST_AFTER_S = 5.0
_RATE, _BURST = 5.0, 10
Show = Callable[[ClaimRef, str, Sequence[DeviceStatus]], Awaitable[None]]


class _Said(msgspec.Struct, frozen=True):
    """Of one device: ready or not, and why. A change of it is written."""

    request: str
    device: str
    is_ready: bool
    reason: str
    message: str


class ClaimStatus:
    """`run` until it is cancelled. `get_claim` is asked for the ids of shares, which only the claim has."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        inventory: Callable[[], Inventory],
        get_claim: Callable[[ClaimRef], Awaitable[Claim]],
        show: Show,
        driver: str,
        pool: str,
        name: Callable[[Gpu], str] = device_name,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._name = name
        self._ledger = ledger
        self._inventory = inventory
        self._get_claim = get_claim
        self._show = show
        self._driver = driver
        self._pool = pool
        self._written: dict[ClaimUid, frozenset[_Said]] = {}
        self._bucket = TokenBucket(rate=_RATE, burst=_BURST)

    async def run(self) -> None:
        while True:
            await self.write()
            await asyncio.sleep(_LOOK_S)

    async def write(self) -> None:
        """One round; errors are logged, never raised."""
        wanted = self._wanted(self._ledger.grants())
        self._written = {uid: said for uid, said in self._written.items() if uid in {ref.uid for ref in wanted}}
        for ref, said in wanted.items():
            if self._written.get(ref.uid) == said:
                continue
            await self._bucket.take()
            if self._wanted(self._ledger.of_pod(PodUid(ref.uid))).get(ref) != said:
                continue  # it ended or changed meanwhile
            try:
                await self._write(ref, said)
            except KubeNotFoundError:
                pass  # kubelet ends it soon
            except VcudaError as error:
                log.warning("claim_status_failed", claim=str(ref), error=error.message)
                continue
            self._written[ref.uid] = said

    async def _write(self, ref: ClaimRef, said: frozenset[_Said]) -> None:
        claim = await self._get_claim(ref)
        by_device = {(each.request, each.device): each for each in said}
        since = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        shown = [
            DeviceStatus(
                self._driver,
                self._pool,
                given.device,
                given.share_id,
                one.is_ready,
                one.reason,
                one.message,
                since,
            )
            for given in claim.devices or ()
            if given.driver == self._driver and (one := by_device.get((given.request, given.device))) is not None
        ]
        await self._show(ref, self._driver, shown)

    def _wanted(self, grants: Iterable[Grant]) -> Mapping[ClaimRef, frozenset[_Said]]:
        inventory = self._inventory()
        found: dict[ClaimRef, set[_Said]] = {}
        latest = self._clock() - _FIRST_AFTER_S
        for grant in grants:
            if grant.source is Source.CLAIM and grant.created <= latest:
                pod = grant.allocation.owner.pod
                said = found.setdefault(ClaimRef(ClaimUid(pod.uid), pod.namespace, pod.name), set())
                said.update(_said(grant, share, inventory, self._name) for share in grant.allocation.shares)
        return {ref: frozenset(said) for ref, said in found.items()}


def _said(grant: Grant, share: GpuShare, inventory: Inventory, device: Callable[[Gpu], str]) -> _Said:
    gpu, health = inventory.gpu(share.uuid), inventory.health_of(share.uuid)
    if gpu is None:
        return _Said(
            grant.allocation.owner.name, "", False, "GPUGone", f"GPU {share.uuid} is not on this node any more"
        )
    name = f"GPU {gpu.minor} ({gpu.model}, {gpu.uuid})"
    if not health.healthy:
        text = f"{name} is unhealthy: {health.reason}"
        return _Said(grant.allocation.owner.name, device(gpu), False, "GPUUnhealthy", text)
    what = f"{share.cores} cores and {memory_text(share.blocks)} of {name}" if grant.is_share else f"all of {name}"
    return _Said(grant.allocation.owner.name, device(gpu), True, "Prepared", what)
