"""The cluster-wide view over HTTP: paths and queries in, JSON out.

In: a path below `/view/`, the query, the headers of the request. Out: a status and a document, or an `ErrorView`. One
document is made at a time, so that views never take more of the event loop than one caller could; agents are asked
outside of that. Sums are for everybody; names of pods, and what is asked by namespace, for who may list the pods. Every
replica that has the cluster in its cache answers; only the leader knows reservations and
filter's verdicts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.view.access import Reviews, Viewers, token_in
from deviceplugin.cluster.view.live import ORDER_S, LiveUse, NodeUse, node_with_use, pod_with_use
from deviceplugin.cluster.view.query import (
    BY_NODE_USE,
    BY_POD_USE,
    NodesQuery,
    PodsQuery,
    described,
    events_query,
    no_query,
    node_query,
    nodes_query,
    pods_query,
)
from deviceplugin.cluster.view.views import ClusterViews, Replica
from deviceplugin.errors import ParseError
from deviceplugin.model.cluster_view import ErrorView, Head, NodesView, OneNodeView, PodsView
from deviceplugin.scheduler.leadership import Leadership
from deviceplugin.serve.messages import HttpError
from deviceplugin.structs import replace

_CLUSTER, _NODES, _PODS, _EVENTS = "/view/cluster", "/view/nodes", "/view/pods", "/view/events"
_ALL = ""  # namespaces
_Require = Callable[[str], Awaitable[None]]
"""Raises an HttpError if the caller may not read the pods of a namespace."""
_PATHS = (_CLUSTER, _NODES, f"{_NODES}/NAME", _PODS, _EVENTS)


class ViewService:
    """`answer` never raises for bad input."""

    def __init__(
        self,
        extender: Extender,
        leadership: Leadership,
        reviews: Reviews,
        live: LiveUse,
        *,
        version: str,
    ) -> None:
        def replica() -> Replica:
            return Replica(leadership.identity, leadership.leader, version)

        self._views = ClusterViews(extender.cache, extender.verdicts, extender.recent_events, replica)
        self._viewers = Viewers(reviews)
        self._live = live
        self._leadership = leadership
        self._turn = asyncio.Lock()

    async def reads_all(self, headers: Mapping[str, str], namespace: str, peer: str) -> bool:
        """Whether the caller may read the pods of all namespaces; HttpError if not even those of this one."""
        return await self._viewers.reads_all(token_in(headers), namespace, peer)

    async def answer(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], peer: str
    ) -> tuple[int, bytes]:
        async def require(namespace: str) -> None:
            await self.reads_all(headers, namespace, peer)

        try:
            found = await self._document(path, dict(query), require)
        except ParseError as error:
            return self._error(400, error.message)
        except HttpError as error:
            return self._error(error.status, error.sentence)
        if isinstance(found, str):
            return self._error(404, found)
        return 200, msgspec.json.encode(found)

    async def _document(self, path: str, asked: dict[str, str], require: _Require) -> Head | str:
        """A document, or the sentence that says why there is none."""
        if path == _NODES:
            nodes = nodes_query(asked)
            if nodes.with_holders:
                await require(_ALL)
            return await self._nodes(nodes)
        if path == _PODS:
            pods = pods_query(asked)
            await require(pods.namespace)
            return await self._pods(pods)
        if path == _EVENTS:
            recent = events_query(asked)
            await require(recent.namespace)
            async with self._turn:
                return await self._views.events(recent)
        if path == _CLUSTER:
            no_query(asked)
            async with self._turn:
                return await self._views.cluster()
        if path.startswith(f"{_NODES}/"):
            live = node_query(asked)
            await require(_ALL)
            return await self._node(path.removeprefix(f"{_NODES}/"), live)
        return f"no such view; the views are {', '.join(_PATHS)}"

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
        return replace(found, items=await described(found.items, lambda row: node_with_use(row, uses[row.node])))

    async def _pods(self, query: PodsQuery) -> PodsView:
        uses: Mapping[str, NodeUse] = {}
        if query.sort in BY_POD_USE:
            async with self._turn:
                names = await self._views.nodes_of_pods(query)
            uses = await self._live.of(names, oldest_s=ORDER_S)
        async with self._turn:
            found = await self._views.pods(query, uses)
        if not query.live:
            return found
        uses = await self._live.of({row.node for row in found.items if row.node})
        items = await described(found.items, lambda row: pod_with_use(row, uses[row.node]) if row.node else row)
        return replace(found, items=items)

    async def _node(self, name: str, live: bool) -> OneNodeView | str:
        found = self._views.node(name)
        if found is None:
            return f"no node {name[:80]!r} has vcuda's GPUs"
        if not live:
            return found
        uses = await self._live.of([name])
        return replace(found, item=node_with_use(found.item, uses[name]))

    def _error(self, status: int, sentence: str) -> tuple[int, bytes]:
        return status, msgspec.json.encode(ErrorView(sentence, self._leadership.leader))
