"""Leader election by a Lease: one of several replicas leads.

In: a client, the name of a lease, a unique identity. Out: `is_leader`, and a log line at each change. The rules are
those of client-go: the holder renews every `retry` seconds and stops leading after `renew` seconds without success;
others take the lease `lease` seconds after the last change that they saw. All times are from monotonic clocks, so two
replicas never lead at once, whatever their wall clocks say, if the clocks run equally fast. `is_leader` becomes false
in time even while a request hangs, the process is stopped or the machine sleeps.
"""

import asyncio
import datetime as dt
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog
from msgspec import structs

from deviceplugin.errors import KubeConflictError, KubeNotFoundError, VcudaError
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.leases import Lease, LeaseView, Term, micro_time

log = structlog.get_logger("vcuda.kube")
_JITTER = 1.2


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds; names and values as in client-go, which also requires lease > renew > 1.2 * retry."""

    lease: int = 15
    renew: float = 10.0
    retry: float = 2.0


def awake_and_asleep() -> float:
    """A monotonic clock that continues while the machine is suspended, as the clocks of other replicas do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


DEFAULT_TIMING = LeaseTiming()


class LeaderElector:
    """Call `run`, cancel it, then call `release`; `is_leader` is valid at any time."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming = DEFAULT_TIMING,
        clock: Callable[[], float] = awake_and_asleep,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing
        self._clock = clock
        self._now = now
        self._jitter = jitter
        self._view = LeaseView(clock)
        self._lease: Lease | None = None
        self._until = 0.0
        self._was_leader = False

    @property
    def is_leader(self) -> bool:
        return self._clock() < self._until

    @property
    def holder(self) -> str:
        """The identity of the known leader; empty if there is none."""
        return self._view.holder

    async def run(self) -> None:
        """Never returns, and never raises because of the server."""
        while True:
            await self.attempt()
            led = self.is_leader
            wait = self._timing.retry * (1.0 if led else 1 + _JITTER * self._jitter())
            await asyncio.sleep(min(wait, self._until - self._clock()) if led else wait)
            self._log_change()

    async def attempt(self) -> None:
        limit = self._until - self._clock() if self.is_leader else self._timing.renew
        try:
            async with asyncio.timeout(limit):
                await self._take_or_keep()
        except KubeConflictError:
            self._lease = None  # another replica was faster; the next attempt shows which
        except TimeoutError:
            log.warning("lease_renewal_timeout", lease=self._name)
        except VcudaError as error:
            log.warning("lease_renewal_failed", lease=self._name, error=error.message)
        self._log_change()

    async def release(self) -> None:
        """Releases a held lease, so that the next replica need not wait; best effort."""
        lease, led = self._lease, self.is_leader
        self._until = 0.0
        self._log_change()
        if lease is None or not led:
            return
        try:
            await self._client.update_lease(
                replace(lease, term=structs.replace(self._term(lease.term), holder="", seconds=1))
            )
        except VcudaError as error:
            log.warning("lease_release_failed", lease=self._name, error=error.message)

    async def _take_or_keep(self) -> None:
        started = self._clock()
        lease = self._lease if self.is_leader else None
        try:
            lease = lease or await self._client.get_lease(self._namespace, self._name)
        except KubeNotFoundError:
            first = Lease(self._namespace, self._name, self._term(None))
            self._hold(await self._client.create_lease(first), started)
            return
        self._view.see(lease.term)
        if self._view.holder in ("", self._identity):
            self._hold(await self._client.update_lease(replace(lease, term=self._term(lease.term))), started)
        else:
            self._until, self._lease = 0.0, None

    def _hold(self, lease: Lease, started: float) -> None:
        """The term counts from before the request: no other replica saw it earlier."""
        self._lease, self._until = lease, started + self._timing.renew
        self._view.see(lease.term)

    def _term(self, before: Term | None) -> Term:
        moment = micro_time(self._now())
        if before is not None and before.holder == self._identity:
            return structs.replace(before, seconds=self._timing.lease, renewed=moment)
        transitions = 0 if before is None else (before.transitions or 0) + 1
        return Term(self._identity, self._timing.lease, acquired=moment, renewed=moment, transitions=transitions)

    def _log_change(self) -> None:
        if self.is_leader is self._was_leader:
            return
        self._was_leader = not self._was_leader
        log.info("leadership_gained" if self._was_leader else "leadership_lost", lease=self._name)
