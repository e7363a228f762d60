"""`vcuda simulate`: how full a cluster would become with a workload, by policy.

In: a file of nodes, a file of pods, policies and seeds. Out: a table or JSON on standard output, a picture where one
was asked for; how far it is on standard error, where that is a terminal. Placement is the cluster's own.
"""

import errno
import itertools
import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.progress import Progress

from deviceplugin.cli.command import output_option
from deviceplugin.cli.listing import say, show_document
from deviceplugin.cli.simulate_tables import lines
from deviceplugin.cli.table import terminal_width
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.errors import ConfigError
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.simulate.other_pods import OtherPods
from deviceplugin.simulate.plot import plot
from deviceplugin.simulate.replay import Run, SimulationPlan, check_length, replay
from deviceplugin.simulate.report import Tried, document
from deviceplugin.simulate.scene import read_scene
from deviceplugin.simulate.task import Scene


def _percent(_context: click.Context, _parameter: click.Parameter, inflate: float) -> int:
    percent = round(100 * inflate) if math.isfinite(inflate) else -1
    if not math.isclose(percent, 100 * inflate):
        raise click.BadParameter(f"{inflate} is no whole percentage; write 1.3 for 130 %.")
    return percent


_MOST_SENTENCES = 3
_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)


@click.command("simulate")
@click.option("--nodes", type=_FILE, required=True, help="The cluster: a table of nodes (CSV), or Kubernetes objects.")
@click.option("--pods", type=_FILE, required=True, help="The workload: a table of tasks (CSV), or Kubernetes objects.")
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
    help="Requested GPUs at the end, as a multiple of the cluster's GPUs; tasks repeat until then.",
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

    Tasks arrive in random order, one by one, and again until they have asked for --inflate times the GPUs there are.
    One that fits nowhere waits; nothing ends, whatever times the file has. CSV has the columns of the openb trace: sn,
    cpu_milli, memory_mib, gpu, model for nodes; cpu_milli, memory_mib, num_gpu, gpu_milli and perhaps name and gpu_spec
    for tasks.
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
    say("\n".join(lines(scene, tried, terminal_width())))


def _say_left_out(sentences: Sequence[str]) -> None:
    if sentences:
        shown = [*sentences[:_MOST_SENTENCES], *(["..."] if sentences[_MOST_SENTENCES:] else [])]
        objects = "object is" if len(sentences) == 1 else "objects are"
        click.echo(f"vcuda: {len(sentences)} {objects} left out: {'; '.join(shown)}", err=True)


def _try(scene: Scene, plans: Sequence[SimulationPlan], seeds: Sequence[int]) -> list[Tried]:
    console = Console(stderr=True)
    numbers = (f"run {at} of {len(plans) * len(seeds)}" for at in itertools.count(1))
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar, _interruptible() as check:

        def run(plan: SimulationPlan, seed: int) -> Run:
            shown = bar.add_task(f"{next(numbers)}: {plan.name}, seed {seed}", total=plan.until(scene))

            def progress(asked: int) -> None:
                check()
                bar.update(shown, completed=asked)

            found = replay(scene, plan, seed=seed, progress=progress)
            bar.remove_task(shown)
            return found

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
