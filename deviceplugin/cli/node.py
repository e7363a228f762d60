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
from deviceplugin.cli.connection import Connection, connected_to_all
from deviceplugin.cli.nodes import models_text, unavailable_text
from deviceplugin.cli.scheduler_client import SchedulerClient, asked
from deviceplugin.cli.screen import Page, watch
from deviceplugin.cli.table import Look
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
    say,
    shortened,
    show_document,
    show_lines,
    terminal_width,
)
from deviceplugin.model.cluster_view import GpuRow, HolderRow, NodeRow, PodStage, ShareSource
from deviceplugin.model.units import bytes_text, memory_of, memory_text
from deviceplugin.observe.glyphs import Glyphs

_BAR, _LEAST_BAR = 10, 4
_LEAST_NAME = 16
_WIDE_BAR = 20
_CORES = 100


class _Line(msgspec.Struct, frozen=True):
    """`looks`: its parts with a colour, in their order."""

    text: str
    looks: tuple[Look, ...] = ()


def picture(row: NodeRow, signs: Glyphs, *, width: int | None) -> list[str]:
    lines = [*_head(row, signs), _Line(""), *_tree(row, signs, width)]
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
        yield _wrong(f"{signs.mark} unavailable: {row.problem}")
    if row.live_error:
        yield _wrong(f"{signs.mark} what is used is not known: {row.live_error}")
    cores, memory = (row.cores_allocated, row.cores), (row.blocks_allocated, row.blocks)
    for name, part, text in (("cores ", cores, f"{cores[0]} of {cores[1]}"), ("memory", memory, memory_of(*memory))):
        bar = signs.bar(*part, _WIDE_BAR)
        yield _Line(f"{name} {bar} {text} allocated", (_allocated(bar),))


def _tree(row: NodeRow, signs: Glyphs, width: int | None) -> Iterator[_Line]:
    ordered = sorted(row.gpus, key=lambda gpu: (gpu.numa is None, gpu.numa or 0, gpu.minor))
    mixed = len(row.models) > 1
    widest = max((len(_memory(gpu)) for gpu in ordered), default=0)
    whole = [line for gpu in ordered for line in _gpu_lines(gpu, signs, ("", "   "), widest, _BAR, mixed=mixed)]
    cells = _cells(whole, width)
    for numa, group in groupby(ordered, key=lambda gpu: gpu.numa):
        gpus = list(group)
        yield _Line(_group_text(numa, gpus, is_one=len(gpus) == len(ordered)))
        for at, gpu in enumerate(gpus):
            branch = signs.branch(last=at == len(gpus) - 1)
            further = branch[1]
            yield from _gpu_lines(gpu, signs, branch, widest, cells, mixed=mixed)
            if not gpu.available and gpu.reason != row.problem:
                wrong = f"{signs.mark} {unavailable_text(gpu)}"
                yield _Line(f"{further}{wrong}", (Look(wrong, Colour.RED),))
            yield from _holders(gpu.holders, signs, further, width)


def _cells(lines: Sequence[_Line], width: int | None) -> int:
    """Of each of the two bars of a GPU, so that the numbers have room; 0: no bars."""
    excess = 0 if width is None else max((len(line.text) for line in lines), default=0) + len("├─ ") - width
    cells = _BAR - max(0, (excess + 1) // 2)
    return cells if cells >= _LEAST_BAR else 0


def _group_text(numa: int | None, gpus: Sequence[GpuRow], *, is_one: bool) -> str:
    free = sum(gpu.available and not gpu.cores_allocated and not gpu.blocks_allocated for gpu in gpus)
    counted = f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}, {free} free"
    where = f"NUMA node {numa}" if numa is not None else "" if is_one else "NUMA node not known"
    return f"{where}  {counted}" if where else counted


def _gpu_lines(
    gpu: GpuRow, signs: Glyphs, branch: tuple[str, str], widest: int, cells: int, *, mixed: bool
) -> Iterator[_Line]:
    """What is allocated and what is used; without bars in two lines."""
    cores = signs.bar(gpu.cores_allocated, _CORES, cells)
    memory = signs.bar(gpu.blocks_allocated, gpu.blocks, cells)
    notes, looks = [gpu.model] if mixed else [], [_allocated(each) for each in (cores, memory) if each]
    if gpu.live is not None:
        busy = f"{q.percent(gpu.live.utilization_percent)} busy"
        notes += [f"{busy}, {_bytes(gpu.live.memory_used_bytes)} used"]
        looks += [Look(busy, load_colour((gpu.live.utilization_percent or 0) / 100))]
    if gpu.source is ShareSource.CLAIM:
        notes += ["for claims"]
    parts = ("cores", cores, f"{gpu.cores_allocated:>3} ", "memory", memory, f"{_memory(gpu):>{widest}}")
    amounts, noted = " ".join(filter(None, parts)), f" {signs.dot} ".join(notes)
    if cells:
        yield _Line(f"{branch[0]}GPU {gpu.minor}  {amounts}  {noted}", tuple(looks))
    else:
        yield _Line(f"{branch[0]}GPU {gpu.minor}  {amounts}")
        yield from [_Line(f"{branch[1]}{noted}", tuple(looks))] * bool(noted)


def _memory(gpu: GpuRow) -> str:
    return memory_of(gpu.blocks_allocated, gpu.blocks)


def _bytes(size: float | None) -> str:
    return q.UNKNOWN if size is None else bytes_text(size)


def _holders(holders: Sequence[HolderRow], signs: Glyphs, before: str, width: int | None) -> Iterator[_Line]:
    """A name that is too long is shortened, for the numbers follow it."""
    for at, holder in enumerate(holders):
        branch, further = signs.branch(last=at == len(holders) - 1)
        share = f"{before}{branch}{holder.cores:>3} cores  {memory_text(holder.blocks):>8}  "
        notes = "".join(f" {signs.dot} {text}" for text in _remarks(holder))
        name = f"{holder.namespace}/{holder.pod} ({holder.container})"
        if width is not None:
            name = shortened(name, max(_LEAST_NAME, width - len(share) - len(notes)))
        looks = (Look(holder.stage.value.capitalize(), Colour.YELLOW),) * (holder.stage is not PodStage.BOUND)
        yield _Line(share + name + notes, looks)
        for text in holder.over_limit or ():
            yield _Line(f"{before}{further}{signs.mark} {text}", (Look(text, Colour.RED),))


def _remarks(holder: HolderRow) -> Iterator[str]:
    if holder.source is ShareSource.CLAIM:
        yield _claim_text(holder)
    if holder.stage is not PodStage.BOUND:
        yield holder.stage.value.capitalize()
    live = holder.live
    if live is not None:
        used = q.cores(live.cores_used)
        yield f"uses {used} core{'s' * (used != '1')}, {_bytes(live.memory_used_bytes)}"
        if live.throttled_seconds:
            yield f"throttled {q.seconds(live.throttled_seconds)}"


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
@connected_to_all
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
