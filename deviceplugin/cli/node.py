"""`vcuda node NAME`: the picture of one node, once or until it is stopped.

In: the scheduler's view of the node. Out: the row as JSON or YAML, or a picture: its GPUs by NUMA node, bars of what is
allocated, the pods that it is allocated to, and what is used, in box characters or in ASCII, cut at a width. Bars are
drawn as in the agent's `/graph`; a terminal gets the colours of `vcuda top`.
"""

from collections.abc import Iterable, Iterator, Sequence
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
from deviceplugin.cli.table import Look, say, show_document, show_lines
from deviceplugin.cli.terminal import (
    Colour,
    clean,
    cut,
    even_colour,
    glyphs,
    has_colours,
    is_terminal,
    load_colour,
    painted,
    terminal_width,
)
from deviceplugin.model.cluster_view import GpuRow, HolderRow, NodeRow, PodStage, ShareSource
from deviceplugin.model.units import bytes_text, memory_of, memory_text
from deviceplugin.observe.glyphs import Glyphs

_BAR = 10
_WIDE_BAR = 20
_CORES = 100


class _Line(msgspec.Struct, frozen=True):
    """`looks`: its parts with a colour, in their order."""

    text: str
    looks: tuple[Look, ...] = ()


def picture(row: NodeRow, signs: Glyphs, *, width: int | None) -> list[str]:
    lines = [*_head(row, signs), _Line(""), *_tree(row, signs)]
    return [_drawn(line, width) for line in lines]


def _drawn(line: _Line, width: int | None) -> str:
    plain = clean(line.text.rstrip())
    fitting = plain if width is None else cut(plain, width)
    return _coloured(fitting, line.looks) if has_colours() else fitting


def _coloured(text: str, looks: Iterable[Look]) -> str:
    """A part that was cut keeps the terminal's own colour."""
    found, at = "", 0
    for look in looks:
        part = clean(look.part)
        start = text.find(part, at)
        if start >= 0:
            found += text[at:start] + painted(part, look.colour)
            at = start + len(part)
    return found + text[at:]


def _wrong(text: str) -> _Line:
    return _Line(text, (Look(text, Colour.RED),))


def _allocated(bar: str) -> Look:
    return Look(bar, even_colour(0))


def _head(row: NodeRow, signs: Glyphs) -> Iterator[_Line]:
    driver = [f"driver {row.driver}"] * bool(row.driver) + [f"CUDA {row.cuda}"] * bool(row.cuda)
    models = models_text(row.models)
    named = f"{row.gpu_count} {signs.times} {models}" if len(row.models) == 1 else models or "no GPUs known"
    yield _Line(f" {signs.dot} ".join([row.node, named, *driver]))
    if row.problem:
        yield _wrong(f"{signs.mark} {row.problem}")
    if row.live_error:
        yield _wrong(f"{signs.mark} what is used is not known: {row.live_error}")
    cores, memory = (row.cores_allocated, row.cores), (row.blocks_allocated, row.blocks)
    for name, part, text in (("cores ", cores, f"{cores[0]} of {cores[1]}"), ("memory", memory, memory_of(*memory))):
        bar = signs.bar(*part, _WIDE_BAR)
        yield _Line(f"{name} {bar} {text}", (_allocated(bar),))


def _tree(row: NodeRow, signs: Glyphs) -> Iterator[_Line]:
    ordered = sorted(row.gpus, key=lambda gpu: (gpu.numa is None, gpu.numa or 0, gpu.minor))
    mixed = len(row.models) > 1
    widest = max((len(_memory(gpu)) for gpu in ordered), default=0)
    for numa, group in groupby(ordered, key=lambda gpu: gpu.numa):
        gpus = list(group)
        free = sum(gpu.available and not gpu.cores_allocated and not gpu.blocks_allocated for gpu in gpus)
        where = "no NUMA node" if numa is None else f"NUMA node {numa}"
        yield _Line(f"{where}  {len(gpus)} GPU{'s' * (len(gpus) != 1)}, {free} free")
        for at, gpu in enumerate(gpus):
            branch, further = signs.branch(last=at == len(gpus) - 1)
            yield _gpu_line(gpu, signs, branch, widest, mixed=mixed)
            yield from _holders(gpu.holders, signs, further)


def _gpu_line(gpu: GpuRow, signs: Glyphs, branch: str, widest: int, *, mixed: bool) -> _Line:
    cores = signs.bar(gpu.cores_allocated, _CORES, _BAR)
    memory = signs.bar(gpu.blocks_allocated, gpu.blocks, _BAR)
    notes, looks = [gpu.model] if mixed else [], [_allocated(cores), _allocated(memory)]
    if gpu.live is not None:
        busy = f"{q.percent(gpu.live.utilization_percent)} busy"
        notes += [f"{busy}, {_bytes(gpu.live.memory_used_bytes)} used"]
        looks += [Look(busy, load_colour((gpu.live.utilization_percent or 0) / 100))]
    if gpu.source is ShareSource.CLAIM:
        notes += ["for claims"]
    if gpu.reason or not gpu.available:
        notes += [f"{signs.mark} {gpu.reason or 'unavailable'}"]
        looks += [Look(notes[-1], Colour.RED)]
    amounts = f"cores {cores} {gpu.cores_allocated:>3}  memory {memory} {_memory(gpu):>{widest}}"
    return _Line(f"{branch}GPU {gpu.minor}  {amounts}  {f' {signs.dot} '.join(notes)}", tuple(looks))


def _memory(gpu: GpuRow) -> str:
    return memory_of(gpu.blocks_allocated, gpu.blocks)


def _bytes(size: float | None) -> str:
    return q.UNKNOWN if size is None else bytes_text(size)


def _holders(holders: Sequence[HolderRow], signs: Glyphs, before: str) -> Iterator[_Line]:
    for at, holder in enumerate(holders):
        branch, _ = signs.branch(last=at == len(holders) - 1)
        name = f"{holder.namespace}/{holder.pod} ({holder.container})"
        share = f"{holder.cores:>3} cores  {memory_text(holder.blocks):>8}  {name}"
        looks = [Look(holder.stage.value, Colour.YELLOW)] * (holder.stage is not PodStage.BOUND)
        looks += [Look(text, Colour.RED) for text in holder.over_limit or ()]
        yield _Line(before + branch + f" {signs.dot} ".join([share, *_remarks(holder)]), tuple(looks))


def _remarks(holder: HolderRow) -> Iterator[str]:
    if holder.source is ShareSource.CLAIM:
        yield _claim_text(holder)
    if holder.stage is not PodStage.BOUND:
        yield holder.stage.value
    live = holder.live
    if live is not None:
        yield f"uses {q.cores(live.cores_used)} cores, {_bytes(live.memory_used_bytes)}"
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
        show_lines(*picture(row, glyphs(), width=None if output == "wide" else terminal_width()))
