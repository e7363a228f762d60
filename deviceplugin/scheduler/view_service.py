"""The cluster-wide view over HTTP: paths and queries in, JSON out.

In: a path below `/view/`, the query, the headers of the request. Out: a status and a document, or an `ErrorView`. One
document is made at a time, so that views never take more of the event loop than one caller could; agents are asked
outside of that. Sums are for everybody; names of pods, and what is asked by namespace, for who may list the pods: a
caller who may in some namespaces reads about these, and of all others the sums. Only the leader knows reservations and
filter's verdicts, and what the others are asked is passed on to it (`leader_link`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.view.access import FORBIDDEN, Reviews, Viewers, token_for, tokens_in
from deviceplugin.cluster.view.live import EVERY_S, ORDER_S, LiveUse, NodeUse, UseHistory, node_with_use, pod_with_use
from deviceplugin.cluster.view.query import (
    BY_NODE_USE,
    BY_POD_USE,
    STEPS_OF_ITEM,
    NamespacesQuery,
    NodesQuery,
    PodsQuery,
    described,
    events_query,
    is_pattern,
    live_query,
    namespaces_query,
    nodes_query,
    pods_query,
)
from deviceplugin.cluster.view.views import ClusterViews, Installation, Replica
from deviceplugin.errors import ParseError
from deviceplugin.model.cluster_view import (
    ClusterView,
    ErrorView,
    Head,
    NamespacesView,
    NodeRow,
    NodesView,
    OneNodeView,
    OnePodView,
    PodsView,
)
from deviceplugin.scheduler.leadership import Leadership
from deviceplugin.serve.messages import HttpError
from deviceplugin.structs import replace

_CLUSTER, _NODES, _PODS, _EVENTS = "/view/cluster", "/view/nodes", "/view/pods", "/view/events"
_NAMESPACES = "/view/namespaces"
_UNAVAILABLE = 503
_ALL = ""  # namespaces
_PATHS = (_CLUSTER, _NODES, f"{_NODES}/NAME", _PODS, f"{_PODS}/NAMESPACE/NAME", _NAMESPACES, _EVENTS)


class _Caller(msgspec.Struct, frozen=True):
    """Who asks, by the tokens in `headers`."""

    viewers: Viewers
    headers: Mapping[str, str]
    peer: str

    async def reads_all(self, namespace: str) -> bool:
        """Whether he may read the pods of all namespaces; HttpError if not even those of this one."""
        return await self.viewers.reads_all(token_for(namespace, tokens_in(self.headers)), namespace, self.peer)

    async def readable(self, namespaces: tuple[str, ...]) -> frozenset[str]:
        return await self.viewers.readable(tokens_in(self.headers), namespaces, self.peer)


class ViewService:
    """`answer` never raises for bad input."""

    def __init__(
        self,
        extender: Extender,
        leadership: Leadership,
        reviews: Reviews,
        live: LiveUse,
        installation: Installation,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        def replica() -> Replica:
            return Replica(leadership.identity, leadership.leader, installation)

        self._views = ClusterViews(extender.cache, extender.verdicts, extender.recent_events, replica)
        self._viewers = Viewers(reviews)
        self._live = live
        self._leadership = leadership
        self._turn = asyncio.Lock()
        self._history = UseHistory(wall)

    async def run(self) -> None:
        """Keeps what pods used, once a minute."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.sample()

    async def sample(self) -> None:
        async with self._turn:
            names = await self._views.nodes_of_pods(PodsQuery())
        for name, use in (await self._live.of(self._history.chosen(sorted(names)))).items():
            self._history.note(name, use, self._views.pods_on(name))

    async def reads_all(self, headers: Mapping[str, str], namespace: str, peer: str) -> bool:
        """Whether the caller may read the pods of all namespaces; HttpError if not even those of this one."""
        return await _Caller(self._viewers, headers, peer).reads_all(namespace)

    async def owner(self, headers: Mapping[str, str], peer: str) -> str:
        """Of the first token; empty without one, or while the API server cannot say. HttpError for an unknown one."""
        token = token_for(_ALL, tokens_in(headers))
        try:
            return await self._viewers.owner(token, peer) if token else ""
        except HttpError as error:
            if error.status != _UNAVAILABLE:
                raise
            return ""

    async def answer(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], peer: str
    ) -> tuple[int, bytes]:
        try:
            found = await self._document(path, dict(query), _Caller(self._viewers, headers, peer))
        except ParseError as error:
            return self._error(400, error.message)
        except HttpError as error:
            return self._error(error.status, error.sentence)
        if isinstance(found, str):
            return self._error(404, found)
        return 200, msgspec.json.encode(found)

    async def _document(self, path: str, asked: dict[str, str], caller: _Caller) -> Head | str:
        """A document, or the sentence that says why there is none."""
        if path == _NODES:
            nodes = nodes_query(asked)
            if nodes.with_holders:
                nodes = replace(nodes, allowed=await self._allowed(_ALL, caller))
            return await self._nodes(nodes)
        if path == _PODS:
            pods = pods_query(asked)
            return await self._pods(replace(pods, allowed=await self._allowed(pods.namespace, caller)))
        if path == _NAMESPACES:
            return await self._namespaces(namespaces_query(asked), caller)
        if path == _EVENTS:
            recent = events_query(asked)
            recent = replace(recent, allowed=await self._allowed(recent.namespace, caller))
            async with self._turn:
                return await self._views.events(recent)
        if path == _CLUSTER:
            return await self._cluster(live=live_query(asked))
        if path.startswith(f"{_NODES}/"):
            live = live_query(asked)
            return await self._node(path.removeprefix(f"{_NODES}/"), live, await self._allowed(_ALL, caller))
        if path.startswith(f"{_PODS}/"):
            live = live_query(asked)
            namespace, _, name = path.removeprefix(f"{_PODS}/").partition("/")
            await caller.reads_all(namespace or _ALL)
            return await self._pod(namespace, name, live)
        return f"no such view; the views are {', '.join(_PATHS)}"

    async def _allowed(self, namespace: str, caller: _Caller) -> frozenset[str] | None:
        """Of the namespaces that match the ones whose pods the caller may read; None: all. HttpError if none."""
        if namespace and not is_pattern(namespace):
            await caller.reads_all(namespace)
            return None
        return await self._readable(namespace, caller, or_none=False)

    async def _readable(self, namespace: str, caller: _Caller, *, or_none: bool) -> frozenset[str] | None:
        """`or_none`: an empty answer in place of an error for a caller who may read none of them."""
        try:
            await caller.reads_all(_ALL)
        except HttpError as error:
            if error.status != FORBIDDEN or not tokens_in(caller.headers):
                raise
            async with self._turn:
                names = await self._views.namespace_names(namespace)
            found = await caller.readable(names)
            if found or or_none:
                return found
            raise
        return None

    async def _namespaces(self, query: NamespacesQuery, caller: _Caller) -> NamespacesView:
        allowed = await self._readable(query.namespace, caller, or_none=True)
        uses: Mapping[str, NodeUse] = {}
        if query.live:
            uses = await self._all_uses(PodsQuery())
        async with self._turn:
            return await self._views.namespaces(query, uses, allowed)

    async def _all_uses(self, query: PodsQuery) -> Mapping[str, NodeUse]:
        """Of the nodes of all pods that match."""
        async with self._turn:
            names = await self._views.nodes_of_pods(query)
        return await self._live.of(names, oldest_s=ORDER_S)

    async def _cluster(self, *, live: bool) -> ClusterView:
        uses: Mapping[str, NodeUse] | None = None
        if live:
            async with self._turn:
                names = await self._views.node_names(NodesQuery())
            uses = await self._live.of(names, oldest_s=ORDER_S)
        async with self._turn:
            return await self._views.cluster(uses)

    async def _nodes(self, query: NodesQuery) -> NodesView:
        """An order by use asks all agents of nodes that match; the rows of the page have what is used now."""
        uses: Mapping[str, NodeUse] = {}
        if query.sort in BY_NODE_USE:
            async with self._turn:
                names = await self._views.node_names(query)
            uses = await self._live.of(names, oldest_s=ORDER_S)
        async with self._turn:
            found = await self._views.nodes(query, uses)
        if not query.live:
            return found
        uses = await self._live.of(row.node for row in found.items)
        items = await described(found.items, lambda row: self._with_use(row, uses), _steps_with_use)
        return replace(found, items=items)

    def _with_use(self, row: NodeRow, uses: Mapping[str, NodeUse]) -> NodeRow:
        return node_with_use(row, uses[row.node], row.gpus or self._views.gpus(row.node))

    async def _pods(self, query: PodsQuery) -> PodsView:
        uses: Mapping[str, NodeUse] = {}
        if query.sort in BY_POD_USE:
            uses = await self._all_uses(query)
        async with self._turn:
            found = await self._views.pods(query, uses)
        if not query.live:
            return found
        uses = await self._live.of({row.node for row in found.items if row.node})
        items = await described(found.items, lambda row: pod_with_use(row, uses[row.node]) if row.node else row)
        return replace(found, items=items)

    async def _node(self, name: str, live: bool, allowed: frozenset[str] | None) -> OneNodeView | str:
        found = self._views.node(name, allowed)
        if found is None:
            return f"no node {name[:80]!r} has vcuda's GPUs"
        if not live:
            return found
        uses = await self._live.of([name])
        return replace(found, item=self._with_use(found.item, uses))

    async def _pod(self, namespace: str, name: str, live: bool) -> OnePodView | str:
        async with self._turn:
            found = await self._views.pod(namespace, name)
        if found is None:
            return f"no pod {namespace[:80]}/{name[:80]} requests GPUs and has not ended"
        row = found.item
        if row.node is None:
            return found
        self._history.watch(row.node)
        if live:
            row = pod_with_use(row, (await self._live.of([row.node]))[row.node])
        return replace(found, item=row, history=self._history.of(found.item.node or "", row.uid))

    def _error(self, status: int, sentence: str) -> tuple[int, bytes]:
        return status, msgspec.json.encode(ErrorView(sentence, self._leadership.leader))


def _steps_with_use(row: NodeRow) -> int:
    """The rows of the GPUs may have to be made."""
    return STEPS_OF_ITEM * (1 + row.gpu_count)
