"""`vcuda simulate`: how full a cluster would become with a workload, by policy.

In: a file of nodes, a file of pods, policies and seeds. Out: a table or JSON on standard output, a picture where one
was asked for; how far it is on standard error, where that is a terminal. Placement is the cluster's own.

The tables of `vcuda simulate`: figures by policy, by GPU model, and why pods are Pending.

In: the runs of each policy, and the width of the terminal. Out: lines. Invariant: every policy is in every table; where
not all stand side by side, those that are left follow below.
"""

import errno
import itertools
import math
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from deviceplugin.cli.command import output_option
from deviceplugin.cli.table import GAP, Column, table
from deviceplugin.cli.terminal import say, show_document, terminal_width
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.errors import ConfigError
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.simulate.replay import Run, SimulationPlan, check_length, replay
from deviceplugin.simulate.report import Tried, document, means, models, plot, simplified, waits
from deviceplugin.simulate.scene import read_scene
from deviceplugin.simulate.stock_scheduler import OtherPods
from deviceplugin.simulate.trace import Scene
from deviceplugin.structs import replace

_TEXT_WIDTH = 100
_LEAST_FIRST = 24
"""What the first column keeps before policies go below."""
_HEADINGS = (
    "AT N%: percent of all GPUs that is allocated when N percent were requested. USELESS%: percent that is free in the "
    "end and that the expected next pod could not use. PENDING: pods without a node, of all that came."
)


def lines(scene: Scene, tried: Sequence[Tried], width: int | None) -> list[str]:
    used = {each.name: {model: f"{part:.1f}" for model, part in models(each).items()} for each in tried}
    waiting = {each.name: {reason: f"{count:.0f}" for reason, count in waits(each).items()} for each in tried}
    parts = [
        [*_wrapped(f"{_title(scene, tried)}. {_HEADINGS}", width), "", *_figures(tried, width)],
        *_side_by_side("ALLOCATED% OF GPU MODEL", used, "0.0", width),
        *_side_by_side("PENDING PODS, BY THE REASON OF MOST NODES", waiting, "0", width),
        _wrapped(simplified(tried), width),
    ]
    return [line for part in parts for line in (*part, "")][:-1]


def _wrapped(text: str, width: int | None) -> list[str]:
    return textwrap.wrap(text, min(width or _TEXT_WIDTH, _TEXT_WIDTH), break_on_hyphens=False)


def _title(scene: Scene, tried: Sequence[Tried]) -> str:
    seeds = len(tried[0].runs)
    counted = ((len(scene.tasks), "pod"), (len(scene.nodes), "node"), (scene.gpus, "GPU"))
    pods, nodes, gpus = (f"{count} {what}{'' if count == 1 else 's'}" for count, what in counted)
    return f"{pods} on {nodes} with {gpus}, {'one seed' if seeds == 1 else f'mean of {seeds} seeds'}"


def _figures(tried: Sequence[Tried], width: int | None) -> list[str]:
    """The last percentage stays on every terminal."""
    marks = tried[0].marks
    columns = (
        Column("NODE POLICY"),
        *(Column(f"AT {mark}%", rank=0 if mark == marks[-1] else 2, right=True) for mark in marks),
        Column("USELESS%", rank=3, right=True),
        Column("PENDING", rank=1, right=True),
        Column("SECONDS", rank=4, right=True),
    )
    return table(columns, [_row(each) for each in tried], width=width)


def _row(tried: Tried) -> tuple[str, ...]:
    figures = means(tried)
    return (
        tried.name,
        *(f"{figures[f'allocated_percent_at_{mark}']:.2f}" for mark in tried.marks),
        f"{figures['fragmented_percent']:.2f}",
        f"{figures['pending']:.0f}/{figures['arrived']:.0f}",
        f"{figures['seconds']:.1f}",
    )


def _side_by_side(
    heading: str, columns: Mapping[str, Mapping[str, str]], absent: str, width: int | None
) -> Iterator[list[str]]:
    """One table, or as many as it takes; none if there is no row."""
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    for names in _fitting(columns, width) if rows else ():
        shown = [(row, *(columns[name].get(row, absent) for name in names)) for row in rows]
        yield table((Column(heading), *(Column(name.upper(), right=True) for name in names)), shown, width=width)


def _fitting(columns: Mapping[str, Mapping[str, str]], width: int | None) -> list[list[str]]:
    found: list[list[str]] = [[]]
    room = None
    for name, column in columns.items():
        needed = len(GAP) + max(len(name), *map(len, column.values()), 1)
        if room is None or (needed > room and found[-1]):
            if found[-1]:
                found.append([])
            room = (width - _LEAST_FIRST) if width is not None else 1 << 30
        found[-1].append(name)
        room -= needed
    return found


def _percent(_context: click.Context, _parameter: click.Parameter, inflate: float) -> int:
    percent = round(100 * inflate) if math.isfinite(inflate) else -1
    if not math.isclose(percent, 100 * inflate):
        raise click.BadParameter(f"{inflate} is no whole percentage; write 1.3 for 130 %.")
    return percent


_MOST_SENTENCES = 3
_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)


@click.command("simulate")
@click.option("--nodes", type=_FILE, required=True, help="The cluster: a table of nodes (CSV), or Kubernetes objects.")
@click.option("--pods", type=_FILE, required=True, help="The workload: a table of pods (CSV), or Kubernetes objects.")
@click.option(
    "--node-policy",
    "node_policies",
    type=click.Choice([policy.value for policy in NodePolicy]),
    multiple=True,
    default=[PlacementSettings().node_policy.value],
    show_default=True,
    help="Which of the nodes that fit to choose; may be repeated to compare policies in one report.",
)
@click.option(
    "--gpu-policy",
    type=click.Choice([policy.value for policy in GpuPolicy]),
    default=PlacementSettings().gpu_policy.value,
    show_default=True,
    help="Which of the node's GPUs that fit to choose.",
)
@click.option(
    "--inflate",
    "percent",
    callback=_percent,
    metavar="TIMES",
    type=click.FloatRange(min=0.01, max=100),
    default=1.3,
    show_default=True,
    help="Requested GPUs at the end, as a multiple of the cluster's GPUs; pods repeat until then.",
)
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    default=[1],
    show_default=True,
    help="Seed of the order of arrival; may be repeated, then the report has the means.",
)
@click.option(
    "--as-scheduler",
    is_flag=True,
    help="Use only what the scheduler knows: the pods that have arrived so far, not those to come.",
)
@click.option(
    "--other-pods",
    type=click.Choice([each.value for each in OtherPods]),
    default=OtherPods.STOCK.value,
    show_default=True,
    help="How pods without GPUs are placed. stock: by kube-scheduler's default scores, as in a cluster. "
    "most-allocated: the same with its strategy MostAllocated. policy: by --node-policy, as in published experiments.",
)
@click.option(
    "--scheduler",
    type=click.Choice(["vcuda", "dra"]),
    default="vcuda",
    show_default=True,
    help="dra: compare with the cluster's own kube-scheduler, for pods that ask by ResourceClaims.",
)
@output_option("table", "json", "yaml")
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture (SVG).")
def simulate(
    nodes: Path,
    pods: Path,
    node_policies: tuple[str, ...],
    gpu_policy: str,
    percent: int,
    seeds: tuple[int, ...],
    as_scheduler: bool,
    other_pods: str,
    scheduler: str,
    output: str,
    picture: Path | None,
) -> None:
    """Simulate a placement policy on a workload.

    Pods arrive in random order, one by one, and again until they have asked for --inflate times the GPUs there are.
    One that fits nowhere stays Pending; nothing ends, whatever times the file has. CSV has the columns of the openb
    trace: sn, cpu_milli, memory_mib, gpu, model for nodes; cpu_milli, memory_mib, num_gpu, gpu_milli and perhaps name
    and gpu_spec for pods.
    """
    scene = read_scene(nodes, pods)
    _say_left_out(scene.left_out)
    plans = [
        SimulationPlan(NodePolicy(each), GpuPolicy(gpu_policy), percent, as_scheduler, other_pods=OtherPods(other_pods))
        for each in dict.fromkeys(node_policies)
    ]
    if scheduler == "dra":
        plans.append(replace(plans[0], by_claims=True))
    check_length(scene.tasks, until=plans[0].until(scene))
    if picture is not None:
        _check_writable(picture)
    tried = _try(scene, plans, tuple(dict.fromkeys(seeds)))
    if picture is not None:
        _write(picture, plot(tried, title=f"{pods.name} on {nodes.name}"))
    if output != "table":
        show_document(document(scene, tried), output)
        return
    say(*lines(scene, tried, terminal_width()))


def _say_left_out(sentences: Sequence[str]) -> None:
    if sentences:
        shown = [*sentences[:_MOST_SENTENCES], *(["..."] if sentences[_MOST_SENTENCES:] else [])]
        objects = "object is" if len(sentences) == 1 else "objects are"
        click.echo(f"vcuda: {len(sentences)} {objects} left out: {'; '.join(shown)}", err=True)


def _try(scene: Scene, plans: Sequence[SimulationPlan], seeds: Sequence[int]) -> list[Tried]:
    length = sum(plan.until(scene) for plan in plans) * len(seeds)
    numbers = (f"run {at} of {len(plans) * len(seeds)}" for at in itertools.count(1))
    shown = click.progressbar(length=length, label="simulating", file=sys.stderr, hidden=not sys.stderr.isatty())
    with shown as bar, _interruptible() as check:

        def run(plan: SimulationPlan, seed: int) -> Run:
            before = bar.pos

            def progress(asked: int) -> None:
                check()
                bar.update(before + asked - bar.pos)

            bar.label = f"{next(numbers)}: {plan.name}, seed {seed}"
            return replay(scene, plan, seed=seed, progress=progress)

        return [Tried(plan, tuple(run(plan, seed) for seed in seeds)) for plan in plans]


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """A check that ends the runs once somebody has interrupted them.

    Raised by the signal itself, wherever the program is, the interruption was lost once in some 300 trials.
    """
    interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True

    def check() -> None:
        if interrupted:
            raise click.Abort

    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
        check()
    finally:
        signal.signal(signal.SIGINT, before)


def _check_writable(path: Path) -> None:
    """Before anything is calculated, which may take minutes."""
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"--plot {path}: the picture is SVG; give a name that ends in .svg")
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(f"--plot {path} cannot be written: {folder} is no directory")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"--plot {path} cannot be written: {os.strerror(errno.EACCES)}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror}") from None
