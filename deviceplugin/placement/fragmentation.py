"""How much of a node's free GPUs is of no use to the tasks that come, and by how much a pod would make that more.

In: a workload, and nodes as cards with the CPU and memory beside them. Out: integers. For each kind of task the free
cores of a node that cannot be used count, weighted by how often it comes:

    fragmentation = sum over kinds of   weight * (2 * free cores - alone - together)

`alone` are the free cores of the GPUs that one such task could go to; this is the measure of Weng et al., "Beware of
Fragmentation" (USENIX ATC 2023). `together` are the cores that as many such tasks as fit side by side would really
take, so a GPU is not called usable for which CPU, memory or a neighbour is missing. Everything is an integer, so equal
nodes are equal on every machine.

Invariant: the growth by a pod is the fragmentation after it less that before it; what is kept changes no answer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deviceplugin.model.request import Request, RequestKind
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.gpu_capacity import Capacities, GpuCapacity, GpuModel, free_cores
from deviceplugin.placement.node_state import Spare
from deviceplugin.placement.workload import TaskKind, Workload

_SCALE = 1 << 20
_MOST_KEPT = 20_000
_MOST_GROUNDS = 20_000
_MOST_PARTS = 8_000
_NEVER = CORES_PER_GPU + 1
"""More cores than a GPU has."""
_AMPLE = Spare(1 << 62, 1 << 62)
"""Beside a node of which somebody else counts CPU and memory."""

Weigh = Callable[[Request], int]


class Usable(NamedTuple):
    """Cores, times the weight of the kinds of task that could use them."""

    alone: int
    together: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Kinds of task that want the same of GPUs and may use the same cards; each with CPU, memory and weight.

    `cores` and `blocks` are of each of `gpus`; a whole GPU has all its memory free. `most` has the largest CPU and the
    largest memory of all members, `weight` what they weigh together. `size`: cores of one task.
    """

    gpus: int
    cores: int
    blocks: int
    open_to: frozenset[GpuModel]
    members: tuple[tuple[int, int, int], ...]
    most: tuple[int, int]
    weight: int
    size: int

    def wants(self, kind: GpuModel) -> tuple[int, int]:
        """Cores and blocks of a GPU of this kind: a whole one has all of its own, and one not open never enough."""
        if kind not in self.open_to:
            return (_NEVER, 0)
        return (self.cores, max(self.blocks, kind.blocks) if self.cores == CORES_PER_GPU else self.blocks)


class _Room(NamedTuple):
    """What cards have for one group: `sets` of its tasks side by side, and the cores of cards that one could go to."""

    group: _Group
    sets: int
    cores: int


class _Groups:
    """All groups of the tasks that GPUs of some kinds are open to; what one card is for each of them is kept."""

    __slots__ = ("_groups", "_parts", "_wants")

    def __init__(self, groups: tuple[_Group, ...]) -> None:
        self._groups = groups
        self._parts: dict[GpuCapacity, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._wants: dict[GpuModel, tuple[tuple[int, int], ...]] = {}

    def rooms(self, cards: Capacities, *, single: bool, several: bool) -> tuple[_Room, ...]:
        """Written for speed: a pod of a new shape makes new cards of every node."""
        if not cards:
            return ()
        parts = [self._parts.get(card) or self._part(card) for card in cards]
        fits, cores = zip(*[part[0] for part in parts], strict=True), zip(*[part[1] for part in parts], strict=True)
        rooms: list[_Room] = []
        for group, counts, free in zip(self._groups, fits, cores, strict=True):
            if single if group.gpus == 1 else several:
                sets = sum(counts) if group.gpus == 1 else _sets(counts, group.gpus)
                if sets:
                    rooms.append(_Room(group, sets, sum(free)))
        return tuple(rooms)

    def _part(self, card: GpuCapacity) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """For each group how many of its tasks fit, and the free cores where one does."""
        if len(self._parts) >= _MOST_PARTS:
            self._parts.clear()
        kind, cores, free = card
        wants = self._wants.get(kind)
        if wants is None:
            wants = self._wants[kind] = tuple(group.wants(kind) for group in self._groups)
        fits = tuple([min(cores // own, free // blocks) if blocks else cores // own for own, blocks in wants])
        found = self._parts[card] = (fits, tuple([cores if count else 0 for count in fits]))
        return found


class UsableCapacity:
    """Cards as one measure sees them, whatever CPU and memory are beside them."""

    __slots__ = ("_ample", "_enough", "_rooms", "_whole", "free")

    def __init__(self, cards: Capacities, rooms: tuple[_Room, ...], weight: int) -> None:
        self.free = free_cores(cards)
        self._rooms = rooms
        self._whole = 2 * weight * self.free
        cpu = memory = alone = together = 0
        for group, sets, cores in rooms:
            most = group.most
            cpu = max(cpu, most[0] * sets)
            memory = max(memory, most[1] * sets)
            alone += group.weight * cores
            together += group.weight * sets * group.size
        self._enough = (cpu, memory)
        self._ample = Usable(alone, together)

    def usable(self, cpu: int, memory: int) -> Usable:
        """Beside so much; most nodes have more than any tasks on their GPUs could need."""
        if cpu < self._enough[0] or memory < self._enough[1]:
            return _counted(self._rooms, cpu, memory)
        return self._ample

    def value(self, cpu: int, memory: int) -> int:
        alone, together = self.usable(cpu, memory)
        return self._whole - alone - together


def _sets(fits: Sequence[int], size: int) -> int:
    """How many sets of so many different GPUs there are, where each GPU may be in as many sets as it fits."""
    sets = sum(fits) // size
    while sets and size > 1 and sum(min(count, sets) for count in fits) < sets * size:
        sets -= 1
    return sets


class Fragmentation:
    """The measure for one workload. Answers are kept by what they depend on; it may be asked about any node."""

    def __init__(self, workload: Workload, *, weigh: Weigh | None = None) -> None:
        rate = weigh or by_rate
        self._kinds = tuple((kind, count * rate(kind.request)) for kind, count in workload.kinds)
        self.weight = sum(weight for _, weight in self._kinds)
        self._groups: dict[frozenset[GpuModel], _Groups] = {}
        self._known: dict[Capacities, Usable] = {}
        self._grounds: dict[Capacities, UsableCapacity] = {}
        self._alone: dict[GpuCapacity, Usable] = {}
        self._wide: dict[Capacities, Usable] = {}
        self._least = min((kind.request.cores_per_gpu for kind, _ in self._kinds if kind.request.gpus > 1), default=0)

    def of(self, cards: Capacities, spare: Spare | None) -> int:
        """A measure of one node: only to be compared."""
        usable = self.usable(cards, spare)
        return 2 * self.weight * free_cores(cards) - usable.alone - usable.together

    def growth(self, before: Capacities, after: Capacities, spare: Spare | None, needs: Spare) -> int:
        """By how much a pod makes it more that leaves these cards and takes that much CPU and memory."""
        return self.of(after, None if spare is None else spare - needs) - self.of(before, spare)

    def usable(self, cards: Capacities, spare: Spare | None) -> Usable:
        if spare is not None:
            return self.ground(cards).usable(spare.cpu_milli, spare.memory_mib)
        found = self._known.get(cards)
        if found is None:
            if len(self._known) >= _MOST_KEPT:
                for kept in (self._known, self._alone, self._wide):
                    kept.clear()
            found = self._known[cards] = self._of_cards(cards)
        return found

    def ground(self, cards: Capacities) -> UsableCapacity:
        """CPU and memory change more often than cards, so what cards alone say is kept apart."""
        found = self._grounds.get(cards)
        if found is None:
            if len(self._grounds) >= _MOST_GROUNDS:
                self._grounds.clear()
            found = self._grounds[cards] = UsableCapacity(cards, self._rooms_in(cards), self.weight)
        return found

    def _of_cards(self, cards: Capacities) -> Usable:
        """Beside ample CPU and memory: what each card is for tasks of one GPU, and what all are for the others."""
        alone = together = 0
        for card in cards:
            part = self._alone.get(card)
            if part is None:
                part = self._alone[card] = self._count(_free((card,)), _AMPLE, several=False)
            alone += part.alone
            together += part.together
        if self._least:
            wide = tuple(card for card in cards if card.cores >= self._least)
            part = self._wide.get(wide)
            if part is None:
                part = self._wide[wide] = self._count(wide, _AMPLE, single=False)
            alone += part.alone
            together += part.together
        return Usable(alone, together)

    def _count(self, cards: Capacities, spare: Spare, *, single: bool = True, several: bool = True) -> Usable:
        """For tasks of one GPU, of several, or both."""
        return _counted(self._rooms_in(cards, single=single, several=several), spare.cpu_milli, spare.memory_mib)

    def _rooms_in(self, cards: Capacities, *, single: bool = True, several: bool = True) -> tuple[_Room, ...]:
        groups = self._groups_for(frozenset([card[0] for card in cards]))
        return groups.rooms(cards, single=single, several=several)

    def _groups_for(self, kinds: frozenset[GpuModel]) -> _Groups:
        found = self._groups.get(kinds)
        if found is None:
            found = self._groups[kinds] = self._group(kinds)
        return found

    def _group(self, kinds: frozenset[GpuModel]) -> _Groups:
        members: dict[tuple[Request, frozenset[GpuModel]], list[tuple[int, int, int]]] = {}
        for task, weight in self._kinds:
            if open_to := frozenset(kind for kind in kinds if _admits(task, kind)):
                own = (task.needs.cpu_milli, task.needs.memory_mib, weight)
                members.setdefault((task.request, open_to), []).append(own)
        return _Groups(tuple(_group(request, open_to, tuple(own)) for (request, open_to), own in members.items()))


def _group(request: Request, open_to: frozenset[GpuModel], members: tuple[tuple[int, int, int], ...]) -> _Group:
    return _Group(
        request.gpus,
        request.cores_per_gpu,
        request.blocks_per_gpu,
        open_to,
        members,
        most=(max(cpu for cpu, _, _ in members), max(memory for _, memory, _ in members)),
        weight=sum(weight for _, _, weight in members),
        size=request.gpus * request.cores_per_gpu,
    )


def _counted(rooms: tuple[_Room, ...], cpu_free: int, memory_free: int) -> Usable:
    """Where even the largest needs of a group leave room for all sets, its members need not be looked at."""
    alone = together = 0
    cpu_free, memory_free = max(0, cpu_free), max(0, memory_free)
    for group, sets, cores in rooms:
        size = group.size
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


def _free(cards: Capacities) -> Capacities:
    return tuple(card for card in cards if card.cores)


def _admits(task: TaskKind, kind: GpuModel) -> bool:
    if kind.whole_only and task.request.kind is RequestKind.SHARE:
        return False
    return task.wanted.admits_model(kind.model)


def by_rate(request: Request) -> int:
    """Small tasks weigh more, because they can fill what large ones leave.

    A share weighs inversely to the cores that it asks for, a task of several GPUs inversely to the root of how many;
    benchmarks/results says which other weights were tried, and on what.
    """
    share = _SCALE * CORES_PER_GPU // request.cores_per_gpu
    return share * _SCALE // math.isqrt(request.gpus * _SCALE * _SCALE)


def by_count(_request: Request) -> int:
    """Each task weighs the same: the chance that the next task is of that kind."""
    return 1


def stranded(measure: Fragmentation, cards: Capacities, spare: Spare | None) -> int:
    """Free cores that the next task cannot use, as it is to be expected, times `measure.weight`."""
    return measure.weight * free_cores(cards) - measure.usable(cards, spare).alone
