"""`vcuda nodes`: the nodes with GPUs, and what of them is held and free.

In: the scheduler's view. Out: a table, or the rows as JSON or YAML; the columns of nodes and GPUs, `NODES` for
`vcuda nodes`, `NODE_USE` and `GPU_USE` for `vcuda top`. Of each amount the table shows what is held and the whole; what
is used stands beside it, from the node's agent.
"""

import click
import msgspec

from deviceplugin.cli import table as q
from deviceplugin.cli.command import OperatorCommand
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.scheduler_client import NODE_ROWS, asked
from deviceplugin.cli.table import Field, Kind, Shape, Sort, listed, show_rows
from deviceplugin.model.cluster_view import GpuLive, GpuRow, NodeRow


class GpuEntry(msgspec.Struct, frozen=True):
    """One GPU and its node."""

    node: str
    gpu: GpuRow


def gpu_entries(rows: tuple[NodeRow, ...]) -> tuple[GpuEntry, ...]:
    return tuple(GpuEntry(row.node, gpu) for row in rows for gpu in row.gpus)


def models_text(models: dict[str, int]) -> str:
    if len(models) == 1:
        return next(iter(models))
    return ", ".join(f"{count} x {model}" for model, count in models.items())


def _allocated_percent(row: NodeRow, _at: float) -> str:
    return q.percent(100 * row.cores_allocated / row.cores) if row.cores else q.UNKNOWN


def _cores(row: NodeRow, _at: float) -> str:
    return q.of(str(row.cores_allocated), str(row.cores))


def _memory(row: NodeRow | GpuRow) -> str:
    return q.of(q.blocks(row.blocks_allocated), q.blocks(row.blocks))


def _busy(live: GpuLive | None) -> str:
    return q.percent(None if live is None else live.utilization_percent)


def _memory_used(live: GpuLive | None) -> str:
    return q.memory(None if live is None else live.memory_used_bytes)


def _processes(live: GpuLive | None) -> str:
    return q.UNKNOWN if live is None or live.processes is None else str(live.processes)


def _used(live: GpuLive | None) -> tuple[float] | None:
    return None if live is None or live.utilization_percent is None else (live.utilization_percent,)


_NODE_SORTS: dict[str, Sort[NodeRow]] = {
    "name": Sort(lambda row: (row.node,), largest_first=False),
    "cores": Sort(lambda row: (row.cores_allocated,)),
    "memory": Sort(lambda row: (row.blocks_allocated,)),
    "free": Sort(lambda row: (row.free_gpus,)),
}
NODES: Kind[NodeRow] = Kind(
    what="nodes with GPUs",
    columns=(
        Field("NAME", text=lambda row, _: row.node),
        Field("STATUS", rank=2, text=lambda row, _: "Problem" if row.problem else "Ready"),
        Field("GPUS", rank=3, right=True, text=lambda row, _: str(row.gpu_count)),
        Field("FREE", right=True, text=lambda row, _: str(row.free_gpus)),
        Field("CORES", rank=1, right=True, text=_cores),
        Field("MEMORY", rank=4, right=True, text=lambda row, _: _memory(row)),
        Field("PODS", rank=5, right=True, text=lambda row, _: str(row.pods)),
        Field("UNAVAILABLE", rank=6, wide=True, right=True, text=lambda row, _: str(row.unavailable_gpus)),
        Field("DRIVER", rank=7, wide=True, text=lambda row, _: row.driver),
        Field("CUDA", rank=8, wide=True, text=lambda row, _: row.cuda),
        Field("MODEL", rank=7, text=lambda row, _: models_text(row.models)),
        Field("PROBLEM", rank=6, if_any=True, text=lambda row, _: row.problem),
    ),
    sorts=_NODE_SORTS,
    name=lambda row: f"node/{row.node}",
)
NODE_USE: Kind[NodeRow] = Kind(
    what="nodes with GPUs",
    columns=(
        Field("NAME", text=lambda row, _: row.node),
        Field("GPUS", rank=4, right=True, text=lambda row, _: str(row.gpu_count)),
        Field("FREE", rank=3, right=True, text=lambda row, _: str(row.free_gpus)),
        Field("CORES", rank=1, right=True, text=_cores),
        Field("CORES%", rank=5, right=True, text=_allocated_percent),
        Field("UTIL", right=True, text=lambda row, _: _busy(row.live)),
        Field("MEMORY", rank=2, right=True, text=lambda row, _: _memory(row)),
        Field("USED", rank=1, right=True, text=lambda row, _: _memory_used(row.live)),
        Field("PODS", rank=6, right=True, text=lambda row, _: str(row.pods)),
        Field("NOTE", rank=7, if_any=True, text=lambda row, _: row.live_error or row.problem),
    ),
    sorts={**_NODE_SORTS, "used": Sort(lambda row: _used(row.live), of_use=True)},
    name=lambda row: f"node/{row.node}",
)
GPU_USE: Kind[GpuEntry] = Kind(
    what="GPUs",
    columns=(
        Field("NODE", text=lambda each, _: each.node),
        Field("GPU", right=True, text=lambda each, _: str(each.gpu.minor)),
        Field("MODEL", rank=6, text=lambda each, _: each.gpu.model),
        Field("CORES", rank=2, right=True, text=lambda each, _: q.of(str(each.gpu.cores_allocated), "100")),
        Field("UTIL", right=True, text=lambda each, _: _busy(each.gpu.live)),
        Field("MEMORY", rank=3, right=True, text=lambda each, _: _memory(each.gpu)),
        Field("USED", rank=1, right=True, text=lambda each, _: _memory_used(each.gpu.live)),
        Field("PODS", rank=5, right=True, text=lambda each, _: str(each.gpu.pods)),
        Field("PROCESSES", rank=7, wide=True, right=True, text=lambda each, _: _processes(each.gpu.live)),
        Field("UUID", rank=8, wide=True, text=lambda each, _: each.gpu.uuid),
        Field("SOURCE", rank=8, wide=True, text=lambda each, _: each.gpu.source.value),
        Field(
            "STATUS", rank=4, text=lambda each, _: each.gpu.reason or ("ok" if each.gpu.available else "unavailable")
        ),
    ),
    sorts={
        "name": Sort(lambda each: (each.node, each.gpu.minor), largest_first=False),
        "cores": Sort(lambda each: (each.gpu.cores_allocated,), by="gpu"),
        "memory": Sort(lambda each: (each.gpu.blocks_allocated,), by="gpu"),
        "used": Sort(lambda each: _used(each.gpu.live), by="gpu", of_use=True),
    },
    name=lambda each: f"gpu/{each.gpu.uuid}",
)


_EXAMPLES = (
    ("List nodes with their GPUs and what is free.", "nodes"),
    ("Nodes with free A100 GPUs, those with most free GPUs first.", "nodes --model a100 --free --sort-by free"),
    ("Nodes that take no pods, and why.", "nodes --problems -o wide"),
    ("As JSON, with every GPU and who holds it.", "nodes --gpus -o json"),
)


@click.command("nodes", cls=OperatorCommand, examples=_EXAMPLES)
@click.option("--model", default="", metavar="TEXT", help="Only nodes with a GPU whose model contains this.")
@click.option("--free", is_flag=True, help="Only nodes with a free GPU.")
@click.option("--problems", is_flag=True, help="Only nodes that are unavailable, or have unavailable GPUs.")
@click.option("--gpus", is_flag=True, help="With -o json or yaml: also every GPU and who holds it.")
@listed(NODES.sorts)
@connected
def nodes(model: str, free: bool, problems: bool, gpus: bool, shape: Shape, connection: Connection) -> None:
    """List nodes with their GPUs: how much is allocated, and what is free.

    CORES and MEMORY are allocated, of what the node has; 100 cores are one GPU. FREE counts available GPUs of which
    nothing is allocated.
    """
    if free and problems:
        raise click.UsageError("--free and --problems ask for different nodes; give one of them")
    query = {"model": model} if model else {}
    query |= {"state": "free"} if free else {"state": "problem"} if problems else {}
    query |= {"holders": "1"} if gpus and shape.output in ("json", "yaml") else {}
    found = asked(connection, lambda client: client.rows(NODE_ROWS, query))
    rows = NODES.ordered(found.rows, shape.sort_by, reverse=shape.reverse)
    show_rows(NODES, rows, at=found.at, shape=shape)
