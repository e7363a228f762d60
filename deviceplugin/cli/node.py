"""`vcuda node NAME`: the picture of one node, once or until it is stopped.

In: the scheduler's view of the node. Out: the row as JSON or YAML, or a picture: its GPUs by NUMA node, bars of what is
allocated, the pods that it is allocated to, and what is used, in box characters or in ASCII, cut at a width. Bars are
drawn as in the agent's `/graph`.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import click
import msgspec

from deviceplugin.cli import table as q
from deviceplugin.cli.command import OperatorCommand, node_name, output_option
from deviceplugin.cli.completion import complete_node
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.nodes import models_text
from deviceplugin.cli.scheduler_client import SchedulerClient, asked
from deviceplugin.cli.screen import Page, watch
from deviceplugin.cli.table import say, show_document
from deviceplugin.cli.terminal import clean, cut, glyphs, is_terminal, terminal_width
from deviceplugin.model.cluster_view import GpuRow, HolderRow, NodeRow, ShareSource
from deviceplugin.observe.glyphs import Glyphs

_BAR = 10
_WIDE_BAR = 20
_CORES = 100


def picture(row: NodeRow, signs: Glyphs, *, width: int | None) -> list[str]:
    lines = [*_head(row, signs), "", *_tree(row, signs)]
    shown = [clean(line.rstrip()) for line in lines]
    return shown if width is None else [cut(line, width) for line in shown]


def _head(row: NodeRow, signs: Glyphs) -> Iterator[str]:
    driver = [f"driver {row.driver}"] * bool(row.driver) + [f"CUDA {row.cuda}"] * bool(row.cuda)
    models = models_text(row.models)
    named = f"{row.gpu_count} {signs.times} {models}" if len(row.models) == 1 else models or "no GPUs known"
    yield f" {signs.dot} ".join([row.node, named, *driver])
    if row.problem:
        yield f"{signs.mark} {row.problem}"
    if row.live_error:
        yield f"{signs.mark} what is used is not known: {row.live_error}"
    cores, memory = (row.cores_allocated, row.cores), (row.blocks_allocated, row.blocks)
    yield f"cores  {signs.bar(*cores, _WIDE_BAR)} {cores[0]}/{cores[1]}"
    yield f"memory {signs.bar(*memory, _WIDE_BAR)} {q.blocks(memory[0])}/{q.blocks(memory[1])}"


def _tree(row: NodeRow, signs: Glyphs) -> Iterator[str]:
    ordered = sorted(row.gpus, key=lambda gpu: (gpu.numa is None, gpu.numa or 0, gpu.minor))
    mixed = len(row.models) > 1
    widest = max((len(_memory(gpu)) for gpu in ordered), default=0)
    for numa, group in groupby(ordered, key=lambda gpu: gpu.numa):
        gpus = list(group)
        free = sum(gpu.available and not gpu.cores_allocated and not gpu.blocks_allocated for gpu in gpus)
        where = "no NUMA node" if numa is None else f"NUMA node {numa}"
        yield f"{where}  {len(gpus)} GPU{'s' * (len(gpus) != 1)}, {free} free"
        for at, gpu in enumerate(gpus):
            branch, further = signs.branch(last=at == len(gpus) - 1)
            yield branch + _gpu_line(gpu, signs, widest, mixed=mixed)
            yield from _holders(gpu.holders, signs, further)


def _gpu_line(gpu: GpuRow, signs: Glyphs, widest: int, *, mixed: bool) -> str:
    cores = f"{signs.bar(gpu.cores_allocated, _CORES, _BAR)} {gpu.cores_allocated:>3}"
    memory = f"{signs.bar(gpu.blocks_allocated, gpu.blocks, _BAR)} {_memory(gpu):>{widest}}"
    notes = [gpu.model] if mixed else []
    if gpu.live is not None:
        notes += [f"{q.percent(gpu.live.utilization_percent)} busy, {q.memory(gpu.live.memory_used_bytes)} used"]
    if gpu.source is ShareSource.CLAIM:
        notes += ["for claims"]
    if gpu.reason or not gpu.available:
        notes += [f"{signs.mark} {gpu.reason or 'unavailable'}"]
    return f"GPU {gpu.minor}  cores {cores}  memory {memory}  {f' {signs.dot} '.join(notes)}"


def _memory(gpu: GpuRow) -> str:
    return f"{q.blocks(gpu.blocks_allocated)}/{q.blocks(gpu.blocks)}"


def _holders(holders: Sequence[HolderRow], signs: Glyphs, before: str) -> Iterator[str]:
    for at, holder in enumerate(holders):
        branch, _ = signs.branch(last=at == len(holders) - 1)
        name = f"{holder.namespace}/{holder.pod} ({holder.container})"
        share = f"{holder.cores:>3} cores  {q.blocks(holder.blocks):>6}  {name}"
        yield before + branch + f" {signs.dot} ".join([share, *_remarks(holder)])


def _remarks(holder: HolderRow) -> Iterator[str]:
    if holder.source is ShareSource.CLAIM:
        yield _claim_text(holder)
    if holder.stage.value != "bound":
        yield holder.stage.value
    live = holder.live
    if live is not None:
        cores = q.UNKNOWN if live.cores_used is None else f"{live.cores_used:.0f}"
        yield f"uses {cores} cores, {q.memory(live.memory_used_bytes)}"
        if live.throttled_seconds:
            yield f"throttled {q.seconds(live.throttled_seconds)}"
    yield from holder.over_limit or ()


def _claim_text(holder: HolderRow) -> str:
    """`claim NAME`, and how many containers share it."""
    named = f"claim {holder.claim}"
    return named if holder.users == 1 else f"{named}, {holder.users or 'no'} containers"


_EXAMPLES = (
    ("The GPUs of a node, the pods that they are allocated to, and what is used.", "node node-a"),
    ("The same, refreshed until you press q.", "node node-a --watch"),
)


@click.command("node", cls=OperatorCommand, examples=_EXAMPLES)
@click.argument("name", shell_complete=complete_node)
@click.option("-w", "--watch", "watching", is_flag=True, help="Refresh every 2 seconds, until q is pressed.")
@output_option("table", "wide", "json", "yaml", "name")
@connected
def node(name: str, watching: bool, output: str, connection: Connection) -> None:
    """Show one node: its GPUs by NUMA node, how much of each is allocated and used, and by which pods.

    Cores are 1/100 of a GPU's time.

    NAME is the name of a node, or node/NAME.
    """
    watching = watching and is_terminal() and output in ("table", "wide")
    asked(connection, lambda client: _show(client, node_name(name), output, watching=watching))


async def _show(client: SchedulerClient, name: str, output: str, *, watching: bool) -> None:
    async def page(width: int) -> Page:
        return Page(picture(await client.node(name), glyphs(), width=width))

    row = await client.node(name)
    if watching:
        await watch(page)
    else:
        _print(row, output)


def _print(row: NodeRow, output: str) -> None:
    if output == "name":
        say(f"node/{row.node}")
    elif output in ("json", "yaml"):
        show_document(msgspec.to_builtins(row), output)
    else:
        say(*picture(row, glyphs(), width=None if output == "wide" else terminal_width()))
