"""`vcuda nodes`: the nodes with GPUs, and what of them is allocated and free.

In: the scheduler's view. Out: a table, or the rows as JSON or YAML; the columns of nodes and GPUs, `NODES` for
`vcuda nodes`, `NODE_USE` and `GPU_USE` for `vcuda top`. Of each amount the table shows what is allocated and the whole;
what is used stands beside it, from the node's agent.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from deviceplugin.cli import table as q
from deviceplugin.cli.command import OperatorCommand, PartOfName, misused, name_option
from deviceplugin.cli.connection import Connection, connected_to_all
from deviceplugin.cli.scheduler_client import NODE_ROWS, asked
from deviceplugin.cli.table import Field, Kind, Nothing, Shape, Sort, listed, show_rows
from deviceplugin.cli.terminal import Colour, even_colour
from deviceplugin.model.cluster_view import GpuLive, GpuRow, NodeRow, idle_of
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU
from deviceplugin.placement.describe import gpus_text
from deviceplugin.structs import replace

Row = TypeVar("Row")


class GpuEntry(msgspec.Struct, frozen=True):
    """One GPU and its node, or the sum of `count`. `cores_idle`: allocated and not used."""

    node: str
    gpu: GpuRow
    cores_idle: float | None = None
    count: int = 1


def gpu_entries(rows: tuple[NodeRow, ...]) -> tuple[GpuEntry, ...]:
    return tuple(GpuEntry(row.node, gpu, _gpu_idle(gpu)) for row in rows for gpu in row.gpus)


def _gpu_idle(gpu: GpuRow) -> float | None:
    return None if gpu.live is None else idle_of(gpu.cores_allocated, gpu.live.utilization_percent)


def models_text(models: dict[str, int]) -> str:
    if len(models) == 1:
        return next(iter(models))
    return ", ".join(f"{count} x {model}" for model, count in models.items())


def _allocated(row: NodeRow) -> float | None:
    return row.cores_allocated / row.cores if row.cores else None


def _allocated_percent(row: NodeRow, _at: float) -> str:
    part = _allocated(row)
    return q.percent(None if part is None else 100 * part)


def _cores(row: NodeRow, _at: float) -> str:
    return q.of(str(row.cores_allocated), str(row.cores))


def _gpu_cores(each: GpuEntry, _at: float) -> str:
    return q.of(str(each.gpu.cores_allocated), str(CORES_PER_GPU * each.count))


def _status(row: NodeRow, _at: float = 0.0) -> str:
    if row.problem:
        return "Unavailable"
    return f"{row.unavailable_gpus} unavailable" if row.unavailable_gpus else "Ready"


def _reason(row: NodeRow, _at: float = 0.0) -> str:
    """Why it is unavailable, or which of its GPUs are."""
    return row.problem or "; ".join(
        f"{gpus_text(minors)}: {reason}" for reason, minors in row.unavailable_by_reason.items()
    )


def _status_colour(row: NodeRow) -> Colour | None:
    return Colour.RED if row.problem else Colour.YELLOW if row.unavailable_gpus else None


def _note(row: NodeRow, _at: float = 0.0) -> str:
    return row.problem or "; ".join(filter(None, (_reason(row), row.live_error)))


def unavailable_text(gpu: GpuRow) -> str:
    """Empty if it is available."""
    return "" if gpu.available else f"unavailable: {gpu.reason}" if gpu.reason else "unavailable"


def _memory(row: NodeRow | GpuRow) -> str:
    return q.blocks_of(row.blocks_allocated, row.blocks)


def _busy(live: GpuLive | None) -> str:
    return q.percent(None if live is None else live.utilization_percent)


def _memory_used(live: GpuLive | None) -> str:
    return q.memory(None if live is None else live.memory_used_bytes)


def _processes(live: GpuLive | None) -> str:
    return q.UNKNOWN if live is None or live.processes is None else str(live.processes)


def _of_use(heading: str, sort: str, text: Callable[[NodeRow, float], str]) -> Field[NodeRow]:
    """A column that is there where agents were asked."""

    def if_asked(row: NodeRow, at: float) -> str:
        return "" if row.gpus_measured is None else text(row, at)

    return Field(heading, rank=2, if_any=True, right=True, summed=True, sort=sort, text=if_asked)


def _used(live: GpuLive | None) -> tuple[float] | None:
    return None if live is None or live.utilization_percent is None else (live.utilization_percent,)


def _busy_part(live: GpuLive | None) -> float | None:
    return None if live is None or live.utilization_percent is None else live.utilization_percent / 100


def _full_part(live: GpuLive | None, blocks: int) -> float | None:
    """Of the memory, how much is used."""
    return (
        None
        if live is None or live.memory_used_bytes is None or not blocks
        else live.memory_used_bytes / (blocks * BLOCK_BYTES)
    )


def _live_total(lives: Sequence[GpuLive | None], used: float | None, measured: float | None) -> GpuLive:
    """`used`: the utilization of the `measured` GPUs added up; the sums of what else is known."""
    memory = q.total(live.memory_used_bytes for live in lives if live)
    processes = q.total(live.processes for live in lives if live)
    return GpuLive(
        round(used / measured) if used is not None and measured else None,
        None if memory is None else round(memory),
        None if processes is None else round(processes),
    )


def _sums(rows: Sequence[Row], *fields: str) -> dict[str, Any]:
    return {field: sum(getattr(row, field) for row in rows) for field in fields}


_COUNTS = [
    "gpu_count",
    "free_gpus",
    "unavailable_gpus",
    "cores",
    "cores_allocated",
    "blocks",
    "blocks_allocated",
    "pods",
]
_MEASURED = ("cores_used", "cores_idle", "gpus_measured")
_OF_AGENTS = ("live", "live_error", *_MEASURED)


def _node_total(rows: Sequence[NodeRow]) -> NodeRow:
    used: dict[str, Any] = {field: q.total(getattr(row, field) for row in rows) for field in _MEASURED}
    live = _live_total([row.live for row in rows], used["cores_used"], used["gpus_measured"])
    one = replace(rows[0], node="", problem="", live_error="", gpus=(), unavailable_by_reason={})
    return replace(one, live=live, **used, **_sums(rows, *_COUNTS))


def _gpu_total(rows: Sequence[GpuEntry]) -> GpuEntry:
    gpus = [each.gpu for each in rows]
    percents = [gpu.live.utilization_percent for gpu in gpus if gpu.live and gpu.live.utilization_percent is not None]
    live = _live_total([gpu.live for gpu in gpus], q.total(percents), len(percents))
    sums = _sums(gpus, "cores_allocated", "blocks", "blocks_allocated", "pods")
    one = replace(gpus[0], reason="", available=True, live=live, holders=(), **sums)
    return GpuEntry("", one, q.total(each.cores_idle for each in rows), len(rows))


_SORTS: dict[str, Sort[NodeRow]] = {
    "name": Sort(lambda row: (row.node,), largest_first=False),
    "cores": Sort(lambda row: (row.cores_allocated,)),
    "memory": Sort(lambda row: (row.blocks_allocated,)),
    "free": Sort(lambda row: (row.free_gpus,)),
    "used": Sort(lambda row: _used(row.live), of_use=True),
    "idle": Sort(lambda row: q.known(row.cores_idle), of_use=True),
}
NODES: Kind[NodeRow] = Kind(
    what="nodes with GPUs",
    columns=(
        Field("NAME", is_name=True, text=lambda row, _: row.node),
        Field("STATUS", rank=2, text=_status, colour=_status_colour),
        Field("GPUS", rank=3, right=True, summed=True, text=lambda row, _: str(row.gpu_count)),
        Field("FREE", right=True, summed=True, sort="free", text=lambda row, _: str(row.free_gpus)),
        Field("CORES", rank=1, right=True, summed=True, sort="cores", text=_cores),
        _of_use("UTIL", "used", lambda row, _: _busy(row.live)),
        _of_use("IDLE", "idle", lambda row, _: q.cores(row.cores_idle)),
        Field("MEMORY", rank=4, right=True, summed=True, sort="memory", text=lambda row, _: _memory(row)),
        Field("PODS", rank=5, right=True, summed=True, text=lambda row, _: str(row.pods)),
        Field("UNAVAILABLE", rank=6, wide=True, right=True, summed=True, text=lambda row, _: str(row.unavailable_gpus)),
        Field("DRIVER", rank=7, wide=True, text=lambda row, _: row.driver),
        Field("CUDA", rank=8, wide=True, text=lambda row, _: row.cuda),
        Field("MODEL", rank=7, text=lambda row, _: models_text(row.models)),
        Field("REASON", rank=6, if_any=True, below=True, text=_reason, colour=_status_colour),
    ),
    sorts=_SORTS,
    total=_node_total,
    name=lambda row: f"node/{row.node}",
)
NODE_USE: Kind[NodeRow] = Kind(
    what="nodes with GPUs",
    columns=(
        Field("NAME", is_name=True, text=lambda row, _: row.node),
        Field("GPUS", rank=5, right=True, summed=True, text=lambda row, _: str(row.gpu_count)),
        Field("FREE", rank=3, right=True, summed=True, sort="free", text=lambda row, _: str(row.free_gpus)),
        Field("CORES", rank=1, right=True, summed=True, sort="cores", text=_cores),
        Field(
            "CORES%", rank=5, right=True, summed=True, text=_allocated_percent, bar=_allocated, bar_colour=even_colour
        ),
        Field(
            "UTIL",
            right=True,
            summed=True,
            sort="used",
            text=lambda row, _: _busy(row.live),
            bar=lambda row: _busy_part(row.live),
        ),
        Field("IDLE", rank=4, right=True, summed=True, sort="idle", text=lambda row, _: q.cores(row.cores_idle)),
        Field("MEMORY", rank=2, right=True, summed=True, sort="memory", text=lambda row, _: _memory(row)),
        Field(
            "USED",
            rank=1,
            right=True,
            summed=True,
            text=lambda row, _: _memory_used(row.live),
            bar=lambda row: _full_part(row.live, row.blocks),
        ),
        Field("PODS", rank=6, right=True, summed=True, text=lambda row, _: str(row.pods)),
        Field(
            "NOTE",
            rank=7,
            if_any=True,
            below=True,
            text=_note,
            colour=lambda row: Colour.RED if row.live_error else _status_colour(row),
        ),
    ),
    sorts=_SORTS,
    total=_node_total,
    omitted=("gpus",),
    name=lambda row: f"node/{row.node}",
)
GPU_USE: Kind[GpuEntry] = Kind(
    what="GPUs",
    columns=(
        Field("NODE", is_name=True, text=lambda each, _: each.node),
        Field("GPU", right=True, text=lambda each, _: str(each.gpu.minor)),
        Field("MODEL", rank=6, text=lambda each, _: each.gpu.model),
        Field("CORES", rank=2, right=True, summed=True, sort="cores", text=_gpu_cores),
        Field(
            "UTIL",
            right=True,
            summed=True,
            sort="used",
            text=lambda each, _: _busy(each.gpu.live),
            bar=lambda each: _busy_part(each.gpu.live),
        ),
        Field("IDLE", rank=4, right=True, summed=True, sort="idle", text=lambda each, _: q.cores(each.cores_idle)),
        Field("MEMORY", rank=3, right=True, summed=True, sort="memory", text=lambda each, _: _memory(each.gpu)),
        Field(
            "USED",
            rank=1,
            right=True,
            summed=True,
            text=lambda each, _: _memory_used(each.gpu.live),
            bar=lambda each: _full_part(each.gpu.live, each.gpu.blocks),
        ),
        Field("PODS", rank=5, right=True, summed=True, text=lambda each, _: str(each.gpu.pods)),
        Field("PROCESSES", rank=7, wide=True, right=True, summed=True, text=lambda each, _: _processes(each.gpu.live)),
        Field("UUID", rank=8, wide=True, text=lambda each, _: each.gpu.uuid),
        Field("SOURCE", rank=8, wide=True, text=lambda each, _: each.gpu.source.value),
        Field(
            "STATUS",
            rank=4,
            if_any=True,
            below=True,
            text=lambda each, _: unavailable_text(each.gpu),
            colour=lambda _: Colour.RED,
        ),
    ),
    sorts={
        "name": Sort(lambda each: (each.node, each.gpu.minor), largest_first=False),
        "cores": Sort(lambda each: (each.gpu.cores_allocated,), by="gpu"),
        "memory": Sort(lambda each: (each.gpu.blocks_allocated,), by="gpu"),
        "used": Sort(lambda each: _used(each.gpu.live), by="gpu", of_use=True),
        "idle": Sort(lambda each: q.known(each.cores_idle), by="gpu", of_use=True),
    },
    name=lambda each: f"gpu/{each.gpu.uuid}",
    total=_gpu_total,
    omitted=("count",),
)


_EXAMPLES = (
    ("List nodes with their GPUs and what is free.", "nodes"),
    ("Nodes with free A100 GPUs, those with most free GPUs first.", "nodes --model a100 --free --sort-by free"),
    ("Nodes whose name contains a text, those first that waste most.", "nodes --name pool-a --sort-by idle"),
    ("Unavailable nodes and GPUs, and the reason.", "nodes --problems"),
    ("As JSON, with every GPU and the pods on it.", "nodes --gpus -o json"),
)


@click.command("nodes", cls=OperatorCommand, examples=_EXAMPLES)
@name_option("Only nodes whose name contains this.")
@click.option(
    "--model", type=PartOfName(), default="", metavar="TEXT", help="Only nodes with a GPU whose model contains this."
)
@click.option("--free", is_flag=True, help="Only nodes with a free GPU.")
@click.option("--problems", is_flag=True, help="Only nodes that are unavailable, or have unavailable GPUs.")
@click.option("--gpus", is_flag=True, help="With -o json or yaml: also every GPU and the pods on it.")
@listed(NODES.sorts)
@connected_to_all
def nodes(named: str, model: str, free: bool, problems: bool, gpus: bool, shape: Shape, connection: Connection) -> None:
    """List nodes with their GPUs: how much is allocated, and what is free.

    CORES and MEMORY are allocated, of what the node has; cores are 1/100 of a GPU's time. FREE counts available GPUs
    of which nothing is allocated. In an order by use, UTIL is the utilization of the GPUs and IDLE the cores that are
    allocated and not used.
    """
    if free and problems:
        raise misused("--free and --problems ask for different nodes; give one of them")
    query = ({"name": named} if named else {}) | ({"model": model} if model else {})
    query |= {"live": "1"} if NODES.sorts[shape.sort_by].of_use else {}
    query |= {"state": "free"} if free else {"state": "problem"} if problems else {}
    query |= {"holders": "1"} if gpus and shape.output in ("json", "yaml") else {}
    found = asked(connection, lambda client: client.rows(NODE_ROWS, query))
    rows = NODES.ordered(found.rows, shape.sort_by, reverse=shape.reverse)
    omitted = (() if gpus else ("gpus",)) + (() if NODES.sorts[shape.sort_by].of_use else _OF_AGENTS)
    kind = replace(NODES, omitted=omitted)
    filters: dict[str, str | bool] = {"--name": named, "--model": model, "--free": free, "--problems": problems}
    instead = "kubectl vcuda doctor says why, and docs/install.md what a node needs"
    show_rows(kind, rows, at=found.at, shape=shape, nothing=Nothing(filters, instead=instead))
