"""Where a row stands among others: by name, or by what is allocated, requested or used.

In: a node or a pod as the view knows it, and a query. Out: the key of its row for `page.cut`. With parts compared, a
row stands where its GPU or container stands that comes first in the order. Invariants: keys of different rows are
different; what is not known comes last, whatever the order.
"""

from collections.abc import Callable, Iterable, Iterator

from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.view.live import NodeUse, known_sum, node_live
from deviceplugin.cluster.view.page import Key
from deviceplugin.cluster.view.query import NodeSort, NodesQuery, PageQuery, PodSort, PodsQuery
from deviceplugin.cluster.view.rows import GpuState
from deviceplugin.model.cluster_view import ContainerRow, NodeRow, ShareLive
from deviceplugin.model.pod import ClusterPod

_Amounts = Iterable[float | None]
NOTHING_KNOWN = NodeUse()


def node_key(row: NodeRow, gpus: Callable[[], tuple[GpuState, ...]], use: NodeUse, query: NodesQuery) -> Key:
    """`gpus` is called only where GPUs are compared."""
    if query.sort is NodeSort.NAME:
        return (row.node,)
    if query.by_part:
        amount = _first(_gpu_amounts(gpus, use, query.sort), query.page)
    else:
        amount = _node_amount(row, use, query.sort)
    return (*_placed(amount, query.page), row.node)


def _node_amount(row: NodeRow, use: NodeUse, sort: NodeSort) -> float | None:
    if sort is NodeSort.CORES:
        return row.cores_allocated
    if sort is NodeSort.MEMORY:
        return row.blocks_allocated
    if sort is NodeSort.FREE:
        return row.free_gpus
    live = node_live(use)
    return None if live is None else live.utilization_percent


def _gpu_amounts(gpus: Callable[[], tuple[GpuState, ...]], use: NodeUse, sort: NodeSort) -> Iterator[float | None]:
    if sort is NodeSort.USED:
        return (each.utilization_percent for each in use.gpus.values())
    return (each.allocated.cores if sort is NodeSort.CORES else each.allocated.blocks for each in gpus())


def pod_place(pod: ClusterPod | None, held: PodHold | None, use: NodeUse, query: PodsQuery) -> Key:
    """The first part of a pod's key; its name and node make it unique. `pod`: its last version, `held`: where it is."""
    if query.sort is PodSort.NODE:
        return ("" if held is None else held.node,)
    if query.sort is PodSort.AGE:
        return (0.0 if pod is None else pod.pod.created,)
    if query.sort is PodSort.NAME:
        return ()
    return _amounts_place(tuple(_container_amounts(pod, held, use, query.sort)), query)


def claim_pod_place(
    pod: ClusterPod, node: str, containers: Callable[[], tuple[ContainerRow, ...]], use: NodeUse, query: PodsQuery
) -> Key:
    """The same for a pod that asks by claims; `containers` is called only where amounts are compared."""
    if query.sort is PodSort.NODE:
        return (node,)
    if query.sort is PodSort.AGE:
        return (pod.pod.created,)
    if query.sort is PodSort.NAME:
        return ()
    return _amounts_place(tuple(_row_amount(pod, each, use, query.sort) for each in containers()), query)


def _amounts_place(amounts: tuple[float | None, ...], query: PodsQuery) -> Key:
    return _placed(_first(amounts, query.page) if query.by_part else known_sum(amounts), query.page)


def _row_amount(pod: ClusterPod, row: ContainerRow, use: NodeUse, sort: PodSort) -> float | None:
    if sort in (PodSort.CORES, PodSort.MEMORY):
        return row.cores if sort is PodSort.CORES else row.blocks
    return _used_of([use.shares.get((pod.uid, row.name, share.uuid)) for share in row.shares], sort)


def _container_amounts(pod: ClusterPod | None, held: PodHold | None, use: NodeUse, sort: PodSort) -> _Amounts:
    if sort in (PodSort.CORES, PodSort.MEMORY):
        return (cores if sort is PodSort.CORES else blocks for cores, blocks in _requests(pod, held))
    return () if held is None else _used(held, use, sort)


def _requests(pod: ClusterPod | None, held: PodHold | None) -> Iterator[tuple[int, int]]:
    if held is not None:
        yield from ((each.request.cores, each.request.blocks) for each in held.allocations)
        yield from ((each.request.cores, each.request.blocks) for each in held.unlocated)
    elif pod is not None:
        yield from ((each.cores, each.blocks) for each in pod.pod.containers if each.is_gpu)


def _used(held: PodHold, use: NodeUse, sort: PodSort) -> Iterator[float | None]:
    for one in held.allocations:
        yield _used_of([use.shares.get((held.pod.uid, one.owner.name, share.uuid)) for share in one.shares], sort)


def _used_of(lives: Iterable[ShareLive | None], sort: PodSort) -> float | None:
    known = [each for each in lives if each is not None]
    if sort is PodSort.USED:
        return known_sum(each.cores_used for each in known)
    if sort is PodSort.USED_MEMORY:
        return known_sum(each.memory_used_bytes for each in known)
    return known_sum(each.throttled_seconds for each in known)


def _first(amounts: _Amounts, page: PageQuery) -> float | None:
    known = [each for each in amounts if each is not None]
    return (max if page.descending else min)(known, default=None)


def _placed(amount: float | None, page: PageQuery) -> tuple[int, float]:
    """What is not known comes after all that is; pages in descending order begin with the greatest key."""
    is_known = amount is not None
    return (int(is_known == page.descending), amount if amount is not None else 0.0)
