"""How much of a node's free GPUs is of no use to the tasks that come, and by how much a pod makes that more.

In: a `Workload`, and nodes as GPU capacities with the CPU and memory beside them. Out: integers, so that the same node
has the same value on every machine. For each kind of task the free cores that cannot be used count, weighted by how
often it comes:

    fragmentation = sum over kinds of   weight * (2 * free cores - alone - together)

`alone`: the free cores of the GPUs that one such task could go to (Weng et al., "Beware of Fragmentation", USENIX ATC
2023). `together`: the cores that as many such tasks as fit side by side would take, so a GPU is not called usable if
CPU, memory or a second GPU is missing.

A `Workload` says what a cluster's tasks look like: the kinds of task that come, and how often each does. It is made of
pods with the CPU and memory that they need, or of pods alone. Each container that wants GPUs counts as a task with its
even part of the pod's CPU and memory; a pod that wants no GPU is no part of it, because it cannot strand one.

Invariant: the growth by a pod is the fragmentation after it less that before it; what is cached changes no answer.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.request import Request
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.capacity_after import Capacities, free_cores
from deviceplugin.placement.fit import NEVER, Demand, GpuAmount, GpuCapacity, GpuModel, demand_of
from deviceplugin.placement.node_state import Spare

NO_NEEDS = Spare(0, 0)


class TaskKind(msgspec.Struct, frozen=True):
    """`wanted` without UUIDs: a task that names one GPU says nothing about the tasks to come.

    Nor does one that lists more models than there are: a kind is kept long after its pods have ended.
    """

    request: Request
    needs: Spare = NO_NEEDS
    wanted: GpuFilter = ANY_GPU


class Workload(msgspec.Struct, frozen=True):
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


_SCALE = 1 << 20
_MOST_USABLE = 20_000
_MOST_WORTHS = 8_000
_UNLIMITED = (1 << 62, 1 << 62)
_ALL_BITS = (1 << 32) - 1

Weigh = Callable[[Request], int]


class Usable(NamedTuple):
    """Cores, times the weight of the kinds of task that could use them."""

    alone: int
    together: int


class _Group(NamedTuple):
    """Kinds of task that want the same of GPUs and may use the same models; each with CPU, memory and weight.

    `most` has the largest CPU and the largest memory of all members, `weight` what they weigh together. `gpus` and
    `size`: how many GPUs one task takes, and their cores.
    """

    demand: Demand
    open_to: frozenset[GpuModel]
    members: tuple[tuple[int, int, int], ...]
    most: tuple[int, int]
    weight: int
    gpus: int
    size: int

    def needs(self, model: GpuModel) -> GpuAmount:
        return self.demand.needs(model) if model in self.open_to else NEVER


class _GpuWorth(NamedTuple):
    """One GPU to all groups: how many of its tasks fit for each, and the free cores if one does.

    Packed, 32 bits for each group: to add up two such rows is one addition of long integers. No sum carries into the
    next group: a GPU has at most 100 cores, and none of an over-committed one is free.
    """

    fits: int
    cores: int


class _Groups:
    """All groups of the tasks that may use some models; what one GPU is worth to them is cached."""

    __slots__ = ("_needs", "_of_several", "_packing", "_several", "_worths", "groups", "rows")

    def __init__(self, groups: tuple[_Group, ...]) -> None:
        self.groups = groups
        self.rows = [(group.members, *group.most, group.weight, group.size) for group in groups]
        self._several = [(at, group.gpus) for at, group in enumerate(groups) if group.gpus > 1]
        self._worths: dict[GpuCapacity, _GpuWorth] = {}
        self._needs: dict[GpuModel, tuple[GpuAmount, ...]] = {}
        self._packing = Struct(f"<{len(groups)}I")
        self._of_several = self._packed([_ALL_BITS if group.gpus > 1 else 0 for group in groups])

    def rooms(self, worths: Sequence[_GpuWorth], together: _GpuWorth) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """For each group how many of its tasks fit side by side, and the free cores of GPUs that one could go to.

        `together` is the sum of the worths.
        """
        sets = self._unpacked(together.fits)
        if together.fits & self._of_several:
            sets = self._in_sets(sets, [self._unpacked(each.fits) for each in worths])
        return sets, self._unpacked(together.cores)

    def worth(self, gpu: GpuCapacity) -> _GpuWorth:
        """Written for speed: for a pod of a new shape, every node has capacities that were never seen."""
        return self._worths.get(gpu) or self._worth(gpu)

    def _in_sets(self, fits: tuple[int, ...], by_gpu: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """A task of several GPUs takes one of each that it fits."""
        sets = list(fits)
        for at, size in self._several:
            sets[at] = _sets([own[at] for own in by_gpu], size)
        return tuple(sets)

    def _worth(self, gpu: GpuCapacity) -> _GpuWorth:
        if len(self._worths) >= _MOST_WORTHS:
            self._worths.clear()
        model, cores, free = gpu
        # A share fits as often as the scarcer of cores and memory allows, a whole GPU once, as it needs all of both.
        needs = self._needs.get(model)
        if needs is None:
            needs = self._needs[model] = tuple(group.needs(model) for group in self.groups)
        fits = [min(cores // own, free // blocks) if blocks else cores // own for own, blocks in needs]
        found = _GpuWorth(self._packed(fits), self._packed([cores if count else 0 for count in fits]))
        self._worths[gpu] = found
        return found

    def _packed(self, numbers: Sequence[int]) -> int:
        return int.from_bytes(self._packing.pack(*numbers), "little")

    def _unpacked(self, packed: int) -> tuple[int, ...]:
        return self._packing.unpack(packed.to_bytes(self._packing.size, "little"))


class UsableCapacity:
    """Cards as one measure sees them, whatever CPU and memory are beside them."""

    __slots__ = ("_cores", "_groups", "_sets", "_together", "_weight", "_whole", "_worths", "free")

    def __init__(
        self, worths: Sequence[_GpuWorth], together: _GpuWorth, free: int, groups: _Groups, weight: int
    ) -> None:
        self.free = free
        self._worths, self._together, self._groups, self._weight = worths, together, groups, weight
        self._whole = 2 * weight * free  # `alone` and `together`, if every task could use all that is free
        self._sets, self._cores = groups.rooms(worths, together)

    def less(self, at: int, left: GpuCapacity, cores: int) -> "UsableCapacity":
        """Where less is left of one GPU, by so many cores."""
        worths, now = list(self._worths), self._groups.worth(left)
        before, worths[at] = worths[at], now
        together = _GpuWorth(
            self._together.fits - before.fits + now.fits, self._together.cores - before.cores + now.cores
        )
        return UsableCapacity(worths, together, self.free - cores, self._groups, self._weight)

    def usable(self, spare: Spare | None) -> Usable:
        """Cores that tasks could use beside that much CPU and memory. None: nobody counts it here."""
        cpu_free, memory_free = _UNLIMITED if spare is None else (max(0, spare.cpu_milli), max(0, spare.memory_mib))
        alone = together = 0
        for (members, most_cpu, most_memory, weight, size), sets, cores in zip(
            self._groups.rows, self._sets, self._cores, strict=True
        ):
            if not sets:
                continue
            # Where the largest needs of the group leave room for all sets, so do those of each member.
            if most_cpu * sets <= cpu_free and most_memory * sets <= memory_free:
                alone += weight * cores
                together += weight * sets * size
                continue
            for cpu, memory, own_weight in members:
                # Divided only if it is too little, and so never by 0: what needs none of it never lacks it.
                count = sets if cpu * sets <= cpu_free else cpu_free // cpu
                if memory * count > memory_free:
                    count = memory_free // memory
                if count > 0:
                    alone += own_weight * cores
                    together += own_weight * count * size
        return Usable(alone, together)

    def fragmentation(self, spare: Spare | None) -> int:
        alone, together = self.usable(spare)
        return self._whole - alone - together


def _sets(fits: Sequence[int], size: int) -> int:
    """How many sets of so many different GPUs there are, where each GPU may be in as many sets as it fits."""
    # One GPU gives a set at most one of its GPUs, however often it fits: too few different GPUs mean fewer sets.
    sets, most = sum(fits) // size, max(fits)
    while 0 < sets < most and sum([min(count, sets) for count in fits]) < sets * size:
        sets -= 1
    return sets


class Fragmentation:
    """The measure for one workload. Answers are kept by what they depend on; it may be asked about any node."""

    def __init__(self, workload: Workload, *, weigh: Weigh | None = None) -> None:
        rate = weigh or by_rate
        self._kinds = tuple((kind, count * rate(kind.request)) for kind, count in workload.kinds)
        self.weight = sum(weight for _, weight in self._kinds)
        self._groups: dict[frozenset[GpuModel], _Groups] = {}
        self._usable_of: dict[Capacities, UsableCapacity] = {}

    def of(self, gpus: Capacities, spare: Spare | None) -> int:
        """A measure of one node: only to be compared."""
        return self.usable_capacity(gpus).fragmentation(spare)

    def usable_capacity(self, gpus: Capacities) -> UsableCapacity:
        """CPU and memory change more often than GPUs, so what GPUs alone say is cached apart."""
        found = self._usable_of.get(gpus)
        if found is None:
            if len(self._usable_of) >= _MOST_USABLE:
                self._usable_of.clear()
            groups = self._groups_for(gpus)
            worths = [groups.worth(gpu) for gpu in gpus]
            together = _GpuWorth(sum([each.fits for each in worths]), sum([each.cores for each in worths]))
            found = self._usable_of[gpus] = UsableCapacity(worths, together, free_cores(gpus), groups, self.weight)
        return found

    def _groups_for(self, gpus: Capacities) -> _Groups:
        models = frozenset([gpu[0] for gpu in gpus])
        groups = self._groups.get(models)
        if groups is None:
            groups = self._groups[models] = self._group(models)
        return groups

    def _group(self, models: frozenset[GpuModel]) -> _Groups:
        members: dict[tuple[Request, frozenset[GpuModel]], list[tuple[int, int, int]]] = {}
        for task, weight in self._kinds:
            if open_to := frozenset(model for model in models if _admits(task, model)):
                own = (task.needs.cpu_milli, task.needs.memory_mib, weight)
                members.setdefault((task.request, open_to), []).append(own)
        return _Groups(tuple(_group(request, open_to, tuple(own)) for (request, open_to), own in members.items()))


def _group(request: Request, open_to: frozenset[GpuModel], members: tuple[tuple[int, int, int], ...]) -> _Group:
    demand = demand_of(request)
    return _Group(
        demand,
        open_to,
        members,
        most=(max(cpu for cpu, _, _ in members), max(memory for _, memory, _ in members)),
        weight=sum(weight for _, _, weight in members),
        gpus=demand.gpus,
        size=demand.total.cores,
    )


def _admits(task: TaskKind, model: GpuModel) -> bool:
    return demand_of(task.request).lasting_rejection(model) is None and task.wanted.admits_model(model.name)


def by_rate(request: Request) -> int:
    """Small tasks weigh more, because they can fill what large ones leave.

    A share weighs inversely to the cores that it asks for, a task of several GPUs inversely to the root of how many.
    Other weights that were tried, and on which traces: benchmarks/results/simulate.
    """
    # In integers, so that every machine puts nodes into the same order.
    share = _SCALE * CORES_PER_GPU // request.cores_per_gpu
    return share * _SCALE // math.isqrt(request.gpus * _SCALE * _SCALE)


def by_count(_request: Request) -> int:
    """Each task weighs the same: the chance that the next task is of that kind."""
    return 1


def stranded(measure: Fragmentation, gpus: Capacities, spare: Spare | None) -> int:
    """Free cores that the next task cannot use, as it is to be expected, times `measure.weight`."""
    return measure.weight * free_cores(gpus) - measure.usable_capacity(gpus).usable(spare).alone
