"""Several policies on the same workload, side by side.

In: the runs of each policy. Out: a document for JSON, or tables for users. `allocated_percent_at_N` is the fraction of
all GPUs that was allocated when tasks had requested N percent of them. Each figure has the mean and the value of each
seed. The means of the first policy are also at the top of the document, for scripts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Group
from rich.table import Table
from rich.text import Text

from deviceplugin.simulate.replay import Run, SimulationPlan
from deviceplugin.simulate.task import Scene

SIMPLIFIED = (
    "Tasks come one by one in random order and none ends, whatever times the file has; one that fits nowhere waits for "
    "good. Of a node its GPUs, CPU and memory count; selectors, taints, affinity, priorities and gangs do not."
)
_ALL_KNOWN = (
    "Policies know what the files say: the CPU and memory of nodes, and how often each kind of task comes. The "
    "scheduler's extender learns the latter while tasks come; --as-scheduler shows what it makes of the workload."
)
_AS_SCHEDULER = (
    "Policies choose as the scheduler's extender does: with the CPU and memory of nodes, and for the tasks that have "
    "come until then; before the first hundred for an assumed mix."
)


@dataclass(frozen=True, slots=True)
class Tried:
    """One policy and its runs, one for each seed."""

    plan: SimulationPlan
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return self.plan.node_policy.value

    @property
    def marks(self) -> tuple[int, ...]:
        """The percentages to report: all of the capacity, and the end."""
        return tuple(sorted({min(100, self.plan.inflate_percent), self.plan.inflate_percent}))


def simplified(tried: Sequence[Tried]) -> str:
    """The limits of the simulation, for readers of the figures."""
    return f"{SIMPLIFIED} {_AS_SCHEDULER if tried[0].plan.as_scheduler else _ALL_KNOWN}"


def document(scene: Scene, tried: Sequence[Tried]) -> dict[str, object]:
    plan = tried[0].plan
    return {
        **_means(tried[0]),
        "nodes": len(scene.nodes),
        "gpus": scene.gpus,
        "pods": len(scene.tasks),
        "inflate": plan.inflate_percent / 100,
        "gpu_policy": plan.gpu_policy.value,
        "as_scheduler": plan.as_scheduler,
        "simplified": simplified(tried),
        "policies": {
            each.name: {"mean": _means(each), "seeds": [_one(each, run) for run in each.runs]} for each in tried
        },
    }


def _one(tried: Tried, run: Run) -> dict[str, object]:
    return {
        "seed": run.seed,
        **_figures(tried, run),
        "waiting_for": dict(run.waits_for),
        "used_percent_by_model": {model: _percent(part) for model, part in run.models.items()},
        "allocated_percent": [_percent(sample.allocated) for sample in run.samples],
        "fragmented_percents": [_percent(sample.fragmented) for sample in run.samples],
        "waiting_tasks": [sample.waiting for sample in run.samples],
    }


def _means(tried: Tried) -> dict[str, object]:
    each = [_figures(tried, run) for run in tried.runs]
    means: dict[str, object] = {name: round(fmean([run[name] for run in each]), 3) for name in each[0]}
    return means | {"used_percent_by_model": _models(tried)}


def _models(tried: Tried) -> dict[str, float]:
    return {model: _percent(fmean([run.models[model] for run in tried.runs])) for model in tried.runs[0].models}


def _figures(tried: Tried, run: Run) -> dict[str, float]:
    end = run.at(tried.plan.inflate_percent)
    return {
        **{f"allocated_percent_at_{mark}": _percent(run.at(mark).allocated) for mark in tried.marks},
        "fragmented_percent": _percent(end.fragmented),
        "tasks": run.tasks,
        "waiting": run.waiting,
        "waiting_gpus": round(run.waiting_gpus, 2),
        "seconds": round(run.seconds, 2),
        "processor_seconds": round(run.processor_seconds, 2),
    }


def _percent(part: float) -> float:
    return round(100 * part, 3)


def tables(scene: Scene, tried: Sequence[Tried]) -> Group:
    seeds = len(tried[0].runs)
    pods, nodes, gpus = (
        _counted(*each) for each in ((len(scene.tasks), "pod"), (len(scene.nodes), "node"), (scene.gpus, "GPU"))
    )
    title = f"{pods} on {nodes} with {gpus}, {_seeds(seeds)}"
    return Group(
        _figure_table(title, tried), _model_table(tried), _waiting_table(tried), Text(simplified(tried), style="dim")
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"mean of {count} seeds"


def _figure_table(title: str, tried: Sequence[Tried]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("node policy", no_wrap=True)
    marks = tried[0].marks
    for mark in marks:
        table.add_column(f"allocated %\nat {mark} %", justify="right", no_wrap=True)
    for heading in ("free but\nuseless %", "waiting", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in tried:
        figures = _means(each)
        table.add_row(
            each.name,
            *(f"{figures[f'allocated_percent_at_{mark}']:.2f}" for mark in marks),
            f"{figures['fragmented_percent']:.2f}",
            f"{figures['waiting']:.0f}/{figures['tasks']:.0f}",
            f"{figures['seconds']:.1f}",
        )
    return table


def _model_table(tried: Sequence[Tried]) -> Table:
    used = {each.name: _models(each) for each in tried}
    return _side_by_side("used % of GPU model", used, places=1)


def _waiting_table(tried: Sequence[Tried]) -> Table:
    return _side_by_side("tasks that wait, most nodes said", {each.name: _waits(each) for each in tried}, places=0)


def _waits(tried: Tried) -> dict[str, float]:
    reasons = sorted({reason for run in tried.runs for reason in run.waits_for})
    return {reason: fmean([run.waits_for.get(reason, 0) for run in tried.runs]) for reason in reasons}


def _side_by_side(heading: str, columns: Mapping[str, Mapping[str, float]], *, places: int) -> Table:
    table = Table()
    table.add_column(heading)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    rows = dict.fromkeys(row for column in columns.values() for row in column)
    for row in rows:
        table.add_row(row, *(f"{column.get(row, 0):.{places}f}" for column in columns.values()))
    return table
