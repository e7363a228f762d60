"""The tables of `vcuda top`: how each is read from the view, and how its rows are shown.

In: a `ViewClient` and an order. Out: rows in that order, as lines. With `most` only the first rows of a large cluster
are read, in the order of the scheduler.
"""

import datetime as dt
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deviceplugin.cli import node_rows, pod_rows
from deviceplugin.cli.listing import Kind, Shape, show_rows
from deviceplugin.cli.view_client import Found, ViewClient

_MOST = {"nodes": 250, "gpus": 100, "pods": 250, "containers": 250}
"""One page of the view, so that all rows are of one moment."""
ORDER_KEYS = {
    "N": "name",
    "C": "cores",
    "M": "memory",
    "U": "used",
    "F": "free",
    "T": "throttled",
    "B": "used-memory",
    "O": "node",
}
"""By key; letters as in top and k9s."""


@dataclass(frozen=True, slots=True)
class TopQuery:
    """`namespace` is empty for all. Without `live` no agent is asked, and an order by use is none."""

    sort_by: str
    reverse: bool
    namespace: str
    most: bool
    live: bool = True


@dataclass(frozen=True, slots=True)
class TopRows:
    """Rows of one table in their order; `total` counts those of the cluster (of nodes, for GPUs)."""

    kind: Kind[Any]
    rows: Sequence[Any]
    at: float
    shown: int
    total: int

    def lines(self, *, headers: bool, wide: bool, width: int | None) -> list[str]:
        return self.kind.lines(self.rows, at=self.at, headers=headers, wide=wide, width=width)

    def show(self, shape: Shape) -> None:
        show_rows(self.kind, self.rows, at=self.at, shape=shape)

    @property
    def count_text(self) -> str:
        return f"{len(self.rows)}" if self.shown >= self.total else f"{len(self.rows)}, of {self.shown} of {self.total}"

    @property
    def clock(self) -> str:
        return dt.datetime.fromtimestamp(self.at, dt.UTC).strftime("%H:%M:%S UTC")


@dataclass(frozen=True, slots=True)
class TopTable:
    """One of the tables."""

    sorts: Mapping[str, object]
    read: Callable[[ViewClient, TopQuery], Awaitable[TopRows]]
    is_namespaced: bool = False


def _asked(kind: Kind[Any], query: TopQuery) -> dict[str, str]:
    """The view's own order matters only where not all rows are read; by node each agent is asked once for all."""
    if not query.most:
        return {"live": "1"} | ({"sort": "node"} if "node" in kind.sorts else {})
    sort = kind.sorts[query.sort_by]
    if sort.of_use and not query.live:
        sort = next(iter(kind.sorts.values()))
    order = {"sort": sort.server, "order": "desc" if sort.largest_first != query.reverse else "asc"}
    return ({"live": "1"} if query.live else {}) | order | ({"by": sort.by} if sort.by else {})


def _top(kind: Kind[Any], query: TopQuery, found: Found[Any], rows: Sequence[Any]) -> TopRows:
    ordered = kind.ordered(rows, query.sort_by, reverse=query.reverse)
    shown = kind if not query.namespace or kind.columns[0].heading != "NAMESPACE" else kind.without("NAMESPACE")
    return TopRows(shown, ordered, found.at, len(found.rows), found.total)


async def _nodes(view: ViewClient, query: TopQuery) -> TopRows:
    kind = node_rows.NODE_USE
    found = await view.nodes(_asked(kind, query), most=_MOST["nodes"] if query.most else 0)
    return _top(kind, query, found, found.rows)


async def _gpus(view: ViewClient, query: TopQuery) -> TopRows:
    kind = node_rows.GPU_USE
    found = await view.nodes(_asked(kind, query) | {"gpus": "1"}, most=_MOST["gpus"] if query.most else 0)
    return _top(kind, query, found, node_rows.entries(found.rows))


async def _bound(view: ViewClient, kind: Kind[Any], query: TopQuery) -> Found[Any]:
    """Pods that hold GPUs; those that wait use none."""
    asked = _asked(kind, query) | ({"namespace": query.namespace} if query.namespace else {}) | {"stage": "bound"}
    return await view.pods(asked, most=_MOST["pods"] if query.most else 0)


async def _pods(view: ViewClient, query: TopQuery) -> TopRows:
    found = await _bound(view, pod_rows.POD_USE, query)
    return _top(pod_rows.POD_USE, query, found, found.rows)


async def _containers(view: ViewClient, query: TopQuery) -> TopRows:
    found = await _bound(view, pod_rows.CONTAINER_USE, query)
    return _top(pod_rows.CONTAINER_USE, query, found, pod_rows.entries(found.rows))


TABLES = {
    "nodes": TopTable(node_rows.NODE_USE.sorts, _nodes),
    "gpus": TopTable(node_rows.GPU_USE.sorts, _gpus),
    "pods": TopTable(pod_rows.POD_USE.sorts, _pods, is_namespaced=True),
    "containers": TopTable(pod_rows.CONTAINER_USE.sorts, _containers, is_namespaced=True),
}
SORTS = sorted({word for each in TABLES.values() for word in each.sorts})
