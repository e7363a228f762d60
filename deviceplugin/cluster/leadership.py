"""Which replica answers kube-scheduler and keeps the certificates.

In: a Lease, ours or kube-scheduler's. Out: whether this replica leads, now. Times of other machines are never compared:
a lease is over when it has not changed for its duration on our own clock. A leader that cannot renew stops to lead well
before anybody else may begin. kube-scheduler's holder is `<host name>_<random>`, and it calls the extender in its own
pod right after it has won, so whoever is asked and does not lead looks at the Lease again first.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from deviceplugin.errors import KubeConflictError, VcudaError

log = structlog.get_logger("vcuda.leadership")
_RENEW_WITHIN = 2 / 3  # of the duration


@dataclass(frozen=True, slots=True)
class Lease:
    """`beat` changes with every renewal; `version` is for replacing this very one."""

    holder: str
    seconds: float
    transitions: int = 0
    beat: str = ""
    version: str = ""


class LeaseStore(Protocol):
    """One Lease of the cluster; `create` and `replace` set the time of renewal and raise KubeConflictError."""

    async def read(self) -> Lease | None: ...
    async def create(self, lease: Lease) -> None: ...
    async def replace(self, lease: Lease) -> None: ...


class Leadership(Protocol):
    """`leader` is the holder's name as far as known, for sentences and for `vcuda explain`."""

    @property
    def leads(self) -> bool: ...
    @property
    def leader(self) -> str: ...
    async def confirm(self) -> bool:
        """Whether this replica leads, after one more look where it seems not to."""

    async def run(self) -> None: ...
    async def resign(self) -> None: ...


class Alone:
    """There is no other replica."""

    def __init__(self, identity: str) -> None:
        self.leader = identity
        self.leads = True

    async def confirm(self) -> bool:
        return True

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def resign(self) -> None:
        """Nobody waits for it."""


class Elected:
    """Takes part in an election by a Lease of ours."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        duration: float,
        retry: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._identity = identity
        self._duration = duration
        self._retry = retry
        self._clock = clock
        self._seen: tuple[str, float] | None = None
        self._leads_until = float("-inf")
        self._led = False
        self.leader = ""

    @property
    def leads(self) -> bool:
        return self._clock() < self._leads_until

    async def confirm(self) -> bool:
        return self.leads

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._duration * _RENEW_WITHIN):
                    await self.round()
            except KubeConflictError:
                pass  # somebody else was first: the next round sees who
            except (VcudaError, TimeoutError) as error:
                cause = error.message if isinstance(error, VcudaError) else "no answer in time"
                log.warning("the Lease could not be looked after", cause=cause)
            self._tell()
            await asyncio.sleep(self._retry)

    async def round(self) -> None:
        """Renews, takes over what is over, or only looks."""
        began = self._clock()
        lease = await self._store.read()
        mine = Lease(self._identity, self._duration)
        if lease is None:
            await self._store.create(mine)
        else:
            self.leader = lease.holder
            if self._seen is None or self._seen[0] != lease.version:
                self._seen = (lease.version, began)
            is_over = not lease.holder or began - self._seen[1] >= max(lease.seconds, self._duration)
            if lease.holder != self._identity and not is_over:
                self._leads_until = float("-inf")
                return
            more = lease.holder != self._identity
            await self._store.replace(
                replace(mine, transitions=lease.transitions + more, version=lease.version, beat=lease.beat)
            )
        self.leader = self._identity
        self._leads_until = began + self._duration * _RENEW_WITHIN

    async def resign(self) -> None:
        """Others need not wait for the end of the lease."""
        if not self.leads:
            return
        self._leads_until = float("-inf")
        lease = await self._store.read()
        if lease is not None and lease.holder == self._identity:
            await self._store.replace(replace(lease, holder="", seconds=1.0))

    def _tell(self) -> None:
        if self.leads != self._led:
            self._led = self.leads
            log.info("this replica leads" if self._led else "this replica does not lead any more", leader=self.leader)


class Following:
    """Leads where the leading kube-scheduler is: in the same pod, so under the same host name."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        duration: float,
        retry: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._identity = identity
        self._duration = duration
        self._retry = retry
        self._clock = clock
        self._seen_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self.leader = ""

    @property
    def leads(self) -> bool:
        return self.leader == self._identity and self._clock() - self._seen_at < self._duration

    async def confirm(self) -> bool:
        if not self.leads:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._look())
            await asyncio.shield(self._asking)
        return self.leads

    async def run(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(self._retry)

    async def resign(self) -> None:
        """The Lease is kube-scheduler's."""

    async def _look(self) -> None:
        before = self.leader
        try:
            lease = await self._store.read()
        except VcudaError as error:
            log.warning("kube-scheduler's Lease could not be read", cause=error.message)
            return
        self.leader = lease.holder.rpartition("_")[0] or lease.holder if lease else ""
        self._seen_at = self._clock()
        if self.leader != before:
            log.info("kube-scheduler's leader is known", leader=self.leader, leads=self.leads)
