"""Whether this replica is the leader, which answers kube-scheduler, and which replica is.

In: a Lease of vcuda or of kube-scheduler. Out: `Leadership`. kube-scheduler's holder is `<host name>_<random>`, and it
calls the extender in its own pod right after it has won. So a replica that is called and is not the leader reads the
Lease again first. The Lease goes with the scheduler's account. Every replica serves the webhook.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from deviceplugin.config.scheduler import Election, SchedulerSettings
from deviceplugin.errors import KubeConflictError, KubeNotFoundError, VcudaError
from deviceplugin.kube.client import ObjectClient
from deviceplugin.kube.collection import ObjectRef
from deviceplugin.kube.leader_election import LEASES, LeaderElector, LeaseTiming, LeaseView, Term, create_lease

log = structlog.get_logger("vcuda.leadership")
_RENEW_WITHIN, _RETRY = 2 / 3, 2 / 15  # of the lease's duration


class Leadership:
    """A single replica, which always leads; the other classes find the leader by a Lease."""

    def __init__(self, identity: str) -> None:
        self._identity = identity

    @property
    def identity(self) -> str:
        """The name of this replica."""
        return self._identity

    @property
    def leader(self) -> str:
        """The name of the leading replica as far as known, empty if there is none."""
        return self._identity

    @property
    def leads(self) -> bool:
        return self.leader == self._identity

    async def confirm(self) -> bool:
        """Whether this replica leads; reads the Lease again if the last view says no and may be late."""
        return self.leads

    async def run(self) -> None:
        """Until it is cancelled, or never where there is nothing to do."""

    async def resign(self) -> None:
        """Lets another replica lead at once, if this one holds the Lease."""


class OwnLeadership(Leadership):
    """The replicas elect a leader by a Lease of their own."""

    def __init__(self, identity: str, elector: LeaderElector) -> None:
        super().__init__(identity)
        self._elector = elector

    @property
    def leader(self) -> str:
        return self._elector.holder

    @property
    def leads(self) -> bool:
        return self._elector.is_leader

    async def run(self) -> None:
        await self._elector.run()

    async def resign(self) -> None:
        await self._elector.release()


class KubeSchedulerLeadership(Leadership):
    """Leads beside the leading kube-scheduler: in the same pod, so with the same host name."""

    def __init__(
        self,
        client: ObjectClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        retry: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(identity)
        self._client = client
        self._where = ObjectRef(namespace, name)
        self._retry = retry
        self._snapshot = LeaseView(clock)
        self._reading: asyncio.Task[None] | None = None

    @property
    def leader(self) -> str:
        holder = self._snapshot.holder
        return holder.rpartition("_")[0] or holder

    async def confirm(self) -> bool:
        """Requests at the same time cause one read."""
        if not self.leads:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_lease(), name="kube-scheduler's Lease")
            await asyncio.shield(self._reading)
        return self.leads

    async def run(self) -> None:
        while True:
            await self._read_lease()
            await asyncio.sleep(self._retry)

    async def _read_lease(self) -> None:
        before = self.leader
        try:
            self._snapshot.see((await self._client.get(LEASES, self._where)).term)
        except KubeNotFoundError:
            await self._offer_lease()
            return
        except VcudaError as error:
            log.warning("lease_unreadable", error=error.message)
            return
        if self.leader != before:
            log.info("leader_changed", leader=self.leader, leads=self.leads)

    async def _offer_lease(self) -> None:
        """To kube-scheduler, which starts later: it would create one that outlives the installation."""
        owners = await self._client.owners(self._where.namespace)
        if not owners:
            return
        try:
            await create_lease(self._client, self._where, Term(), owners)
        except KubeConflictError:
            return  # kube-scheduler or another replica was faster
        except VcudaError as error:
            log.warning("lease_not_created", error=error.message)


def leadership_of(settings: SchedulerSettings, client: ObjectClient) -> Leadership:
    cluster, leader = settings.cluster, settings.leader
    retry = leader.duration * _RETRY
    if leader.election is Election.NONE:
        return Leadership(cluster.identity)
    if leader.election is Election.KUBE_SCHEDULER:
        return KubeSchedulerLeadership(
            client, namespace=cluster.namespace, name=leader.lease, identity=cluster.identity, retry=retry
        )
    timing = LeaseTiming(lease=int(leader.duration), renew=leader.duration * _RENEW_WITHIN, retry=retry)
    elector = LeaderElector(
        client, namespace=cluster.namespace, name=leader.lease, identity=cluster.identity, timing=timing
    )
    return OwnLeadership(cluster.identity, elector)
