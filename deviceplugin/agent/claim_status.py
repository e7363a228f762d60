"""Says in the status of each claim what was prepared for it, and when one of its GPUs fails.

In: the ledger's grants of claims, the GPUs' health. Out: `status.devices` of the claims, for `kubectl describe`. It is
written behind the answers to kubelet, a few claims a second: nothing waits for it, and what cannot be written is tried
again while the claim is held. The words are those of the moment of a change, so a claim is written once for each. A
claim is first written when it is a few seconds old: its containers start then, often with those of many others, and
kubelet and the API server have enough to do.
"""

import asyncio
import datetime as dt
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from deviceplugin.errors import KubeNotFoundError, VcudaError
from deviceplugin.kube.rate_limit import TokenBucket
from deviceplugin.kubelet.dra.published import device_name
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import GpuShare
from deviceplugin.model.claims import Claim, ClaimRef, ClaimUid, DeviceStatus
from deviceplugin.model.gpu import Gpu, Inventory
from deviceplugin.model.units import format_blocks

log = structlog.get_logger("vcuda.dra")
_LOOK_S = 1.0
_FIRST_AFTER_S = 5.0
_RATE, _BURST = 5.0, 10
Show = Callable[[ClaimRef, str, Sequence[DeviceStatus]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Said:
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
        wanted = self._wanted()
        self._written = {uid: said for uid, said in self._written.items() if uid in {ref.uid for ref in wanted}}
        for ref, said in wanted.items():
            if self._written.get(ref.uid) == said:
                continue
            await self._bucket.take()
            if self._wanted().get(ref) != said:
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

    def _wanted(self) -> Mapping[ClaimRef, frozenset[_Said]]:
        inventory = self._inventory()
        found: dict[ClaimRef, set[_Said]] = {}
        latest = self._clock() - _FIRST_AFTER_S
        for grant in self._ledger.grants():
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
    what = f"{share.cores} cores and {format_blocks(share.blocks)} of {name}" if grant.is_share else f"all of {name}"
    return _Said(grant.allocation.owner.name, device(gpu), True, "Prepared", what)
