"""Reads the scheduler's cluster-wide view: all pages of a list, with the names that the caller may read.

In: a `SchedulerClient` and what is asked. Out: the types of `model.cluster_view`. Where the scheduler shows no names,
those of the pods that the caller may list himself at the API server are filled in by UID, and `notes` says so. A list
that changed so much that its pages do not fit together is read again from the beginning.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from deviceplugin.cli.pod_names import PodNames, own_names, pods_of, with_names
from deviceplugin.cli.scheduler_client import Answer, Query, SchedulerClient, scheduler_refusal
from deviceplugin.errors import KubeError, VcudaError
from deviceplugin.model.cluster_view import (
    MOST_IN_DETAIL,
    MOST_ROWS,
    ClusterEventRow,
    ClusterEventsView,
    ClusterView,
    NodeRow,
    NodesView,
    OneNodeView,
    PodRow,
    PodsView,
)

Row = TypeVar("Row", NodeRow, PodRow, ClusterEventRow)
Document = TypeVar("Document", ClusterView, OneNodeView, NodesView, PodsView, ClusterEventsView)
_MOST_ROWS = 200_000
_MOST_TRIES = 3
_GONE = 410
NO_LIVE = "this scheduler does not ask the agents what is used; what is granted is shown"


@dataclass(frozen=True, slots=True)
class Found(Generic[Row]):
    """`total` counts what matches, of which `rows` may be the first; `at` is when the scheduler answered."""

    rows: tuple[Row, ...]
    total: int
    at: float


@dataclass(slots=True)
class ViewClient:
    """`notes` are sentences for standard error: what the answers do not have, and why."""

    client: SchedulerClient
    notes: dict[str, None] = field(default_factory=dict)
    _no_live: bool = False

    async def cluster(self) -> ClusterView:
        return decoded(await self.client.get("/view/cluster", {}), ClusterView)

    async def nodes(self, query: Query, *, most: int = 0) -> Found[NodeRow]:
        """All nodes that match; with `most`, the first of them."""
        found = await self._all("/view/nodes", query, NodesView, _node_key, most=most)
        return Found(await self._named(found.rows), found.total, found.at)

    async def node(self, name: str, *, live: bool) -> tuple[NodeRow, float]:
        """KubeError with code 404 where there is no such node."""
        query = {"live": "1"} if live else {}
        view = decoded(await self._get(f"/view/nodes/{quote(name, safe='')}", query), OneNodeView)
        (row,) = await self._named((view.item,))
        return row, view.at

    async def pods(self, query: Query, *, most: int = 0) -> Found[PodRow]:
        found = await self._all("/view/pods", query, PodsView, _pod_key, most=most)
        return Found(await self._named(found.rows, query.get("namespace", "")), found.total, found.at)

    async def events(self, query: Query) -> Found[ClusterEventRow]:
        """The newest first."""
        found = await self._all("/view/events", query, ClusterEventsView, _event_key, most=0)
        return Found(await self._named(found.rows, query.get("namespace", "")), found.total, found.at)

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
        page = MOST_IN_DETAIL if "gpus" in query else MOST_ROWS
        rows: dict[str, Row] = {}
        token, seen = "", set[str]()
        while True:
            asked = {**query, "limit": str(min(page, most) if most else page)} | ({"more": token} if token else {})
            view = decoded(await self._get(path, asked), kind)
            rows |= {key(row): row for row in view.items}
            token = view.more
            if not token or (most and len(rows) >= most):
                return Found(tuple(rows.values())[: most or None], view.total, view.at)
            if token in seen:
                raise VcudaError("the scheduler gives the same page again and again; report this with its version")
            seen.add(token)
            if len(rows) > _MOST_ROWS:
                raise VcudaError(f"there are more than {_MOST_ROWS} rows; narrow the list, by a namespace or a node")

    async def _get(self, path: str, query: Query) -> Answer:
        """Without live use where the scheduler does not know it."""
        asked = {name: text for name, text in query.items() if not (self._no_live and name == "live")}
        answer = await self.client.get(path, asked)
        if answer.status == 400 and "live" in asked and "'live'" in str(answer.document.get("error")):
            self._no_live = True
            self.notes[NO_LIVE] = None
            return await self._get(path, query)
        return answer

    async def _named(self, rows: tuple[Row, ...], namespace: str = "") -> tuple[Row, ...]:
        """The rows with the names that the caller may read by rights of their own."""
        hidden = {uid for row in rows for uid, name in pods_of(row) if name is None}
        if not hidden:
            return rows
        names: PodNames = await own_names(self.client, hidden, namespace)
        self.notes[_names_note(len(names), len(hidden))] = None
        return tuple(with_names(row, names) for row in rows)


def _node_key(row: NodeRow) -> str:
    return row.node


def _pod_key(row: PodRow) -> str:
    """A pod whose Binding got no answer may stand on two nodes."""
    return f"{row.uid} {row.node}"


def _event_key(row: ClusterEventRow) -> str:
    """A pod that is refused again while pages are read has another one then."""
    return f"{row.kind.value} {row.uid} {row.node} {row.at} {row.sentence}"


def _names_note(found: int, hidden: int) -> str:
    if found == hidden:
        return "names are those of the pods that you may list; the scheduler shows names to its operators"
    return (
        f"{hidden - found} pods are shown by UID: you may not list them, nor create a token of service account "
        "vcuda-view (the chart's value operators.subjects gives that right)"
    )


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
