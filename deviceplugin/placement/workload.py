"""What a cluster's tasks look like: the kinds of task that come, and how often each does.

In: pods with the CPU and memory that they need, or pods alone. Out: a `Workload`, against which `fragmentation`
measures how usable free GPUs are. Each container that wants GPUs counts as a task with its even part of the pod's CPU
and memory; a pod that wants no GPU is no part of it, because it cannot strand one.
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
    """`wanted` without UUIDs: a task that names one GPU says nothing about the tasks to come.

    Nor does one that lists more models than there are: a kind is kept long after its pods have ended.
    """

    request: Request
    needs: Spare = NO_NEEDS
    wanted: GpuFilter = ANY_GPU


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
    if sum(map(len, (*models.models, *models.not_models))) > _LONGEST_MODELS:
        models = ANY_GPU
    return [TaskKind(container.request, part, models) for container in pod.containers]


def _assumed(cores: int, count: int) -> tuple[TaskKind, int]:
    return (TaskKind(Request(cores, 0)), count)


ASSUMED = Workload((
    _assumed(10, 10), _assumed(25, 10), _assumed(50, 20), _assumed(75, 5),
    _assumed(100, 40), _assumed(200, 8), _assumed(400, 4), _assumed(800, 3),
))  # fmt: skip
"""For a cluster in which nothing has been seen yet."""


ENOUGH = 100
"""Tasks, before they say more about what comes than the assumed ones."""
_HALVE_AT = 20_000
_MOST_KINDS = 64
_MOST_COUNTED = 4_096
_LONGEST_MODELS = 256  # characters


class ObservedWorkload:
    """The kinds of task that a cluster has seen of late; None while too few were seen. `tasks` were seen in all.

    What is long ago counts less: after so many tasks every count is halved. Rare kinds are left out, so the size is
    bounded whatever comes. The same pods in the same order give the same workload.
    """

    def __init__(self, *, enough: int = ENOUGH, halve_at: int = _HALVE_AT, most_kinds: int = _MOST_KINDS) -> None:
        self._enough = enough
        self._halve_at = halve_at
        self._most_kinds = most_kinds
        self._counts: Counter[TaskKind] = Counter()
        self._total = 0
        self.tasks = 0

    def see(self, pod: PodRequest, needs: Spare = NO_NEEDS) -> None:
        for kind in kinds_of(pod, needs):
            self._counts[kind] += 1
            self._total += 1
            self.tasks += 1
        if self._total >= self._halve_at or len(self._counts) > _MOST_COUNTED:
            self._halve()

    def workload(self) -> Workload | None:
        if self.tasks < self._enough:
            return None
        return Workload(tuple(self._counts.most_common(self._most_kinds))) if self._counts else None

    def _halve(self) -> None:
        """A kind that was seen once is dropped."""
        self._counts = Counter({kind: count // 2 for kind, count in self._counts.items() if count > 1})
        self._total = self._counts.total()
