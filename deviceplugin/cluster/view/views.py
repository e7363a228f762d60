"""The documents of the view, from the scheduler's cache.

In: a query, and whose names the caller may read. Out: a document of `model.cluster_view`. Reads only. Long walks give
way to other requests; a node that changes meanwhile is described as it is when its turn comes.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain.verdicts import Verdicts
from deviceplugin.cluster.extender.recent_events import ClusterEvent, RecentEvents
from deviceplugin.cluster.view import rows
from deviceplugin.cluster.view.live import NodeUse
from deviceplugin.cluster.view.order import NOTHING_KNOWN, node_key, pod_place
from deviceplugin.cluster.view.page import Key, cut, described
from deviceplugin.cluster.view.query import EventsQuery, NodeFilter, NodesQuery, PodSort, PodsQuery
from deviceplugin.cluster.view.rows import GpuState, Shown
from deviceplugin.cluster.view.waiting import Reason, reason_of
from deviceplugin.model.cluster_view import (
    ClusterEventsView,
    ClusterView,
    NodeRow,
    NodesView,
    OneNodeView,
    PodRow,
    PodStage,
    PodsView,
)
from deviceplugin.model.pod import ClusterPod
from deviceplugin.placement.node_state import NodeState

_SLICE = 250


@dataclass(frozen=True, slots=True)
class Replica:
    """Who answers: this replica and the leader as it knows it."""

    name: str
    leader: str
    version: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    pod: ClusterPod


_AnyPod = PodHold | _Waiting
Uses = Mapping[str, NodeUse]


class ClusterViews:
    """`replica` is asked for each answer, because the leader changes."""

    def __init__(
        self,
        cache: SchedulerCache,
        verdicts: Verdicts,
        events: RecentEvents,
        replica: Callable[[], Replica],
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self._verdicts = verdicts
        self._events = events
        self._replica = replica
        self._wall = wall
        self._described: dict[str, tuple[NodeState | None, object, NodeRow]] = {}

    async def cluster(self, shown: Shown) -> ClusterView:
        totals: Counter[str] = Counter()
        models: Counter[str] = Counter()
        for number, info in enumerate(self._nodes(), 1):
            row = self._row(info)
            models.update(row.models)
            totals.update(
                nodes=1,
                problems=1 if row.problem else 0,  # a bool would stay one in an empty Counter
                gpus=row.gpu_count,
                free=row.free_gpus,
                unusable=row.unusable_gpus,
                cores=row.cores,
                cores_allocated=row.cores_allocated,
                blocks=row.blocks,
                blocks_allocated=row.blocks_allocated,
                bound=sum(hold.is_bound for hold in info.holds.values()),
                holds=row.pods,
            )
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        reasons = Counter(self._reason(each.pod).kind for each in self._waiting())
        replica = self._replica()
        return ClusterView(
            at=self._wall(),
            replica=replica.name,
            leader=replica.leader,
            names=shown.names,
            scheduler_version=replica.version,
            nodes=totals["nodes"],
            nodes_with_problem=totals["problems"],
            gpus=totals["gpus"],
            free_gpus=totals["free"],
            unusable_gpus=totals["unusable"],
            cores=totals["cores"],
            cores_allocated=totals["cores_allocated"],
            blocks=totals["blocks"],
            blocks_allocated=totals["blocks_allocated"],
            pods_bound=totals["bound"],
            pods_reserved=totals["holds"] - totals["bound"],
            pods_waiting=sum(reasons.values()),
            waiting_by_reason=dict(reasons.most_common()),
            models=dict(sorted(models.items())),
        )

    async def node_names(self, query: NodesQuery) -> tuple[str, ...]:
        """All nodes that match, in no order."""
        found = []
        for number, info in enumerate(self._nodes(), 1):
            if _is_asked_for(self._row(info), query):
                found.append(info.name)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        return tuple(found)

    def nodes_of_pods(self, query: PodsQuery) -> frozenset[str]:
        """The nodes of the pods that match."""
        holds = (each for each in self._pods(query) if isinstance(each, PodHold))
        return frozenset(each.node for each in holds if query.namespace in ("", each.pod.namespace))

    async def nodes(self, query: NodesQuery, shown: Shown, uses: Uses = MappingProxyType({})) -> NodesView:
        """`uses`: what is used on each node, where the order goes by it."""

        def key(info: NodeInfo) -> Key | None:
            row = self._row(info)
            if not _is_asked_for(row, query):
                return None
            return node_key(row, lambda: rows.gpu_states(info), uses.get(info.name, NOTHING_KNOWN), query)

        page = await cut(self._nodes(), key, query.page)
        items = await described(page.items, lambda info: self._node(info, shown, with_gpus=query.with_gpus))
        replica = self._replica()
        return NodesView(
            at=self._wall(),
            replica=replica.name,
            leader=replica.leader,
            names=shown.names,
            items=items,
            total=page.total,
            more=page.more,
        )

    def node(self, name: str, shown: Shown) -> OneNodeView | None:
        """None where no node of that name has an inventory or holds anything."""
        info = self._cache.nodes.get(name)
        if info is None or not _is_shown(info):
            return None
        replica = self._replica()
        return OneNodeView(
            at=self._wall(),
            replica=replica.name,
            leader=replica.leader,
            names=shown.names,
            item=self._node(info, shown, with_gpus=True),
        )

    async def pods(self, query: PodsQuery, shown: Shown, uses: Uses = MappingProxyType({})) -> PodsView:
        """By name means by UID to callers who may not read names: an order would tell them. `uses` as of `nodes`."""
        page = await cut(self._pods(query), lambda each: self._pod_key(each, query, shown, uses), query.page)
        items = await described(page.items, lambda each: self._pod(each, shown))
        replica = self._replica()
        return PodsView(
            at=self._wall(),
            replica=replica.name,
            leader=replica.leader,
            names=shown.names,
            items=items,
            total=page.total,
            more=page.more,
        )

    async def events(self, query: EventsQuery, shown: Shown) -> ClusterEventsView:
        def key(event: ClusterEvent) -> Key | None:
            return (event.at, event.number) if _is_asked_for_event(event, query) else None

        page = await cut(self._events, key, query.page)
        replica = self._replica()
        return ClusterEventsView(
            at=self._wall(),
            replica=replica.name,
            leader=replica.leader,
            names=shown.names,
            items=tuple(rows.event_row(event, shown) for event in page.items),
            total=page.total,
            since=self._events.since,
            dropped=self._events.dropped,
            more=page.more,
        )

    def _nodes(self) -> Iterator[NodeInfo]:
        return (info for info in tuple(self._cache.nodes.values()) if _is_shown(info))

    def _row(self, info: NodeInfo) -> NodeRow:
        """The row without GPUs; the same as before where the node has not changed."""
        state = info.state if info.problem is None else None
        sign = (info.problem, info.sentence, info.inventory, len(info.holds))
        known = self._described.get(info.name)
        if known is not None and state is not None and known[0] is state and known[1] == sign:
            return known[2]
        row = rows.node_row(info, rows.gpu_states(info))
        if len(self._described) > 2 * len(self._cache.nodes) + _SLICE:
            self._described.clear()  # of nodes that are gone
        self._described[info.name] = (state, sign, row)
        return row

    def _node(self, info: NodeInfo, shown: Shown, *, with_gpus: bool) -> NodeRow:
        if not with_gpus:
            return self._row(info)
        states: tuple[GpuState, ...] = rows.gpu_states(info)
        return rows.node_row(info, states, rows=rows.gpu_rows(info, states, shown))

    def _waiting(self) -> Iterator[_Waiting]:
        """Pods that wait and for which nothing is reserved."""
        return (_Waiting(pod) for uid, pod in tuple(self._cache.waiting.items()) if not any(self._cache.holds(uid)))

    def _pods(self, query: PodsQuery) -> Iterator[_AnyPod]:
        names = (query.node,) if query.node else tuple(self._cache.nodes)
        if query.stage is not PodStage.WAITING:
            for name in names:
                info = self._cache.nodes.get(name)
                yield from () if info is None else tuple(info.holds.values())
        if query.stage in (None, PodStage.WAITING) and not query.node:
            yield from self._waiting()

    def _pod_key(self, each: _AnyPod, query: PodsQuery, shown: Shown, uses: Uses) -> Key | None:
        held = each if isinstance(each, PodHold) else None
        ref = each.pod.pod.ref if isinstance(each, _Waiting) else each.pod
        if query.namespace and ref.namespace != query.namespace:
            return None
        if query.stage is not None and held is not None and rows.stage_of(held) is not query.stage:
            return None
        if isinstance(each, _Waiting):
            known: ClusterPod | None = each.pod
        else:
            known = self._cache.pod(ref.uid) if query.sort is PodSort.AGE else None
        namespace, name = shown.of(ref)
        last: Key = (namespace or "", name or "", ref.uid, "" if held is None else held.node)
        use = NOTHING_KNOWN if held is None else uses.get(held.node, NOTHING_KNOWN)
        return (*pod_place(known, held, use, query), *last)

    def _pod(self, each: _AnyPod, shown: Shown) -> PodRow:
        if isinstance(each, _Waiting):
            return rows.waiting_pod_row(each.pod, self._reason(each.pod).sentence, shown)
        return rows.held_pod_row(each, self._cache.nodes.get(each.node), self._cache.pod(each.pod.uid), shown)

    def _reason(self, pod: ClusterPod) -> Reason:
        return reason_of(pod, self._verdicts.of(pod.uid))


def _is_shown(info: NodeInfo) -> bool:
    """Nodes without GPUs and without pods that hold any are of no interest here."""
    return info.inventory is not None or bool(info.holds) or (info.node is not None and bool(info.node.inventory))


def _is_asked_for(row: NodeRow, query: NodesQuery) -> bool:
    if query.name not in row.node.lower():
        return False
    if query.model and not any(query.model in model.lower() for model in row.models):
        return False
    if query.state is NodeFilter.FREE:
        return row.free_gpus > 0
    return query.state is not NodeFilter.PROBLEM or bool(row.problem) or row.unusable_gpus > 0


def _is_asked_for_event(event: ClusterEvent, query: EventsQuery) -> bool:
    if query.kind not in (None, event.kind) or query.node not in ("", event.node):
        return False
    return not query.namespace or (event.pod is not None and event.pod.namespace == query.namespace)
