"""Reads the scheduler's cluster-wide view: all pages of a list.

In: a `SchedulerClient` and what is asked. Out: the types of `model.cluster_view`; KubeError with the scheduler's
sentence. A list that changed so much that its pages do not fit together is read again from the beginning.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from deviceplugin.cli.scheduler_client import Answer, Query, SchedulerClient, scheduler_refusal
from deviceplugin.errors import KubeError, VcudaError
from deviceplugin.model.cluster_view import (
    MOST_IN_DETAIL,
    MOST_ROWS,
    ClusterEventRow,
    ClusterEventsView,
    ClusterView,
    Explanation,
    NodeRow,
    NodesView,
    OneNodeView,
    PodRow,
    PodsView,
)

Row = TypeVar("Row", NodeRow, PodRow, ClusterEventRow)
Document = TypeVar("Document", ClusterView, Explanation, OneNodeView, NodesView, PodsView, ClusterEventsView)
_MOST_ROWS = 200_000
_MOST_TRIES = 3
_GONE = 410


@dataclass(frozen=True, slots=True)
class Found(Generic[Row]):
    """`total` counts what matches, of which `rows` may be the first; `at` is when the scheduler answered."""

    rows: tuple[Row, ...]
    total: int
    at: float


@dataclass(frozen=True, slots=True)
class ViewClient:
    """`client` asks the scheduler."""

    client: SchedulerClient

    async def cluster(self) -> ClusterView:
        return decoded(await self.client.get("/view/cluster", {}), ClusterView)

    async def nodes(self, query: Query, *, most: int = 0) -> Found[NodeRow]:
        """All nodes that match; with `most`, the first of them."""
        return await self._all("/view/nodes", query, NodesView, _node_key, most=most)

    async def node(self, name: str, *, live: bool) -> tuple[NodeRow, float]:
        """KubeError with code 404 where there is no such node."""
        query = {"live": "1"} if live else {}
        view = decoded(await self.client.get(f"/view/nodes/{quote(name, safe='')}", query), OneNodeView)
        return view.item, view.at

    async def pods(self, query: Query, *, most: int = 0) -> Found[PodRow]:
        return await self._all("/view/pods", query, PodsView, _pod_key, most=most)

    async def events(self, query: Query) -> Found[ClusterEventRow]:
        """The newest first."""
        return await self._all("/view/events", query, ClusterEventsView, _event_key, most=0)

    async def _all(
        self,
        path: str,
        query: Query,
        kind: type[Any],
        key: Callable[[Row], str],
        *,
        most: int,
    ) -> Found[Row]:
        for _ in range(_MOST_TRIES):
            try:
                return await self._pages(path, query, kind, key, most=most)
            except KubeError as error:
                if error.code != _GONE:
                    raise
        raise VcudaError("the list changes faster than it can be read; narrow it, or try again")

    async def _pages(
        self, path: str, query: Query, kind: type[Any], key: Callable[[Row], str], *, most: int
    ) -> Found[Row]:
        page = MOST_IN_DETAIL if {"gpus", "holders"} & query.keys() else MOST_ROWS
        rows: dict[str, Row] = {}
        token, seen = "", set[str]()
        while True:
            asked = {**query, "limit": str(min(page, most) if most else page)} | ({"more": token} if token else {})
            view = decoded(await self.client.get(path, asked), kind)
            rows |= {key(row): row for row in view.items}
            token = view.more
            if not token or (most and len(rows) >= most):
                return Found(tuple(rows.values())[: most or None], view.total, view.at)
            if token in seen:
                raise VcudaError("the scheduler gives the same page again and again; report this with its version")
            seen.add(token)
            if len(rows) > _MOST_ROWS:
                raise VcudaError(f"there are more than {_MOST_ROWS} rows; narrow the list, by a namespace or a node")


def _node_key(row: NodeRow) -> str:
    return row.node


def _pod_key(row: PodRow) -> str:
    """A pod whose Binding got no answer may stand on two nodes."""
    return f"{row.uid} {row.node}"


def _event_key(row: ClusterEventRow) -> str:
    """A pod that is refused again while pages are read has another one then."""
    return f"{row.kind.value} {row.uid} {row.node} {row.at} {row.sentence}"


def decoded(answer: Answer, kind: type[Document]) -> Document:
    """The document; KubeError with the scheduler's sentence, or one that says that it is of another version."""
    if answer.status != 200:
        raise scheduler_refusal(answer.status, answer.body)
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.MsgspecError:
        raise VcudaError(
            "the scheduler's answer is of another version of vcuda; use its own version of vcuda"
        ) from None
