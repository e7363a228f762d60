"""Nodes and GPUs as rows of tables.

In: rows of the view. Out: `NODES` for `vcuda nodes`, `NODE_USE` and `GPU_USE` for `vcuda top`. Of each amount the table
shows what is held and the whole; what is used stands beside it, from the node's agent.
"""

import msgspec

from deviceplugin.cli import quantities as q
from deviceplugin.cli.listing import Kind, Sort
from deviceplugin.cli.table import Column
from deviceplugin.model.cluster_view import GpuLive, GpuRow, NodeRow


class GpuEntry(msgspec.Struct, frozen=True):
    """One GPU and its node."""

    node: str
    gpu: GpuRow


def entries(rows: tuple[NodeRow, ...]) -> tuple[GpuEntry, ...]:
    return tuple(GpuEntry(row.node, gpu) for row in rows for gpu in row.gpus)


def models_text(models: dict[str, int]) -> str:
    if len(models) == 1:
        return next(iter(models))
    return ", ".join(f"{count} x {model}" for model, count in models.items())


def _node(row: NodeRow, _at: float) -> tuple[str, ...]:
    return (
        row.node,
        "Problem" if row.problem else "Ready",
        str(row.gpu_count),
        str(row.free_gpus),
        q.of(str(row.cores_allocated), str(row.cores)),
        q.of(q.blocks(row.blocks_allocated), q.blocks(row.blocks)),
        str(row.pods),
        str(row.unusable_gpus),
        row.driver,
        row.cuda,
        models_text(row.models),
        row.problem,
    )


def _share_held(row: NodeRow) -> float:
    return 100 * row.cores_allocated / row.cores if row.cores else 0.0


def _node_use(row: NodeRow, _at: float) -> tuple[str, ...]:
    live = row.live
    return (
        row.node,
        str(row.gpu_count),
        str(row.free_gpus),
        q.of(str(row.cores_allocated), str(row.cores)),
        q.percent(_share_held(row)) if row.cores else q.UNKNOWN,
        q.percent(None if live is None else live.utilization_percent),
        q.of(q.blocks(row.blocks_allocated), q.blocks(row.blocks)),
        q.memory(None if live is None else live.memory_used_bytes),
        str(row.pods),
        row.live_error or row.problem,
    )


def _gpu_use(entry: GpuEntry, _at: float) -> tuple[str, ...]:
    gpu, live = entry.gpu, entry.gpu.live
    return (
        entry.node,
        str(gpu.minor),
        gpu.model,
        q.of(str(gpu.cores_allocated), "100"),
        q.percent(None if live is None else live.utilization_percent),
        q.of(q.blocks(gpu.blocks_allocated), q.blocks(gpu.blocks)),
        q.memory(None if live is None else live.memory_used_bytes),
        str(len({holder.uid for holder in gpu.holders})),
        q.UNKNOWN if live is None or live.processes is None else str(live.processes),
        gpu.uuid,
        gpu.source.value,
        gpu.reason or ("ok" if gpu.usable else "unusable"),
    )


def _used(live: GpuLive | None) -> tuple[float] | None:
    return None if live is None or live.utilization_percent is None else (live.utilization_percent,)


_NODE_SORTS: dict[str, Sort[NodeRow]] = {
    "name": Sort(lambda row: (row.node,), largest_first=False, server="name"),
    "cores": Sort(lambda row: (row.cores_allocated,), server="cores"),
    "memory": Sort(lambda row: (row.blocks_allocated,), server="memory"),
    "free": Sort(lambda row: (row.free_gpus,), server="free"),
}
NODES = Kind(
    what="nodes with GPUs",
    columns=(
        Column("NAME"),
        Column("STATUS", rank=2),
        Column("GPUS", rank=3, right=True),
        Column("FREE", right=True),
        Column("CORES", rank=1, right=True),
        Column("MEMORY", rank=4, right=True),
        Column("PODS", rank=5, right=True),
        Column("UNUSABLE", rank=6, wide=True, right=True),
        Column("DRIVER", rank=7, wide=True),
        Column("CUDA", rank=8, wide=True),
        Column("MODEL", rank=7),
        Column("PROBLEM", rank=6, if_any=True),
    ),
    cells=_node,
    sorts=_NODE_SORTS,
    name=lambda row: f"node/{row.node}",
)
NODE_USE = Kind(
    what="nodes with GPUs",
    columns=(
        Column("NAME"),
        Column("GPUS", rank=4, right=True),
        Column("FREE", rank=3, right=True),
        Column("CORES", rank=1, right=True),
        Column("CORES%", rank=5, right=True),
        Column("UTIL", right=True),
        Column("MEMORY", rank=2, right=True),
        Column("USED", rank=1, right=True),
        Column("PODS", rank=6, right=True),
        Column("NOTE", rank=7, if_any=True),
    ),
    cells=_node_use,
    sorts={**_NODE_SORTS, "used": Sort(lambda row: _used(row.live), server="used", of_use=True)},
    name=lambda row: f"node/{row.node}",
)
GPU_USE: Kind[GpuEntry] = Kind(
    what="GPUs",
    columns=(
        Column("NODE"),
        Column("GPU", right=True),
        Column("MODEL", rank=6),
        Column("CORES", rank=2, right=True),
        Column("UTIL", right=True),
        Column("MEMORY", rank=3, right=True),
        Column("USED", rank=1, right=True),
        Column("PODS", rank=5, right=True),
        Column("PROCESSES", rank=7, wide=True, right=True),
        Column("UUID", rank=8, wide=True),
        Column("SOURCE", rank=8, wide=True),
        Column("STATUS", rank=4),
    ),
    cells=_gpu_use,
    sorts={
        "name": Sort(lambda entry: (entry.node, entry.gpu.minor), largest_first=False, server="name"),
        "cores": Sort(lambda entry: (entry.gpu.cores_allocated,), server="cores", by="gpu"),
        "memory": Sort(lambda entry: (entry.gpu.blocks_allocated,), server="memory", by="gpu"),
        "used": Sort(lambda entry: _used(entry.gpu.live), server="used", by="gpu", of_use=True),
    },
    name=lambda entry: f"gpu/{entry.gpu.uuid}",
)
