"""Several policies on the same workload, side by side.

In: the runs of each policy. Out: a document for JSON, and the figures that tables show. `allocated_percent_at_N` is the
fraction of all GPUs that was allocated when tasks had requested N percent of them. Each figure has the mean and the
value of each seed. The means of the first policy are also at the top of the document, for scripts.

A picture of several policies: allocated GPUs, and free but useless ones, as tasks arrive.

In: the runs of each policy. Out: SVG; two panels of lines need no library. A line is the mean of the seeds, the band
behind it reaches from the minimum to the maximum. The left panel starts where the cluster begins to fill: below, all
policies allocate what is requested. Colours differ for colour-blind readers and in dark mode; each line ends with its
name and value.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from statistics import fmean
from typing import Any

import msgspec

from deviceplugin.simulate.replay import Run, Sample, SimulationPlan
from deviceplugin.simulate.stock_scheduler import OtherPods
from deviceplugin.simulate.trace import Scene

SIMPLIFIED = (
    "Pods come one by one in random order and none ends, whatever times the file has; one that fits nowhere stays "
    "Pending. Of a node its GPUs, CPU and memory count; selectors, taints, affinity, priorities and gangs do not."
)
_ALL_KNOWN = (
    "Policies know what the files say: the CPU and memory of nodes, and how often each kind of pod comes. The "
    "scheduler's extender learns the latter while pods come; --as-scheduler shows what it makes of the workload."
)
_AS_SCHEDULER = (
    "Policies choose as the scheduler's extender does: with the CPU and memory of nodes, and for the pods that have "
    "come until then; before the first hundred for an assumed mix."
)
_OTHER_PODS = {
    OtherPods.STOCK: "Pods without GPUs are placed by kube-scheduler's scores LeastAllocated and BalancedAllocation.",
    OtherPods.MOST_ALLOCATED: "Pods without GPUs are placed by kube-scheduler's scores MostAllocated and "
    "BalancedAllocation.",
    OtherPods.POLICY: "The node policy places pods without GPUs too, which it does not in a cluster.",
}
_BY_CLAIMS = (
    "dra: pods ask by claims; kube-scheduler scores nodes by CPU and memory left, and takes the first GPUs that fit."
)


class Tried(msgspec.Struct, frozen=True):
    """One policy and its runs, one for each seed."""

    plan: SimulationPlan
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def marks(self) -> tuple[int, ...]:
        """The percentages to report: all of the capacity, and the end."""
        return tuple(sorted({min(100, self.plan.inflate_percent), self.plan.inflate_percent}))


def simplified(tried: Sequence[Tried]) -> str:
    """The limits of the simulation, for readers of the figures."""
    plan = tried[0].plan
    known = _AS_SCHEDULER if plan.as_scheduler else _ALL_KNOWN
    return " ".join(
        [
            SIMPLIFIED,
            _OTHER_PODS[plan.other_pods],
            known,
            *([_BY_CLAIMS] if any(each.plan.by_claims for each in tried) else []),
        ]
    )


def document(scene: Scene, tried: Sequence[Tried]) -> dict[str, object]:
    plan = tried[0].plan
    return {
        **means(tried[0]),
        "nodes": len(scene.nodes),
        "gpus": scene.gpus,
        "pods": len(scene.tasks),
        "inflate": plan.inflate_percent / 100,
        "gpu_policy": plan.gpu_policy.value,
        "as_scheduler": plan.as_scheduler,
        "other_pods": plan.other_pods.value,
        "simplified": simplified(tried),
        "left_out": list(scene.left_out),
        "policies": {
            each.name: {"mean": means(each), "seeds": [_one(each, run) for run in each.runs]} for each in tried
        },
    }


def _one(tried: Tried, run: Run) -> dict[str, object]:
    return {
        "seed": run.seed,
        **_figures(tried, run),
        "pending_by_reason": dict(run.waits_for),
        "allocated_percent_by_model": {model: _percent(part) for model, part in run.models.items()},
        "allocated_percent": [_percent(sample.allocated) for sample in run.samples],
        "fragmented_percents": [_percent(sample.fragmented) for sample in run.samples],
        "pending_pods": [sample.waiting for sample in run.samples],
    }


def means(tried: Tried) -> dict[str, Any]:
    """Of all seeds."""
    each = [_figures(tried, run) for run in tried.runs]
    return {name: _mean([run[name] for run in each]) for name in each[0]} | {
        "allocated_percent_by_model": models(tried)
    }


def _mean(values: Sequence[float]) -> float:
    """A whole number where all are and their mean is."""
    found = round(fmean(values), 3)
    return int(found) if found.is_integer() and all(isinstance(value, int) for value in values) else found


def models(tried: Tried) -> dict[str, float]:
    """By GPU model the percentage that is allocated in the end."""
    return {model: _percent(fmean([run.models[model] for run in tried.runs])) for model in tried.runs[0].models}


def waits(tried: Tried) -> dict[str, float]:
    """By reason how many tasks wait in the end."""
    reasons = sorted({reason for run in tried.runs for reason in run.waits_for})
    return {reason: fmean([run.waits_for.get(reason, 0) for run in tried.runs]) for reason in reasons}


def _figures(tried: Tried, run: Run) -> dict[str, float]:
    end = run.at(tried.plan.inflate_percent)
    return {
        **{f"allocated_percent_at_{mark}": _percent(run.at(mark).allocated) for mark in tried.marks},
        "fragmented_percent": _percent(end.fragmented),
        "arrived": run.tasks,
        "pending": run.waiting,
        "pending_gpus": round(run.waiting_gpus, 2),
        "seconds": round(run.seconds, 2),
        "processor_seconds": round(run.processor_seconds, 2),
    }


def _percent(part: float) -> float:
    return round(100 * part, 3)


_LIGHT = ("#0072b2", "#c04f00", "#007f5f", "#a0428a", "#756300")
_DARK = ("#56b4e9", "#ee9a4d", "#3fc79a", "#e08fc9", "#d8c54a")
_WIDTH, _HEIGHT, _LEFT, _TOP, _LABELS = 350, 270, 52, 84, 128
_STEP = _LEFT + _WIDTH + _LABELS
_FILLS_FROM = 70
_LINE_OF_TEXT = 15
_Figure = Callable[[Sample], float]


class _Axes(msgspec.Struct, frozen=True):
    """The range of a panel, in percent."""

    left: int
    right: int
    bottom: float
    top: float

    def x(self, percent: float) -> float:
        return _WIDTH * (percent - self.left) / max(1, self.right - self.left)

    def y(self, value: float) -> float:
        return _HEIGHT * (self.top - value) / (self.top - self.bottom)

    def points(self, values: Sequence[float]) -> list[str]:
        """`values` starts at 1 percent."""
        shown = ((at, value) for at, value in enumerate(values, start=1) if at >= self.left)
        return [f"{self.x(at):.1f},{self.y(value):.1f}" for at, value in shown]


def plot(tried: Sequence[Tried], *, title: str) -> str:
    width, height = 2 * _STEP + 8, _TOP + _HEIGHT + 52
    seeds = len(tried[0].runs)
    below = "one seed" if seeds == 1 else f"lines: mean of {seeds} seeds; bands: minimum to maximum"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f"<style>{''.join(_style(len(tried)))}</style>",
        f'<g font-size="12" role="img"><title>{escape(title)}</title>',
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="42" class="faint">{below}</text>',
        *_panel(0, "allocated, % of all GPUs", tried, _allocated(tried), lambda sample: sample.allocated),
        *_panel(1, "free but useless to the next task, % of all GPUs", tried, _fragmented(tried), _useless),
    ]
    return "\n".join([*parts, "</g></svg>"]) + "\n"


def _style(lines: int) -> Iterator[str]:
    for scheme, (page, text, faint, grid), colours in (
        ("light", ("#ffffff", "#1f2328", "#59636e", "#d8dee4"), _LIGHT),
        ("dark", ("#0d1117", "#f0f6fc", "#9198a1", "#30363d"), _DARK),
    ):
        rules = f".page{{fill:{page}}}text{{fill:{text}}}.faint{{fill:{faint}}}.grid{{stroke:{grid}}}"
        for at, colour in enumerate(colours[:lines]):
            rules += f".line{at}{{stroke:{colour}}}.fill{at}{{fill:{colour}}}"
        yield rules if scheme == "light" else f"@media(prefers-color-scheme:dark){{{rules}}}"


def _useless(sample: Sample) -> float:
    return sample.fragmented


def _allocated(tried: Sequence[Tried]) -> _Axes:
    end = max(each.plan.inflate_percent for each in tried)
    start = _FILLS_FROM if end >= 100 else 0
    least = min(100 * run.at(max(1, start)).allocated for each in tried for run in each.runs)
    bottom = min(90, least // 10 * 10) if start else 0  # 90 where every policy allocates all: a panel needs a range
    return _Axes(start, end, bottom, 100)


def _fragmented(tried: Sequence[Tried]) -> _Axes:
    end = max(each.plan.inflate_percent for each in tried)
    most = max(100 * sample.fragmented for each in tried for run in each.runs for sample in run.samples)
    return _Axes(0, end, 0, next((bound for bound in (1, 2, 5, 10, 15, 20, 30, 50) if most <= bound), 100))


def _panel(at: int, heading: str, tried: Sequence[Tried], axes: _Axes, figure: _Figure) -> Iterator[str]:
    yield f'<g transform="translate({_LEFT + at * _STEP},{_TOP})">'
    yield f'<text x="0" y="-12" font-weight="bold">{heading}</text>'
    yield from _grid(axes)
    columns = [_columns(each, figure) for each in tried]
    for number, each in enumerate(columns):
        yield _band(each, axes, number)
    for number, each in enumerate(columns):
        points = " ".join(axes.points([fmean(column) for column in each]))
        yield f'<polyline class="line{number % len(_LIGHT)}" points="{points}" fill="none" stroke-width="2.5"/>'
    yield from _names(tried, [fmean(each[-1]) for each in columns], axes)
    yield "</g>"


def _grid(axes: _Axes) -> Iterator[str]:
    steps = 4 if axes.top - axes.bottom == 40 else 5
    for step in range(steps + 1):
        value = axes.bottom + (axes.top - axes.bottom) * step / steps
        y = axes.y(value)
        yield f'<line class="grid" x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="faint" x="-8" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    stride = max(10, (axes.right - axes.left) // 60 * 10)
    for percent in range(axes.left, axes.right + 1, stride):
        x = axes.x(percent)
        yield f'<text class="faint" x="{x:.1f}" y="{_HEIGHT + 18}" text-anchor="middle">{percent}</text>'
    middle = f'x="{_WIDTH / 2}" y="{_HEIGHT + 36}" text-anchor="middle"'
    yield f'<text class="faint" {middle}>requested, % of all GPUs</text>'


def _columns(tried: Tried, figure: _Figure) -> list[list[float]]:
    """For each percent of demand, the figure of every seed, in percent."""
    percents = range(1, tried.plan.inflate_percent + 1)
    return [[100 * figure(run.at(percent)) for run in tried.runs] for percent in percents]


def _band(columns: Sequence[Sequence[float]], axes: _Axes, number: int) -> str:
    edge = axes.points([max(column) for column in columns]) + axes.points([min(column) for column in columns])[::-1]
    return f'<polygon class="fill{number % len(_LIGHT)}" points="{" ".join(edge)}" opacity="0.2"/>'


def _names(tried: Sequence[Tried], last: Sequence[float], axes: _Axes) -> Iterator[str]:
    """At the ends of the lines, moved down if they would overlap."""
    y = float(-_LINE_OF_TEXT)
    for number in sorted(range(len(tried)), key=lambda at: (-last[at], at)):
        y = max(y + _LINE_OF_TEXT, axes.y(last[number]) + 4)
        text = f'<tspan font-weight="bold">{last[number]:.1f}</tspan> {escape(tried[number].name)}'
        yield f'<text class="fill{number % len(_LIGHT)}" x="{_WIDTH + 6}" y="{y:.1f}">{text}</text>'
