"""Several policies on the same workload, side by side.

In: the runs of each policy. Out: a document for JSON, and the figures that tables show. `allocated_percent_at_N` is the
fraction of all GPUs that was allocated when tasks had requested N percent of them. Each figure has the mean and the
value of each seed. The means of the first policy are also at the top of the document, for scripts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from deviceplugin.simulate.other_pods import OtherPods
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
_OTHER_PODS = {
    OtherPods.STOCK: "Pods without GPUs are placed by kube-scheduler's scores LeastAllocated and BalancedAllocation.",
    OtherPods.MOST_ALLOCATED: "Pods without GPUs are placed by kube-scheduler's scores MostAllocated and "
    "BalancedAllocation.",
    OtherPods.POLICY: "The node policy places pods without GPUs too, which it does not in a cluster.",
}
_BY_CLAIMS = (
    "dra: pods ask by claims; kube-scheduler scores nodes by CPU and memory left, and takes the first GPUs that fit."
)


@dataclass(frozen=True, slots=True)
class Tried:
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
        "waiting_for": dict(run.waits_for),
        "used_percent_by_model": {model: _percent(part) for model, part in run.models.items()},
        "allocated_percent": [_percent(sample.allocated) for sample in run.samples],
        "fragmented_percents": [_percent(sample.fragmented) for sample in run.samples],
        "waiting_tasks": [sample.waiting for sample in run.samples],
    }


def means(tried: Tried) -> dict[str, Any]:
    """Of all seeds."""
    each = [_figures(tried, run) for run in tried.runs]
    return {name: _mean([run[name] for run in each]) for name in each[0]} | {"used_percent_by_model": models(tried)}


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
        "tasks": run.tasks,
        "waiting": run.waiting,
        "waiting_gpus": round(run.waiting_gpus, 2),
        "seconds": round(run.seconds, 2),
        "processor_seconds": round(run.processor_seconds, 2),
    }


def _percent(part: float) -> float:
    return round(100 * part, 3)
