"""Gangs under Volcano, for the cluster's show: a stand-in of its scheduler asks the real `vcuda scheduler`.

In: the small cluster, gangs of pods in its store. Out: what was bound and what stays reserved. Not here: what is
printed. Invariant: Bindings are Volcano's, with the annotations of its pods.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from sandbox.program import free_port
from sandbox.vc_scheduler import PodGroup, VcScheduler
from scripts.demonstration import cluster_inspect
from scripts.demonstration.pods import NAMESPACE, Json, name_of
from scripts.demonstration.setup import SmallCluster

RESERVATION_S = 2
PATIENCE_S = 20.0


class Tried(NamedTuple):
    """A gang in one session: pods that are bound, and reservations that stay."""

    size: int
    bound: tuple[str, ...]
    left: int


class Abandoned(NamedTuple):
    """A gang whose scheduler died: reservations then and in the end, the seconds between, pods bound meanwhile."""

    size: int
    reserved: int
    left: int
    seconds: float
    bound: int


async def start_beside_volcano(cluster: SmallCluster, *, deadline_s: float) -> str:
    """`vcuda scheduler` again, with the flags that it has beside Volcano's scheduler. The plugin's urlPrefix."""
    scheduler, port = cluster.scheduler, free_port()
    await scheduler.stop()
    flags = (f"--loopback-port={port}", f"--reservation-time={RESERVATION_S}s", "--leader-election=none")
    await scheduler.start("--volcano", *flags)
    await scheduler.wait_ready(deadline_s=deadline_s)
    return f"http://127.0.0.1:{port}/volcano"


@asynccontextmanager
async def volcano(cluster: SmallCluster, url: str) -> AsyncIterator[VcScheduler]:
    """Volcano's scheduler as it starts; `session` lets it try gangs."""
    store = cluster.server.store

    async def bind(binding: Json) -> None:
        store.bind(name_of(binding), binding["target"]["name"], namespace=NAMESPACE, meta=binding["metadata"])

    def watch(pod: Json) -> Json:
        return store.get("pods", name_of(pod), namespace=NAMESPACE)

    async with VcScheduler(url, store.objects("nodes"), bind, watch=watch) as started:
        yield started


async def tried(cluster: SmallCluster, url: str, gang: Sequence[Json]) -> Tried:
    async with volcano(cluster, url) as scheduler:
        await scheduler.session([PodGroup("gang", tuple(gang))])
    return Tried(len(gang), _bound(cluster, gang), await _left(cluster))


async def abandoned(cluster: SmallCluster, url: str, gang: Sequence[Json]) -> Abandoned:
    """Its scheduler dies after it has chosen GPUs for all members, before the first Binding."""
    began = time.monotonic()
    async with volcano(cluster, url) as scheduler:
        await scheduler.session([PodGroup("gang", tuple(gang))], dies=True)
    reserved = await cluster.scheduler.settled_figure("reservations", len(gang))
    left = await _left(cluster)
    return Abandoned(len(gang), reserved, left, time.monotonic() - began, len(_bound(cluster, gang)))


async def _left(cluster: SmallCluster) -> int:
    """That of a bound pod ends when the pod runs."""
    return await cluster.scheduler.settled_figure("reservations", 0, patience_s=PATIENCE_S)


def _bound(cluster: SmallCluster, gang: Sequence[Json]) -> tuple[str, ...]:
    return tuple(name for name in map(name_of, gang) if cluster_inspect.node_of(cluster, name))
