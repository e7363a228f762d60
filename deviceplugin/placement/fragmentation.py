"""How much of a node's free GPUs is of no use to the tasks that come, and by how much a pod makes that more.

In: a workload, and nodes as GPU capacities with the CPU and memory beside them. Out: integers, so that the same node
has the same value on every machine. For each kind of task the free cores that cannot be used count, weighted by how
often it comes:

    fragmentation = sum over kinds of   weight * (2 * free cores - alone - together)

`alone`: the free cores of the GPUs that one such task could go to (Weng et al., "Beware of Fragmentation", USENIX ATC
2023). `together`: the cores that as many such tasks as fit side by side would take, so a GPU is not called usable where
CPU, memory or a second GPU is missing.

Invariant: the growth by a pod is the fragmentation after it less that before it; what is cached changes no answer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deviceplugin.model.request import Request
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.capacity_after import Capacities, free_cores
from deviceplugin.placement.fit import NEVER, Demand, GpuAmount, GpuCapacity, GpuModel, demand_of
from deviceplugin.placement.node_state import Spare
from deviceplugin.placement.workload import TaskKind, Workload

_SCALE = 1 << 20
_MOST_USABLE = 20_000
_MOST_PARTS = 8_000

Weigh = Callable[[Request], int]


class Usable(NamedTuple):
    """Cores, times the weight of the kinds of task that could use them."""

    alone: int
    together: int


@dataclass(frozen=True, slots=True)
class _Group:
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


class _GroupRoom(NamedTuple):
    """What GPUs have for one group: `sets` of its tasks side by side, and the cores of GPUs that one could go to."""

    group: _Group
    sets: int
    cores: int


class _Groups:
    """All groups of the tasks that may use some models; what one GPU is worth to each group is cached."""

    __slots__ = ("_groups", "_needs", "_parts")

    def __init__(self, groups: tuple[_Group, ...]) -> None:
        self._groups = groups
        self._parts: dict[GpuCapacity, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._needs: dict[GpuModel, tuple[GpuAmount, ...]] = {}

    def rooms(self, gpus: Capacities) -> tuple[_GroupRoom, ...]:
        """Written for speed: for a pod of a new shape, every node has capacities that were never seen."""
        if not gpus:
            return ()
        # One pass over columns of numbers is much faster than a loop over groups and GPUs.
        parts = [self._parts.get(gpu) or self._part(gpu) for gpu in gpus]
        fits, cores = zip(*[part[0] for part in parts], strict=True), zip(*[part[1] for part in parts], strict=True)
        rooms: list[_GroupRoom] = []
        for group, counts, free in zip(self._groups, fits, cores, strict=True):
            if sets := sum(counts) if group.gpus == 1 else _sets(counts, group.gpus):
                rooms.append(_GroupRoom(group, sets, sum(free)))
        return tuple(rooms)

    def _part(self, gpu: GpuCapacity) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """For each group how many of its tasks fit, and the free cores where one does."""
        if len(self._parts) >= _MOST_PARTS:
            self._parts.clear()
        model, cores, free = gpu
        # A share fits as often as the scarcer of cores and memory allows, a whole GPU once, as it needs all of both.
        needs = self._needs.get(model)
        if needs is None:
            needs = self._needs[model] = tuple(group.needs(model) for group in self._groups)
        fits = tuple([min(cores // own, free // blocks) if blocks else cores // own for own, blocks in needs])
        found = self._parts[gpu] = (fits, tuple([cores if count else 0 for count in fits]))
        return found


class UsableCapacity:
    """Cards as one measure sees them, whatever CPU and memory are beside them."""

    __slots__ = ("_ample", "_enough", "_rooms", "_whole", "free")

    def __init__(self, gpus: Capacities, rooms: tuple[_GroupRoom, ...], weight: int) -> None:
        self.free = free_cores(gpus)
        self._rooms = rooms
        self._whole = 2 * weight * self.free
        # Beside this much CPU and memory nothing but GPUs limits any group, and its value is a constant.
        cpu = memory = alone = together = 0
        for group, sets, cores in rooms:
            most = group.most
            cpu = max(cpu, most[0] * sets)
            memory = max(memory, most[1] * sets)
            alone += group.weight * cores
            together += group.weight * sets * group.size
        self._enough = (cpu, memory)
        self._ample = Usable(alone, together)

    def usable(self, spare: Spare | None) -> Usable:
        """Beside so much; most nodes have more than any tasks on their GPUs could need. None: nobody counts it here."""
        if spare is None or (spare.cpu_milli >= self._enough[0] and spare.memory_mib >= self._enough[1]):
            return self._ample
        return _counted(self._rooms, spare.cpu_milli, spare.memory_mib)

    def fragmentation(self, spare: Spare | None) -> int:
        alone, together = self.usable(spare)
        return self._whole - alone - together


def _sets(fits: Sequence[int], size: int) -> int:
    """How many sets of so many different GPUs there are, where each GPU may be in as many sets as it fits."""
    # One GPU gives a set at most one of its GPUs, however often it fits: too few different GPUs mean fewer sets.
    sets = sum(fits) // size
    while sets and sum(min(count, sets) for count in fits) < sets * size:
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
            found = self._usable_of[gpus] = UsableCapacity(gpus, self._rooms_in(gpus), self.weight)
        return found

    def _rooms_in(self, gpus: Capacities) -> tuple[_GroupRoom, ...]:
        models = frozenset([gpu[0] for gpu in gpus])
        groups = self._groups.get(models)
        if groups is None:
            groups = self._groups[models] = self._group(models)
        return groups.rooms(gpus)

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


def _counted(rooms: tuple[_GroupRoom, ...], cpu_free: int, memory_free: int) -> Usable:
    """Cores that tasks could use beside that much CPU and memory."""
    alone = together = 0
    cpu_free, memory_free = max(0, cpu_free), max(0, memory_free)
    for group, sets, cores in rooms:
        size = group.size
        # Where the largest needs of the group leave room for all sets, so do those of each member.
        if group.most[0] * sets <= cpu_free and group.most[1] * sets <= memory_free:
            alone += group.weight * cores
            together += group.weight * sets * size
            continue
        for cpu, memory, weight in group.members:
            count = sets if cpu * sets <= cpu_free else cpu_free // cpu
            if memory * count > memory_free:
                count = memory_free // memory
            if count > 0:
                alone += weight * cores
                together += weight * count * size
    return Usable(alone, together)


def _admits(task: TaskKind, model: GpuModel) -> bool:
    return demand_of(task.request).lasting_rejection(model) is None and task.wanted.admits_model(model.name)


def by_rate(request: Request) -> int:
    """Small tasks weigh more, because they can fill what large ones leave.

    A share weighs inversely to the cores that it asks for, a task of several GPUs inversely to the root of how many.
    Other weights that were tried, and on which traces: benchmarks/results/simulate.
    """
    share = _SCALE * CORES_PER_GPU // request.cores_per_gpu
    return share * _SCALE // math.isqrt(request.gpus * _SCALE * _SCALE)


def by_count(_request: Request) -> int:
    """Each task weighs the same: the chance that the next task is of that kind."""
    return 1


def stranded(measure: Fragmentation, gpus: Capacities, spare: Spare | None) -> int:
    """Free cores that the next task cannot use, as it is to be expected, times `measure.weight`."""
    return measure.weight * free_cores(gpus) - measure.usable_capacity(gpus).usable(spare).alone
