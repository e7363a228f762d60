"""The documents of the view, from the scheduler's cache.

In: a query that the caller may ask. Out: a document of `model.cluster_view`, of the device plugin's GPUs
and of those that claims get. Reads only. Long walks give way to other requests; a node that changes meanwhile is
described as it is when its turn comes.
"""

import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, TypedDict

import msgspec

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain.verdicts import Reason, Verdicts, reason_of
from deviceplugin.cluster.extender.recent_events import RecentEvents
from deviceplugin.cluster.view import rows
from deviceplugin.cluster.view.live import NodeUse, known_sum
from deviceplugin.cluster.view.query import (
    NOTHING_KNOWN,
    STEPS_OF_ITEM,
    EventsQuery,
    Key,
    NamespacesQuery,
    NodeFilter,
    NodeSort,
    NodesQuery,
    PodSort,
    PodsQuery,
    amounts_place,
    cut,
    described,
    is_among,
    namespace_key,
    node_key,
    paced,
)
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.cluster_view import (
    ClusterEventRow,
    ClusterEventsView,
    ClusterView,
    ContainerRow,
    GpuRow,
    NamespacesView,
    NodeRow,
    NodesView,
    OneNodeView,
    OnePodView,
    PodRow,
    PodStage,
    PodsView,
)
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import DEFAULT_DOMAIN
from deviceplugin.placement.node_state import NodeState
from deviceplugin.structs import replace

_SLICE = 250
_TOTALS = (
    "nodes",
    "nodes_with_problem",
    "gpus",
    "free_gpus",
    "unavailable_gpus",
    "gpus_of_unavailable_nodes",
    "cores",
    "cores_allocated",
    "blocks",
    "blocks_allocated",
    "pods_bound",
    "pods_reserved",
)
_IN_FULL = NodesQuery(with_gpus=True, with_holders=True)


class Installation(msgspec.Struct, frozen=True):
    """What is the same for every answer: the version, and what the operator has set (`ClusterView`)."""

    version: str
    namespace: str = ""
    resource_domain: str = DEFAULT_DOMAIN
    node_label: str = ""
    grafana_url: str = ""


class Replica(msgspec.Struct, frozen=True):
    """Who answers: this replica and the leader as it knows it."""

    name: str
    leader: str
    installation: Installation


class _Head(TypedDict):
    """What each document begins with (`model.cluster_view.Head`)."""

    at: float
    replica: str
    leader: str


class _Used(TypedDict):
    """What is used of all GPUs (`ClusterView`)."""

    cores_used: float | None
    memory_used_bytes: int | None
    gpus_measured: int | None


_NOT_ASKED = _Used(cores_used=None, memory_used_bytes=None, gpus_measured=None)


class _Listed(NamedTuple):
    """A pod of the view. `node` is empty if it waits; `hold` is None then, and where it has its node by claims alone.

    `pod` is None where only the hold is looked at.
    """

    ref: PodRef
    node: str = ""
    hold: PodHold | None = None
    pod: ClusterPod | None = None

    @property
    def stage(self) -> PodStage:
        if self.hold is not None:
            return rows.stage_of(self.hold)
        if not self.node:
            return PodStage.PENDING
        return PodStage.BOUND if self.pod is not None and self.pod.pod.node else PodStage.RESERVED


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

    async def cluster(self, uses: Uses | None = None) -> ClusterView:
        """`uses`: what is used on each node, where that is asked for."""
        totals: Counter[str] = Counter(dict.fromkeys(_TOTALS, 0))
        models: Counter[str] = Counter()
        async for info in paced(self._nodes(), self._node_steps):
            row = self._row(info)
            models.update(row.models)
            bound = sum([hold.is_bound for hold in info.holds.values()])
            bound += sum(bool(pod.pod.node) for pod in self._by_claims_on(info))
            totals.update(
                nodes=1,
                nodes_with_problem=int(bool(row.problem)),
                gpus=row.gpu_count,
                free_gpus=row.free_gpus,
                unavailable_gpus=row.unavailable_gpus,
                gpus_of_unavailable_nodes=row.unavailable_gpus if row.problem else 0,
                cores=row.cores,
                cores_allocated=row.cores_allocated,
                blocks=row.blocks,
                blocks_allocated=row.blocks_allocated,
                pods_bound=bound,
                pods_reserved=row.pods - bound,
            )
        reasons = Counter([self._reason(pod).kind async for pod in self._waiting()])
        installation = self._replica().installation
        return ClusterView(
            **self._head(),
            **totals,
            scheduler_version=installation.version,
            grafana_url=installation.grafana_url,
            namespace=installation.namespace,
            resource_domain=installation.resource_domain,
            node_label=installation.node_label,
            pods_pending=sum(reasons.values()),
            pending_by_reason=dict(reasons.most_common()),
            models=dict(sorted(models.items())),
            **(_NOT_ASKED if uses is None else await _used(uses)),
        )

    async def node_names(self, query: NodesQuery) -> tuple[str, ...]:
        """All nodes that match, in no order."""
        nodes = paced(self._nodes(), self._node_steps)
        return tuple([info.name async for info in nodes if _is_asked_for(self._row(info), query)])

    async def nodes_of_pods(self, query: PodsQuery) -> frozenset[str]:
        """The nodes of the pods that match."""
        placed = (each async for each in self._pods(query) if each.node)
        return frozenset([each.node async for each in placed if _is_asked_for_pod(each, query)])

    def pods_on(self, node: str) -> frozenset[PodUid]:
        info = self._cache.nodes.get(node)
        return frozenset() if info is None else frozenset(each.ref.uid for each in self._placed_on(info))

    async def namespace_names(self, asked: str) -> tuple[str, ...]:
        """Of those that match the ones that have pods here, by name."""
        names = {each.ref.namespace async for each in self._pods(PodsQuery(namespace=asked))}
        return tuple(sorted(each for each in names if is_among(each, asked)))

    async def namespaces(
        self, query: NamespacesQuery, uses: Uses = MappingProxyType({}), allowed: frozenset[str] | None = None
    ) -> NamespacesView:
        """`allowed`: the namespaces whose names the caller may know; None: all."""
        sums: defaultdict[str, rows.NamespaceSums] = defaultdict(rows.NamespaceSums)
        async for info in paced(self._nodes(), lambda info: 2 * self._detail_steps(info)):
            rows.add_node(sums, info, self._by_claims_on(info), uses.get(info.name, NOTHING_KNOWN))
        hidden = [] if allowed is None else [sums.pop(each) for each in sums.keys() - allowed]
        summed = (each.row(name) for name, each in sums.items() if is_among(name, query.namespace))
        page = await cut(summed, lambda row: namespace_key(row, query), query.page)
        others = rows.total(hidden).row("") if hidden and query.namespace in ("", "*") else None
        return NamespacesView(**self._head(), items=page.items, total=page.total, more=page.more, others=others)

    async def nodes(self, query: NodesQuery, uses: Uses = MappingProxyType({})) -> NodesView:
        """`uses`: what is used on each node, where the order goes by it."""

        def key(info: NodeInfo) -> Key | None:
            row = self._row(info)
            if not _is_asked_for(row, query):
                return None
            return node_key(row, lambda: rows.gpu_rows(info), uses.get(info.name, NOTHING_KNOWN), query)

        asks_gpus = query.by_part or query.sort is NodeSort.IDLE
        page = await cut(paced(self._nodes(), self._detail_steps if asks_gpus else self._node_steps), key, query.page)
        steps = self._detail_steps if query.with_gpus else self._node_steps
        items = await described(page.items, lambda info: self._node(info, query), steps)
        return NodesView(**self._head(), items=items, total=page.total, more=page.more)

    def node(self, name: str, allowed: frozenset[str] | None = None) -> OneNodeView | None:
        """None if no node of that name has an inventory or holds anything. `allowed` as of `NodesQuery`."""
        info = self._cache.nodes.get(name)
        if info is None or not self._is_shown(info):
            return None
        return OneNodeView(**self._head(), item=self._node(info, replace(_IN_FULL, allowed=allowed)))

    def gpus(self, node: str) -> tuple[GpuRow, ...]:
        info = self._cache.nodes.get(node)
        return () if info is None else rows.gpu_rows(info)

    async def pods(self, query: PodsQuery, uses: Uses = MappingProxyType({})) -> PodsView:
        """`uses` as of `nodes`."""
        page = await cut(self._pods(query), lambda each: self._pod_key(each, query, uses), query.page)
        items = await described(page.items, self._pod, _pod_steps)
        return PodsView(**self._head(), items=items, total=page.total, more=page.more)

    async def pod(self, namespace: str, name: str) -> OnePodView | None:
        """Of several of that name the youngest: one that ends may have a successor."""
        asked = (namespace, name)
        placed = self._pods(PodsQuery(namespace=namespace))
        found = [self._pod(each) async for each in placed if (each.ref.namespace, each.ref.name) == asked]
        if not found:
            return None
        return OnePodView(**self._head(), item=max(found, key=lambda row: (row.created, row.uid)))

    async def events(self, query: EventsQuery) -> ClusterEventsView:
        def key(numbered: tuple[int, ClusterEventRow]) -> Key | None:
            number, event = numbered
            return (event.at, number) if _is_asked_for_event(event, query) else None

        page = await cut(self._events, key, query.page)
        return ClusterEventsView(
            **self._head(),
            items=tuple(event for _, event in page.items),
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
        row = rows.node_row(info, rows.gpu_rows(info), by_claims=len(self._by_claims_on(info)))
        if len(self._described) > 2 * len(self._cache.nodes) + _SLICE:
            self._described.clear()  # of nodes that are gone
        self._described[info.name] = (state, sign, row)
        return row

    def _node(self, info: NodeInfo, query: NodesQuery) -> NodeRow:
        if not query.with_gpus:
            return self._row(info)
        named = query.allowed if query.with_holders else frozenset[str]()
        return replace(self._row(info), gpus=rows.with_holders(info, rows.gpu_rows(info), named=named))

    def _node_steps(self, info: NodeInfo) -> int:
        return STEPS_OF_ITEM + len(info.holds) + 4 * len(info.claims.holds)

    def _detail_steps(self, info: NodeInfo) -> int:
        """Every share becomes a row."""
        return 2 * self._node_steps(info) + 4 * sum(len(hold.allocations) for hold in info.holds.values())

    async def _waiting(self) -> AsyncIterator[ClusterPod]:
        """Pods that wait and for which nothing is reserved."""
        async for pod in paced(tuple(self._cache.waiting.values()), _steps_of):
            if not any(self._cache.holds(pod.uid)):
                yield pod
        async for pod in paced(tuple(self._claims.waiting.values()), _steps_of):
            if not pod.pod.is_gpu and self._claims.waits(pod):
                yield pod

    def _by_claims_on(self, info: NodeInfo) -> list[ClusterPod]:
        """A pod that asks in both ways is one, of the device plugin's."""
        return [pod for pod in self._claims.pods_on(info.claims) if pod.uid not in info.holds]

    def _placed_on(self, info: NodeInfo) -> Iterator[_Listed]:
        for hold in tuple(info.holds.values()):
            yield _Listed(hold.pod, info.name, hold)
        for pod in self._by_claims_on(info):
            yield _Listed(pod.pod.ref, info.name, None, pod)

    async def _pods(self, query: PodsQuery) -> AsyncIterator[_Listed]:
        names = (query.node,) if query.node else tuple(self._cache.nodes)
        if query.stages != {PodStage.PENDING}:
            infos = filter(None, map(self._cache.nodes.get, names))
            async for each in paced(chain.from_iterable(map(self._placed_on, infos)), _pod_steps):
                yield each
        if PodStage.PENDING in query.stages and not query.node:
            async for pod in self._waiting():
                yield _Listed(pod.pod.ref, pod=pod)

    def _pod_key(self, each: _Listed, query: PodsQuery, uses: Uses) -> Key | None:
        ref = each.ref
        if not _is_asked_for_pod(each, query):
            return None
        if each.stage not in query.stages:
            return None
        last: Key = (ref.namespace, ref.name, ref.uid, each.node)
        if query.sort is PodSort.NAME:
            return last
        if query.sort is PodSort.NODE:
            return (each.node, *last)
        if query.sort is PodSort.AGE:
            pod = each.pod or self._cache.pod(ref.uid)
            return (0.0 if pod is None else pod.pod.created, *last)
        use = uses.get(each.node, NOTHING_KNOWN)
        return (*amounts_place(ref.uid, self._containers(each), use, query), *last)

    def _pod(self, each: _Listed) -> PodRow:
        pod = each.pod or self._cache.pod(each.ref.uid)
        if each.hold is not None:
            reason, priority = each.hold.problem, each.hold.priority
        else:
            reason = self._reason(pod).sentence() if pod is not None and not each.node else ""
            priority = 0 if pod is None else pod.priority
        return PodRow(
            uid=each.ref.uid,
            namespace=each.ref.namespace,
            pod=each.ref.name,
            stage=each.stage,
            node=each.node or None,
            created=0.0 if pod is None else pod.pod.created,
            containers=self._containers(each),
            reason=reason,
            priority=priority,
            gang=str(pod.gang) if pod is not None and pod.gang is not None else None,
            scheduler="" if pod is None else pod.scheduler,
        )

    def _containers(self, each: _Listed) -> tuple[ContainerRow, ...]:
        info = self._cache.nodes.get(each.node)
        if each.hold is not None:
            asked = rows.held_containers(each.hold, info)
        else:
            asked = () if each.pod is None else rows.requested_containers(each.pod)
        return (*asked, *self._by_claims(each.ref.uid, info))

    def _by_claims(self, uid: PodUid, info: NodeInfo | None) -> tuple[ContainerRow, ...]:
        """A pod can ask in both ways, with different containers."""
        pod = self._claims.pods.get(uid)
        if pod is None:
            return ()
        if info is None or info.claims.is_empty:
            return rows.asked_rows(pod, self._claims)
        return rows.claimed_containers(pod, info)

    def _reason(self, pod: ClusterPod) -> Reason:
        if pod.pod.is_gpu:
            return reason_of(pod, self._verdicts.of(pod.uid))
        return rows.claim_reason_of(pod, "; ".join(self._claims.missing(pod)))


def _pod_steps(each: _Listed) -> int:
    held = 0 if each.hold is None else len(each.hold.allocations)
    return STEPS_OF_ITEM + held if each.pod is None else _steps_of(each.pod)


def _steps_of(pod: ClusterPod) -> int:
    """How long a look at what the pod asks for takes."""
    mentions = sum(1 + 4 * len(each.claims) for each in pod.pod.containers)
    return STEPS_OF_ITEM + len(pod.claims) + mentions


def _is_asked_for(row: NodeRow, query: NodesQuery) -> bool:
    if query.name not in row.node.lower():
        return False
    if query.model and not any(query.model in model.lower() for model in row.models):
        return False
    if query.state is NodeFilter.FREE:
        return row.free_gpus > 0
    return query.state is not NodeFilter.PROBLEM or bool(row.problem) or row.unavailable_gpus > 0


def _is_asked_for_pod(each: _Listed, query: PodsQuery) -> bool:
    return query.has(each.ref.namespace) and query.is_named(each.ref.namespace, each.ref.name)


async def _used(uses: Uses) -> _Used:
    """Of all GPUs together."""
    cores, memory, measured = None, None, 0
    async for use in paced(uses.values(), _use_steps):
        percents = use.percents
        cores = known_sum((cores, float(sum(percents)) if percents else None))
        memory = known_sum((memory, *(each.memory_used_bytes for each in use.gpus.values())))
        measured += len(percents)
    return _Used(cores_used=cores, memory_used_bytes=memory, gpus_measured=measured)


def _use_steps(use: NodeUse) -> int:
    return STEPS_OF_ITEM + len(use.gpus)


def _is_asked_for_event(event: ClusterEventRow, query: EventsQuery) -> bool:
    if query.kind not in (None, event.kind) or query.node not in ("", event.node):
        return False
    return query.has(event.namespace)
