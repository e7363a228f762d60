"""`vcuda top`: what nodes, GPUs and pods use beside what they hold; on a terminal refreshed until q is pressed.

In: the scheduler's view, with what the agents say. Out: a table that refreshes itself on a terminal; elsewhere, and
with --once, one table, or the rows as JSON or YAML. In a large cluster the terminal shows the first rows of the chosen
order, and only their agents are asked.

The tables of `vcuda top`: how each is read from the view, and how its rows are shown.

In: a `ViewClient` and an order. Out: rows in that order, as lines. With `most` only the first rows of a large cluster
are read, in the order of the scheduler.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from deviceplugin import log
from deviceplugin.cli import nodes, pods
from deviceplugin.cli.command import OperatorCommand, headers_option, output_option
from deviceplugin.cli.connection import Connection, all_namespaces_option, connected
from deviceplugin.cli.listing import Kind, Shape, show_rows
from deviceplugin.cli.scheduler_client import opened
from deviceplugin.cli.screen import INTERVAL_S, Frame, Page, is_interactive, watch
from deviceplugin.cli.view_client import Found, ViewClient
from deviceplugin.errors import ConfigError

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
    """The view's own order matters only if not all rows are read; by node each agent is asked once for all."""
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
    kind = nodes.NODE_USE
    found = await view.nodes(_asked(kind, query), most=_MOST["nodes"] if query.most else 0)
    return _top(kind, query, found, found.rows)


async def _gpus(view: ViewClient, query: TopQuery) -> TopRows:
    kind = nodes.GPU_USE
    found = await view.nodes(_asked(kind, query) | {"gpus": "1"}, most=_MOST["gpus"] if query.most else 0)
    return _top(kind, query, found, nodes.entries(found.rows))


async def _bound(view: ViewClient, kind: Kind[Any], query: TopQuery) -> Found[Any]:
    """Pods that hold GPUs; those that wait use none."""
    asked = _asked(kind, query) | ({"namespace": query.namespace} if query.namespace else {}) | {"stage": "bound"}
    return await view.pods(asked, most=_MOST["pods"] if query.most else 0)


async def _pods(view: ViewClient, query: TopQuery) -> TopRows:
    found = await _bound(view, pods.POD_USE, query)
    return _top(pods.POD_USE, query, found, found.rows)


async def _containers(view: ViewClient, query: TopQuery) -> TopRows:
    found = await _bound(view, pods.CONTAINER_USE, query)
    return _top(pods.CONTAINER_USE, query, found, pods.entries(found.rows))


TABLES = {
    "nodes": TopTable(nodes.NODE_USE.sorts, _nodes),
    "gpus": TopTable(nodes.GPU_USE.sorts, _gpus),
    "pods": TopTable(pods.POD_USE.sorts, _pods, is_namespaced=True),
    "containers": TopTable(pods.CONTAINER_USE.sorts, _containers, is_namespaced=True),
}
SORTS = sorted({word for each in TABLES.values() for word in each.sorts})


_WORDS = {
    "node": "nodes", "no": "nodes", "gpu": "gpus", "pod": "pods", "po": "pods", "container": "containers"
} | {word: word for word in TABLES}  # fmt: skip
_EXAMPLES = (
    ("What the nodes' GPUs hold and use.", "top"),
    ("The busiest GPUs, once.", "top gpus --sort-by used --once"),
    ("Pods of all namespaces, those that are throttled most first.", "top pods -A --sort-by throttled"),
    ("Containers of one namespace, for a script.", "top containers -n research -o json"),
)
_KEYS = (
    ("1, 2, 3, 4 or Tab", "nodes, GPUs, pods, containers"),
    (", ".join(ORDER_KEYS), f"sort by {', '.join(ORDER_KEYS.values())}"),
    ("R", "reverse the order"),
)


class _What(click.ParamType[str]):
    """One of the tables, in kubectl's words for it."""

    name = "nodes|gpus|pods|containers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value) not in _WORDS:
            self.fail(f"{str(value)[:40]!r} is not one of nodes, gpus, pods, containers", param, ctx)
        return _WORDS[str(value)]


@click.command("top", cls=OperatorCommand, examples=_EXAMPLES)
@click.argument("what", type=_What(), default="nodes", metavar="[nodes|gpus|pods|containers]")
@all_namespaces_option
@click.option("--once", is_flag=True, help="Print one table also on a terminal.")
@click.option(
    "--interval",
    type=click.FloatRange(1, 3600),
    default=INTERVAL_S,
    show_default=True,
    help="Seconds between refreshes.",
)
@click.option("--sort-by", type=click.Choice(SORTS), default="name", show_default=True, help="Order of rows.")
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@output_option("table", "wide", "json", "yaml", "name")
@headers_option
@connected
def top(
    what: str,
    all_namespaces: bool,
    once: bool,
    interval: float,
    sort_by: str,
    reverse: bool,
    output: str,
    no_headers: bool,
    connection: Connection,
) -> None:
    """Show what nodes, GPUs, pods or containers use, beside what they hold.

    UTIL is the driver's utilization of the whole GPU. CORES and MEMORY are what pods hold; USED is what is used of it,
    measured by the node's agent. THROTTLED: for how long a container waited for its own limit since it started. `-`:
    not known.

    On a terminal the table refreshes itself; press ? for the keys.
    """
    log.open_log(level="error", format_="console")
    if sort_by not in TABLES[what].sorts:
        raise ConfigError(f"--sort-by {sort_by} is not an order of {what}; use {', '.join(TABLES[what].sorts)}")
    screen = _Screen(what, sort_by, reverse, output == "wide", not no_headers)
    is_live = not once and output in ("table", "wide") and is_interactive()
    asyncio.run(_run(connection, screen, Shape(output, no_headers), all_namespaces, interval if is_live else 0.0))


async def _run(
    connection: Connection, screen: "_Screen", shape: Shape, all_namespaces: bool, interval_s: float
) -> None:
    async with opened(connection) as client:
        view = ViewClient(client)
        screen.namespace = "" if all_namespaces else client.namespace
        if interval_s:
            await watch(
                lambda frame: screen.page(view, frame),
                first=lambda frame: screen.page(view, frame, live=False),
                handle=screen.handle,
                keys=_KEYS,
                interval_s=interval_s,
            )
        else:
            await screen.print_once(view, shape)


class _Screen:
    """What is shown now; keys change it."""

    def __init__(self, what: str, sort_by: str, reverse: bool, wide: bool, headers: bool) -> None:
        self.what = what
        self.sort_by = sort_by
        self.reverse = reverse
        self.wide = wide
        self.headers = headers
        self.namespace = ""

    @property
    def _table(self) -> TopTable:
        return TABLES[self.what]

    def _query(self, *, most: bool, live: bool = True) -> TopQuery:
        return TopQuery(self.sort_by, self.reverse, self.namespace, most, live)

    def handle(self, key: str) -> bool:
        words = list(TABLES)
        if key == "tab":
            key = str((words.index(self.what) + 1) % len(words) + 1)
        if key in ("1", "2", "3", "4"):
            self.what = words[int(key) - 1]
        elif key == "R":
            self.reverse = not self.reverse
        elif ORDER_KEYS.get(key) in self._table.sorts:
            self.reverse = False
            self.sort_by = ORDER_KEYS[key]
        else:
            return False
        if self.sort_by not in self._table.sorts:
            self.sort_by = "name"
        return True

    async def page(self, view: ViewClient, frame: Frame, *, live: bool = True) -> Page:
        """Without `live` what the scheduler itself knows, which is there at once."""
        found = await self._table.read(view, self._query(most=True, live=live))
        lines = found.lines(headers=True, wide=self.wide, width=frame.width)
        where = f" in {self.namespace}" if self.namespace and self._table.is_namespaced else ""
        order = f"by {self.sort_by}{', reversed' if self.reverse else ''}"
        title = f"{self.what}{where}: {found.count_text}   {order}   {found.clock}"
        asking = [] if live else ["asking the agents ..."]
        return Page(lines[1:], "   ".join([title, *asking]), lines[:1])

    async def print_once(self, view: ViewClient, shape: Shape) -> None:
        found = await self._table.read(view, self._query(most=False))
        found.show(shape)
