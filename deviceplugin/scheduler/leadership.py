"""Whether this replica answers kube-scheduler, and who does otherwise.

In: a Lease, ours or kube-scheduler's. Out: `Leadership`. kube-scheduler's holder is `<host name>_<random>`, and it asks
the extender in its own pod right after it has won, so a replica that is asked and does not lead looks at the Lease
again first. The webhook does not come here: every replica serves it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from deviceplugin.config.scheduler import Election, SchedulerSettings
from deviceplugin.errors import KubeNotFoundError, VcudaError
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.leader import LeaderElector, LeaseTiming
from deviceplugin.kube.leases import LeaseView

log = structlog.get_logger("vcuda.leadership")
_RENEW_WITHIN = 2 / 3  # of the lease's duration


class Leadership(Protocol):
    """`leader` is the name of the replica that leads as far as known, empty where none does."""

    @property
    def leads(self) -> bool: ...
    @property
    def leader(self) -> str: ...
    async def confirm(self) -> bool:
        """Whether this replica leads, after one more look where it seems not to and that may be old."""

    async def run(self) -> None: ...
    async def resign(self) -> None: ...


class Alone:
    """There is no other replica."""

    def __init__(self, identity: str) -> None:
        self.leader = identity

    @property
    def leads(self) -> bool:
        return True

    async def confirm(self) -> bool:
        return True

    async def run(self) -> None:
        """Nothing to be done."""

    async def resign(self) -> None:
        """Nobody waits for it."""


class Elected:
    """One of ours is elected by a Lease of ours."""

    def __init__(self, elector: LeaderElector) -> None:
        self._elector = elector

    @property
    def leads(self) -> bool:
        return self._elector.is_leader

    @property
    def leader(self) -> str:
        return self._elector.holder

    async def confirm(self) -> bool:
        return self.leads

    async def run(self) -> None:
        await self._elector.run()

    async def resign(self) -> None:
        await self._elector.release()


class Following:
    """Leads where the leading kube-scheduler is: in the same pod, so under the same host name."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        retry: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._where = (namespace, name)
        self._identity = identity
        self._retry = retry
        self._snapshot = LeaseView(clock)
        self._looking: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        return self.leader == self._identity

    @property
    def leader(self) -> str:
        holder = self._snapshot.holder
        return holder.rpartition("_")[0] or holder

    async def confirm(self) -> bool:
        """Many who ask at once cause one look."""
        if not self.leads:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(), name="kube-scheduler's Lease")
            await asyncio.shield(self._looking)
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
            self._snapshot.see((await self._client.get_lease(*self._where)).term)
        except KubeNotFoundError:
            return  # kube-scheduler makes it when it starts
        except VcudaError as error:
            log.warning("kube-scheduler's Lease could not be read", cause=error.message)
            return
        if self.leader != before:
            log.info("kube-scheduler's leader has changed", leader=self.leader, leads=self.leads)


def leadership_of(settings: SchedulerSettings, client: ClusterClient) -> Leadership:
    cluster, leader = settings.cluster, settings.leader
    if leader.election is Election.NONE:
        return Alone(cluster.identity)
    if leader.election is Election.KUBE_SCHEDULER:
        return Following(
            client, namespace=cluster.namespace, name=leader.lease, identity=cluster.identity, retry=leader.retry
        )
    timing = LeaseTiming(lease=leader.duration, renew=leader.duration * _RENEW_WITHIN, retry=leader.retry)
    elector = LeaderElector(
        client, namespace=cluster.namespace, name=leader.lease, identity=cluster.identity, timing=timing
    )
    return Elected(elector)
