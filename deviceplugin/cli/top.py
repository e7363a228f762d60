"""`vcuda top`: what nodes, GPUs, pods and namespaces use of what is allocated, until q is pressed on a terminal.

In: the scheduler's view, with what the agents say. Out: a table that refreshes itself on a terminal; elsewhere, and
with --once, one table, or the rows as JSON or YAML. In a large cluster the terminal shows the first rows of the chosen
order, in the order of the scheduler, and only their agents are asked.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click
import msgspec

from deviceplugin.cli.command import OperatorCommand, misused, name_option
from deviceplugin.cli.connection import Connection, all_namespaces_option, connected
from deviceplugin.cli.nodes import GPU_USE, NODE_USE, gpu_entries
from deviceplugin.cli.pods import CONTAINER_USE, NAMESPACE_ROWS, NAMESPACE_USE, POD_USE, container_entries
from deviceplugin.cli.scheduler_client import NODE_ROWS, POD_ROWS, Found, RowList, SchedulerClient, asked
from deviceplugin.cli.screen import INTERVAL_S, Page, watch
from deviceplugin.cli.table import TOTAL, Kind, Nothing, Shape, listed, show_rows
from deviceplugin.cli.terminal import is_terminal
from deviceplugin.config.param_types import SettingType

ORDER_KEYS = {
    "N": "name",
    "C": "cores",
    "M": "memory",
    "U": "used",
    "F": "free",
    "T": "throttled",
    "B": "used-memory",
    "O": "node",
    "I": "idle",
}
"""By key; letters as in top and k9s."""


class TopTable(msgspec.Struct, frozen=True):
    """One of the tables: the list that it is read from, which rows are made of that, and how they are shown.

    `most`: one page of the list, so that all rows are of one moment.
    """

    kind: Kind[Any]
    rows: RowList[Any]
    most: int
    query: Mapping[str, str] = msgspec.field(default_factory=dict)
    entries: Callable[[Any], Any] = tuple

    @property
    def is_namespaced(self) -> bool:
        return self.kind.columns[0].heading == "NAMESPACE"


_ALLOCATED = {"stage": "allocated"}
TABLES = {
    "nodes": TopTable(NODE_USE, NODE_ROWS, 250),
    "namespaces": TopTable(NAMESPACE_USE, NAMESPACE_ROWS, 250),
    "pods": TopTable(POD_USE, POD_ROWS, 250, _ALLOCATED),
    "gpus": TopTable(GPU_USE, NODE_ROWS, 100, {"gpus": "1"}, gpu_entries),
    "containers": TopTable(CONTAINER_USE, POD_ROWS, 250, _ALLOCATED, container_entries),
}
"""In the order of the keys 1 to 5, of which the page has the first three too."""
SORTS = sorted({word for each in TABLES.values() for word in each.kind.sorts})
_WORDS = {
    "node": "nodes", "no": "nodes", "gpu": "gpus", "pod": "pods", "po": "pods", "container": "containers",
    "namespace": "namespaces", "ns": "namespaces",
} | {word: word for word in TABLES}  # fmt: skip
_EXAMPLES = (
    ("What is allocated of the nodes' GPUs, and what is used.", "top"),
    ("The busiest GPUs, once.", "top gpus --sort-by used --once"),
    ("Pods of all namespaces, those that are throttled most first.", "top pods -A --sort-by throttled"),
    ("Who wastes most: namespaces by cores that are allocated and not used.", "top namespaces --sort-by idle"),
    ("Containers of one namespace, for a script.", "top containers -n research -o json"),
)
_KEYS = (
    ("1 to 5, or Tab", "nodes, namespaces, pods, GPUs, containers"),
    *((", ".join(some), f"sort by {', '.join(map(ORDER_KEYS.__getitem__, some))}") for some in ("NCM", "UIF", "BTO")),
    ("R", "reverse the order"),
    ("/", "only names with a text; Esc: all"),
)


def _read_what(word: str) -> str:
    """One of the tables, in kubectl's words for it."""
    if word not in _WORDS:
        raise ValueError(f"{word[:40]!r} is not one of {', '.join(TABLES)}")
    return _WORDS[word]


_WHAT = SettingType("a table", "|".join(TABLES), _read_what)


@click.command("top", cls=OperatorCommand, examples=_EXAMPLES)
@click.argument("what", type=_WHAT, default="nodes", metavar=f"[{_WHAT.metavar}]")
@all_namespaces_option
@name_option("Only nodes or pods whose name contains this.")
@click.option("--once", is_flag=True, help="Print one table also on a terminal.")
@click.option(
    "--interval",
    type=click.FloatRange(1, 3600),
    default=INTERVAL_S,
    show_default=True,
    help="Seconds between refreshes.",
)
@listed(SORTS)
@connected
def top(
    what: str,
    all_namespaces: bool,
    named: str,
    once: bool,
    interval: float,
    shape: Shape,
    connection: Connection,
) -> None:
    """Show what nodes, GPUs, pods, containers or namespaces use of what is allocated to them.

    CORES (1/100 of a GPU's time) and MEMORY are allocated; USED is what is used of it, measured by the node's agent,
    IDLE the rest of the cores. UTIL is the driver's utilization of the whole GPU. THROTTLED: for how long a container
    waited for its own limit since it started. `-`: not known. -n and -A choose pods, containers and namespaces.

    On a terminal the table refreshes itself, with bars where there is room, and colours unless NO_COLOR is set; press ?
    for the keys. A pipe or a file gets neither.
    """
    if shape.sort_by not in TABLES[what].kind.sorts:
        orders = ", ".join(TABLES[what].kind.sorts)
        raise misused(f"--sort-by {shape.sort_by} is not an order of {what}; use {orders}")
    if named and what == "namespaces":
        raise misused("--name is a part of the name of a node or pod; give -n 'PREFIX*' for namespaces")
    if connection.namespace and what in ("nodes", "gpus"):
        raise misused(f"-n goes with pods, containers or namespaces; {what} belong to none")
    is_live = not once and shape.output in ("table", "wide") and is_terminal()

    async def show(client: SchedulerClient) -> None:
        namespace, given = ("", "") if all_namespaces else (client.namespace, connection.namespace)
        by_name = {TABLES[what].rows.path: named} if named else {}
        screen = _Screen(client, what, shape.sort_by, shape.reverse, shape.output == "wide", namespace, given, by_name)
        if is_live:
            first = partial(screen.page, live=False)
            await watch(
                screen.page, first=first, handle=screen.handle, find=screen.find, keys=_KEYS, interval_s=interval
            )
        else:
            await screen.print_once(shape)

    asked(connection, show)


class _Screen(msgspec.Struct):
    """What is shown now; keys change it. `namespace` is empty for all, and may end with `*`: all that begin so.

    `given`: the one of the command line, which alone narrows the table of namespaces. `by_name`: a part of the name,
    for the list of nodes or of pods.
    """

    client: SchedulerClient
    what: str
    sort_by: str
    reverse: bool
    wide: bool
    namespace: str
    given: str
    by_name: dict[str, str]

    def handle(self, key: str) -> bool:
        words = list(TABLES)
        if key == "tab":
            key = str((words.index(self.what) + 1) % len(words) + 1)
        if key in ("1", "2", "3", "4", "5"):
            self.what = words[int(key) - 1]
        elif key == "escape":
            return self.find("")
        elif key == "R":
            self.reverse = not self.reverse
        elif ORDER_KEYS.get(key) in TABLES[self.what].kind.sorts:
            self.reverse = False
            self.sort_by = ORDER_KEYS[key]
        else:
            return False
        if self.sort_by not in TABLES[self.what].kind.sorts:
            self.sort_by = "name"
        return True

    def find(self, text: str) -> bool:
        """Narrows the table by a part of the name; namespaces by how they begin. Empty: all again."""
        plain, path = text.replace("*", ""), TABLES[self.what].rows.path
        if TABLES[self.what].rows is NAMESPACE_ROWS:
            before, self.given = self.given, f"{plain}*" if plain else ""
            return before != self.given
        before, self.by_name[path] = self.by_name.get(path, ""), plain
        return before != plain

    async def page(self, width: int, *, live: bool = True) -> Page:
        """Without `live` what the scheduler itself knows, which is there at once."""
        table = TABLES[self.what]
        found = await self._read(table, self._first_rows(table.kind, live=live), most=table.most)
        kind, rows = self._ordered(table, found)
        name = TOTAL if len(found.rows) >= found.total else "SHOWN"
        kind = kind.sorted_by(self.sort_by)
        lines = kind.lines(rows, at=found.at, headers=True, wide=self.wide, width=width, total=name)
        sums = lines[-1:] if len(rows) > 1 else []
        lines = lines[: len(lines) - len(sums)]
        where = f" in {within}" if (within := self._within(table)) else ""
        where += f" match {text}" if (text := self.by_name.get(table.rows.path)) else ""
        shown = len(found.rows)
        count = f"{len(rows)}" if shown >= found.total else f"{len(rows)}, of {shown} of {found.total}"
        order = f"by {self.sort_by}{', reversed' if self.reverse else ''}"
        clock = dt.datetime.fromtimestamp(found.at, dt.UTC).strftime("%H:%M:%S UTC")
        asking = [] if live else ["asking the agents ..."]
        title = "   ".join([f"{self.what}{where}: {count}", order, clock, *asking])
        return Page(lines[1:], title, [*lines[:1], *sums])

    async def print_once(self, shape: Shape) -> None:
        """By node each agent is asked once for all."""
        table = TABLES[self.what]
        by_node = {"sort": "node"} if "node" in table.kind.sorts else {}
        found = await self._read(table, {"live": "1"} | by_node)
        kind, rows = self._ordered(table, found)
        where = f"namespace {self.namespace}" if self.namespace and table.is_namespaced else ""
        filters = {"--name": self.by_name.get(table.rows.path, ""), "-n": "" if where else self._within(table)}
        show_rows(kind, rows, at=found.at, shape=shape, nothing=Nothing(filters, where))

    def _first_rows(self, kind: Kind[Any], *, live: bool) -> dict[str, str]:
        """Without `live` no agent is asked, and an order by use is none."""
        word = self.sort_by if live or not kind.sorts[self.sort_by].of_use else next(iter(kind.sorts))
        sort = kind.sorts[word]
        order = {"sort": word, "order": "desc" if sort.largest_first != self.reverse else "asc"}
        return ({"live": "1"} if live else {}) | order | ({"by": sort.by} if sort.by else {})

    async def _read(self, table: TopTable, query: Mapping[str, str], *, most: int = 0) -> Found[Any]:
        within = {"namespace": namespace} if (namespace := self._within(table)) else {}
        within |= {"name": name} if (name := self.by_name.get(table.rows.path)) else {}
        return await self.client.rows(table.rows, {**query, **table.query, **within}, most=most)

    def _within(self, table: TopTable) -> str:
        """The namespace whose rows are asked for; empty for all."""
        if table.is_namespaced:
            return self.namespace
        return self.given if table.rows is NAMESPACE_ROWS else ""

    def _ordered(self, table: TopTable, found: Found[Any]) -> tuple[Kind[Any], list[Any]]:
        rows = table.kind.ordered(table.entries(found.rows), self.sort_by, reverse=self.reverse)
        is_one = self.namespace and not self.namespace.endswith("*")
        return table.kind.without("NAMESPACE") if is_one and table.is_namespaced else table.kind, rows
