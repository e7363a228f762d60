"""What came out of one replay, and the mean of several.

Parts are of all GPUs of the cluster: 0 to 1, `asked` beyond.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.node_state import NodeState


@dataclass(frozen=True, slots=True)
class Sample:
    """When so much had been asked for: what was allocated, what was free and useless to the next task, who waited."""

    asked: float
    allocated: float
    fragmented: float
    waiting: int


@dataclass(frozen=True, slots=True)
class Took:
    """How long a run was, and for how long of that it had a processor, which others cannot make longer."""

    seconds: float
    processor_seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """`samples` has one for each hundredth of the capacity that was asked for; `models` the used part of each model."""

    seed: int
    samples: tuple[Sample, ...]
    tasks: int
    waiting: int
    waiting_gpus: float
    waits_for: Mapping[str, int]
    models: Mapping[str, float]
    took: Took

    def at(self, percent: int) -> Sample:
        """When that part of the capacity had been asked for; at the end where it never was."""
        return self.samples[min(percent, len(self.samples)) - 1]


def models_used(nodes: Iterable[NodeState]) -> dict[str, float]:
    used: dict[str, int] = {}
    count: dict[str, int] = {}
    for node in nodes:
        for view in node.snapshot.gpus:
            used[view.gpu.model] = used.get(view.gpu.model, 0) + CORES_PER_GPU - view.free_cores
            count[view.gpu.model] = count.get(view.gpu.model, 0) + 1
    return {model: used[model] / (count[model] * CORES_PER_GPU) for model in sorted(used)}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
