"""Leader election by a Lease: one of several replicas leads.

In: a client, the name of a lease, a unique identity. Out: `is_leader`, and a log line at each change. The rules are
those of client-go: the holder renews every `retry` seconds and stops leading after `renew` seconds without success;
others take the lease `lease` seconds after the last change that they saw. All times are from monotonic clocks, so two
replicas never lead at once, whatever their wall clocks say, if the clocks run equally fast. `is_leader` becomes false
in time even while a request hangs, the process is stopped or the machine sleeps.

Leases of coordination.k8s.io as values, and the holder of a lease by the local clock.

In: JSON of the API server. Out: `Lease`, created and changed; `LeaseView`, which says whether a lease is valid without
trusting the clock of another machine: a term counts from the moment at which it was first seen. Times inside a lease
are for users.
"""

import asyncio
import datetime as dt
import random
import time
from collections.abc import Callable

import msgspec
import structlog
from msgspec import structs

from deviceplugin.errors import KubeConflictError, KubeNotFoundError, VcudaError
from deviceplugin.kube.client import ObjectClient, Owners
from deviceplugin.kube.collection import ObjectKind, ObjectRef
from deviceplugin.kube.structs import Object


class Term(msgspec.Struct, frozen=True):
    """spec of a lease: the leader, the seconds from each renewal, and since when. No holder: the lease was released."""

    holder: str | None = msgspec.field(default=None, name="holderIdentity")
    seconds: int | None = msgspec.field(default=None, name="leaseDurationSeconds")
    acquired: str | None = msgspec.field(default=None, name="acquireTime")
    renewed: str | None = msgspec.field(default=None, name="renewTime")
    transitions: int | None = msgspec.field(default=0, name="leaseTransitions")


class Lease(Object):
    """A lease."""

    spec: Term | None = None

    @property
    def term(self) -> Term:
        return self.spec or Term()


LEASES = ObjectKind("coordination.k8s.io/v1", "leases", "Lease", "lease", Lease, lambda found: found)


async def create_lease(client: ObjectClient, lease: ObjectRef, term: Term, owners: Owners = ()) -> Lease:
    """Raises KubeConflictError if the name exists."""
    meta = {"name": lease.name, "namespace": lease.namespace, "ownerReferences": owners}
    document = {"metadata": meta, "spec": term}
    return await client.create(LEASES, lease.namespace, document, what=f"create lease {lease}")


async def update_lease(client: ObjectClient, lease: Lease, term: Term) -> Lease:
    """Raises KubeConflictError if the lease has changed since it was read."""
    meta = lease.metadata
    ref, change = ObjectRef(meta.namespace, meta.name), {"metadata": {"resourceVersion": meta.resource_version}}
    return await client.patch(LEASES, ref, {**change, "spec": term}, what=f"update lease {ref}")


class LeaseView:
    """What was seen of one lease, by the local monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._term = Term()
        self._seen = clock()

    def see(self, term: Term) -> None:
        """Any change of the term shows that the holder is alive; a new version alone does not."""
        if term != self._term:
            self._term, self._seen = term, self._clock()

    @property
    def holder(self) -> str:
        """The current leader; empty if the lease has expired or was released."""
        is_valid = self._clock() < self._seen + (self._term.seconds or 0)
        return (self._term.holder or "") if is_valid else ""


def micro_time(moment: dt.datetime) -> str:
    """With exactly six digits after the second: the API server refuses any other form in a lease."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


log = structlog.get_logger("vcuda.kube")
_JITTER = 1.2


class LeaseTiming(msgspec.Struct, frozen=True):
    """Seconds; names and values as in client-go, which also requires lease > renew > 1.2 * retry."""

    lease: int = 15
    renew: float = 10.0
    retry: float = 2.0


def awake_and_asleep() -> float:
    """A monotonic clock that continues while the machine is suspended, as the clocks of other replicas do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


DEFAULT_TIMING = LeaseTiming()


class LeaderElector:
    """Call `run`, then `release`, which ends it; `is_leader` is valid at any time."""

    def __init__(
        self,
        client: ObjectClient,
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
        self._ref = ObjectRef(namespace, name)
        self._identity = identity
        self._timing = timing
        self._clock = clock
        self._now = now
        self._jitter = jitter
        self._view = LeaseView(clock)
        self._lease: Lease | None = None
        self._until = 0.0
        self._was_leader = False
        self._running: asyncio.Task[None] | None = None

    @property
    def is_leader(self) -> bool:
        return self._clock() < self._until

    @property
    def holder(self) -> str:
        """The identity of the known leader; empty if there is none."""
        return self._view.holder

    async def run(self) -> None:
        """Until `release`; never raises because of the server."""
        self._running = asyncio.current_task()
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
            log.warning("lease_renewal_timeout", lease=self._ref.name)
        except VcudaError as error:
            log.warning("lease_renewal_failed", lease=self._ref.name, error=error.message)
        self._log_change()

    async def release(self) -> None:
        """Releases a held lease, so that the next replica need not wait; best effort."""
        led = self.is_leader
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        self._until = 0.0
        self._log_change()
        try:
            while led and not await self._is_released():
                pass
        except VcudaError as error:
            log.warning("lease_release_failed", lease=self._ref.name, error=error.message)

    async def _is_released(self) -> bool:
        """The lease is read again: a renewal that was on its way may be carried out, before this or during it."""
        lease = await self._client.get(LEASES, self._ref)
        if lease.term.holder == self._identity:
            try:
                await update_lease(self._client, lease, structs.replace(self._term(lease.term), holder="", seconds=1))
            except KubeConflictError:
                return False
        return True

    async def _take_or_keep(self) -> None:
        started = self._clock()
        try:
            held = self._lease if self.is_leader else None
            lease = held if held is not None else await self._client.get(LEASES, self._ref)
        except KubeNotFoundError:
            owners = await self._client.owners(self._ref.namespace)
            self._hold(await create_lease(self._client, self._ref, self._term(None), owners), started)
            return
        self._view.see(lease.term)
        if self._view.holder in ("", self._identity):
            self._hold(await update_lease(self._client, lease, self._term(lease.term)), started)
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
        log.info("leadership_gained" if self._was_leader else "leadership_lost", lease=self._ref.name)
