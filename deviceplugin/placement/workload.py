"""What a cluster's tasks look like: the kinds of task that come, and how often each does.

In: pods with the CPU and memory that they need, or pods alone. Out: a `Workload`, against which `fragmentation`
measures how usable free GPUs are. Each container that wants GPUs counts as a task of its own with its even part of the
pod's CPU and memory; a pod that wants no GPU is no part of it, because it cannot strand one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.request import Request
from deviceplugin.placement.node_state import Spare

NO_NEEDS = Spare(0, 0)


@dataclass(frozen=True, slots=True)
class TaskKind:
    """`wanted` without UUIDs: which single card a task insists on says nothing of the tasks to come."""

    request: Request
    needs: Spare = NO_NEEDS
    wanted: GpuFilter = ANY_GPU

    @property
    def demand(self) -> int:
        """Cores over all its GPUs."""
        return self.request.cores


@dataclass(frozen=True, slots=True)
class Workload:
    """Each kind once, in the order in which they were first seen, with how many came."""

    kinds: tuple[tuple[TaskKind, int], ...]


def workload(pods: Iterable[tuple[PodRequest, Spare]]) -> Workload:
    counted: Counter[TaskKind] = Counter()
    for pod, needs in pods:
        counted.update(kinds_of(pod, needs))
    return Workload(tuple(counted.items()))


def kinds_of(pod: PodRequest, needs: Spare) -> list[TaskKind]:
    count = max(1, len(pod.containers))
    part = Spare(needs.cpu_milli // count, needs.memory_mib // count)
    models = GpuFilter(models=pod.preferences.gpus.models, not_models=pod.preferences.gpus.not_models)
    return [TaskKind(container.request, part, models) for container in pod.containers]


def _assumed(cores: int, count: int) -> tuple[TaskKind, int]:
    return (TaskKind(Request(cores, 0)), count)


ASSUMED = Workload((
    _assumed(10, 10), _assumed(25, 10), _assumed(50, 20), _assumed(75, 5),
    _assumed(100, 40), _assumed(200, 8), _assumed(400, 4), _assumed(800, 3),
))  # fmt: skip
"""For a cluster in which nothing has been seen yet."""
