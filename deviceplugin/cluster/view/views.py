"""The documents of the view, from the scheduler's cache.

In: a query that the caller may ask. Out: a document of `model.cluster_view`, of the device plugin's GPUs
and of those that claims get. Reads only. Long walks give way to other requests; a node that changes meanwhile is
described as it is when its turn comes.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypedDict

from msgspec.structs import replace

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain.verdicts import Verdicts
from deviceplugin.cluster.extender.recent_events import ClusterEvent, RecentEvents
from deviceplugin.cluster.view import rows
from deviceplugin.cluster.view.live import NodeUse
from deviceplugin.cluster.view.query import (
    NOTHING_KNOWN,
    STEPS_OF_ITEM,
    EventsQuery,
    Key,
    NodeFilter,
    NodesQuery,
    PodSort,
    PodsQuery,
    cut,
    described,
    held_pod_place,
    node_key,
    paced,
    pod_place,
)
from deviceplugin.cluster.view.rows import Reason, claim_reason_of, reason_of
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.cluster_view import (
    ClusterEventsView,
    ClusterView,
    ContainerRow,
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
_IN_FULL = NodesQuery(with_gpus=True, with_holders=True)


@dataclass(frozen=True, slots=True)
class Replica:
    """Who answers: this replica and the leader as it knows it."""

    name: str
    leader: str
    version: str


class _Head(TypedDict):
    """What each document begins with (`model.cluster_view.Head`)."""

    at: float
    replica: str
    leader: str


@dataclass(frozen=True, slots=True)
class _Unheld:
    """A pod that waits, or has its node by claims alone; `node` is empty if it waits."""

    pod: ClusterPod
    node: str = ""


_AnyPod = PodHold | _Unheld
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
        self._claims = cache.claims
        self._verdicts = verdicts
        self._events = events
        self._replica = replica
        self._wall = wall
        self._described: dict[str, tuple[NodeState | None, object, NodeRow]] = {}

    async def cluster(self) -> ClusterView:
        totals: Counter[str] = Counter()
        models: Counter[str] = Counter()
        async for info in paced(self._nodes(), self._node_steps):
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
                bound=sum(hold.is_bound for hold in info.holds.values()) + self._bound_by_claims(info),
                holds=row.pods,
            )
        reasons = Counter([self._reason(each.pod).kind async for each in self._waiting()])
        return ClusterView(
            **self._head(),
            scheduler_version=self._replica().version,
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
        nodes = paced(self._nodes(), self._node_steps)
        return tuple([info.name async for info in nodes if _is_asked_for(self._row(info), query)])

    async def nodes_of_pods(self, query: PodsQuery) -> frozenset[str]:
        """The nodes of the pods that match."""
        placed = (each async for each in self._pods(query) if each.node)
        return frozenset([each.node async for each in placed if query.namespace in ("", _ref(each).namespace)])

    async def nodes(self, query: NodesQuery, uses: Uses = MappingProxyType({})) -> NodesView:
        """`uses`: what is used on each node, where the order goes by it."""

        def key(info: NodeInfo) -> Key | None:
            row = self._row(info)
            if not _is_asked_for(row, query):
                return None
            return node_key(row, lambda: rows.gpu_states(info), uses.get(info.name, NOTHING_KNOWN), query)

        page = await cut(paced(self._nodes(), self._node_steps), key, query.page)
        steps = self._detail_steps if query.with_gpus else self._node_steps
        items = await described(page.items, lambda info: self._node(info, query), steps)
        return NodesView(
            **self._head(),
            items=items,
            total=page.total,
            more=page.more,
        )

    def node(self, name: str) -> OneNodeView | None:
        """None if no node of that name has an inventory or holds anything."""
        info = self._cache.nodes.get(name)
        if info is None or not self._is_shown(info):
            return None
        return OneNodeView(
            **self._head(),
            item=self._node(info, _IN_FULL),
        )

    async def pods(self, query: PodsQuery, uses: Uses = MappingProxyType({})) -> PodsView:
        """`uses` as of `nodes`."""
        page = await cut(self._pods(query), lambda each: self._pod_key(each, query, uses), query.page)
        items = await described(page.items, self._pod, _pod_steps)
        return PodsView(
            **self._head(),
            items=items,
            total=page.total,
            more=page.more,
        )

    async def events(self, query: EventsQuery) -> ClusterEventsView:
        def key(event: ClusterEvent) -> Key | None:
            return (event.at, event.number) if _is_asked_for_event(event, query) else None

        page = await cut(self._events, key, query.page)
        return ClusterEventsView(
            **self._head(),
            items=tuple(map(rows.event_row, page.items)),
            total=page.total,
            since=self._events.since,
            dropped=self._events.dropped,
            more=page.more,
        )

    def _head(self) -> _Head:
        replica = self._replica()
        return _Head(at=self._wall(), replica=replica.name, leader=replica.leader)

    def _nodes(self) -> Iterator[NodeInfo]:
        return (info for info in tuple(self._cache.nodes.values()) if self._is_shown(info))

    def _is_shown(self, info: NodeInfo) -> bool:
        """Nodes without GPUs and without pods that hold any are of no interest here."""
        if info.inventory is not None or info.holds or (info.node is not None and info.node.inventory):
            return True
        return not info.claims.is_empty

    def _row(self, info: NodeInfo) -> NodeRow:
        """The row without GPUs; the same as before where the node has not changed."""
        state = info.state if info.problem is None else None
        sign = (info.problem, info.sentence, info.inventory, len(info.holds), info.claims, info.claims.version)
        is_settled = state is not None or not (info.claims.is_empty or (info.inventory and info.inventory.gpus))
        known = self._described.get(info.name)
        if known is not None and is_settled and known[0] is state and known[1] == sign:
            return known[2]
        row = rows.node_row(info, rows.gpu_states(info), by_claims=len(self._by_claims_on(info)))
        if len(self._described) > 2 * len(self._cache.nodes) + _SLICE:
            self._described.clear()  # of nodes that are gone
        self._described[info.name] = (state, sign, row)
        return row

    def _node(self, info: NodeInfo, query: NodesQuery) -> NodeRow:
        if not query.with_gpus:
            return self._row(info)
        states = rows.gpu_states(info)
        gpus = rows.gpu_rows(info, states, with_holders=query.with_holders)
        return rows.node_row(info, states, by_claims=len(self._by_claims_on(info)), rows=gpus)

    def _node_steps(self, info: NodeInfo) -> int:
        return STEPS_OF_ITEM + len(info.holds) + 4 * len(info.claims.holds)

    def _detail_steps(self, info: NodeInfo) -> int:
        """Every share becomes a row."""
        return 2 * self._node_steps(info) + 4 * sum(len(hold.allocations) for hold in info.holds.values())

    async def _waiting(self) -> AsyncIterator[_Unheld]:
        """Pods that wait and for which nothing is reserved."""
        async for pod in paced(tuple(self._cache.waiting.values()), _steps_of):
            if not any(self._cache.holds(pod.uid)):
                yield _Unheld(pod)
        async for pod in paced(tuple(self._claims.waiting.values()), _steps_of):
            if not pod.pod.is_gpu and self._claims.waits(pod):
                yield _Unheld(pod)

    def _by_claims_on(self, info: NodeInfo) -> tuple[_Unheld, ...]:
        """A pod that asks in both ways is one, of the device plugin's."""
        found = self._claims.pods_on(info.claims)
        return tuple(_Unheld(pod, info.name) for pod in found if pod.uid not in info.holds)

    def _bound_by_claims(self, info: NodeInfo) -> int:
        return sum(bool(each.pod.pod.node) for each in self._by_claims_on(info))

    def _placed(self, node: str) -> Iterator[_AnyPod]:
        """The pods on one node, or with an empty name on all."""
        for name in (node,) if node else tuple(self._cache.nodes):
            info = self._cache.nodes.get(name)
            if info is not None:
                yield from tuple(info.holds.values())
                yield from self._by_claims_on(info)

    async def _pods(self, query: PodsQuery) -> AsyncIterator[_AnyPod]:
        if query.stage is not PodStage.WAITING:
            async for each in paced(self._placed(query.node), _pod_steps):
                yield each
        if query.stage in (None, PodStage.WAITING) and not query.node:
            async for waiting in self._waiting():
                yield waiting

    def _pod_key(self, each: _AnyPod, query: PodsQuery, uses: Uses) -> Key | None:
        ref = each.pod if isinstance(each, PodHold) else each.pod.pod.ref
        if query.namespace and ref.namespace != query.namespace:
            return None
        if query.stage is not None and _stage(each) is not query.stage:
            return None
        last: Key = (ref.namespace, ref.name, ref.uid, each.node)
        return last if query.sort is PodSort.NAME else (*self._place(each, uses, query), *last)

    def _place(self, each: _AnyPod, uses: Uses, query: PodsQuery) -> Key:
        use = uses.get(each.node, NOTHING_KNOWN)
        if isinstance(each, _Unheld):
            return pod_place(each.pod, each.node, lambda: self._containers(each), use, query)
        known = self._cache.pod(each.pod.uid) if query.sort is PodSort.AGE else None
        return held_pod_place(each, 0.0 if known is None else known.pod.created, use, query)

    def _pod(self, each: _AnyPod) -> PodRow:
        if isinstance(each, _Unheld):
            reason = "" if each.node else self._reason(each.pod).sentence
            return rows.pod_row(each.pod, _stage(each), each.node, self._containers(each), reason)
        row = rows.held_pod_row(each, self._cache.nodes.get(each.node), self._cache.pod(each.pod.uid))
        return replace(row, containers=(*row.containers, *self._by_claims(each.pod.uid, each.node)))

    def _containers(self, each: _Unheld) -> tuple[ContainerRow, ...]:
        return (*rows.requested_containers(each.pod), *self._by_claims(each.pod.uid, each.node))

    def _by_claims(self, uid: PodUid, node: str) -> tuple[ContainerRow, ...]:
        """A pod can ask in both ways, with different containers."""
        pod, info = self._claims.pods.get(uid), self._cache.nodes.get(node)
        if pod is None:
            return ()
        if info is None or info.claims.is_empty:
            return rows.asked_rows(pod, self._claims)
        return rows.claimed_containers(pod, info)

    def _reason(self, pod: ClusterPod) -> Reason:
        if pod.pod.is_gpu:
            return reason_of(pod, self._verdicts.of(pod.uid))
        return claim_reason_of(pod, "; ".join(self._claims.missing(pod)))


def _pod_steps(each: _AnyPod) -> int:
    return _steps_of(each.pod) if isinstance(each, _Unheld) else STEPS_OF_ITEM + len(each.allocations)


def _steps_of(pod: ClusterPod) -> int:
    """How long a look at what the pod asks for takes."""
    mentions = sum(1 + 4 * len(each.claims) for each in pod.pod.containers)
    return STEPS_OF_ITEM + len(pod.claims) + mentions


def _ref(each: _AnyPod) -> PodRef:
    return each.pod if isinstance(each, PodHold) else each.pod.pod.ref


def _stage(each: _AnyPod) -> PodStage:
    if isinstance(each, PodHold):
        return rows.stage_of(each)
    if not each.node:
        return PodStage.WAITING
    return PodStage.BOUND if each.pod.pod.node else PodStage.RESERVED


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
