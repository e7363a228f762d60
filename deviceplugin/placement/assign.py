"""Places all containers of a pod at once, where one after the other does not work out.

In: a pod and a node. Out: the GPUs of each container, or whether it is certain that there is no such assignment: the
allowance of work is enough for all but pods of a dozen GPU containers and more that leave nothing over. The container
with the least choice is tried first, among equals the largest, GPUs in the order of how full they are; GPUs that are in
all respects alike are tried once.

What runs at the same time is a phase: one for each init container, and one for the app containers; a sidecar runs in
all phases from its own on. No GPU has more in any phase than it has free: the same as `occupancy`, said so that a
search can count with it.
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from deviceplugin.model.allocation import Allocation, ContainerRole
from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.request import RequestKind
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.candidates import Rules, is_open
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.snapshot import GpuView

_ALLOWANCE = 6_000  # looks at a GPU for a container: some 3 ms
Chosen = tuple[GpuView, ...]


class Unassigned(enum.Enum):
    """Why no assignment was found."""

    NONE_EXISTS = enum.auto()
    GIVEN_UP = enum.auto()


def phases(containers: Sequence[ContainerRequest]) -> tuple[tuple[int, ...], ...]:
    """For each container the phases in which it runs; the last one is that of the app containers."""
    inits = [each.index for each in containers if each.role is ContainerRole.INIT]
    steady = len(inits)
    out: list[tuple[int, ...]] = []
    for each in containers:
        if each.role is ContainerRole.INIT:
            out.append((inits.index(each.index),))
        elif each.role is ContainerRole.APP:
            out.append((steady,))
        else:
            out.append((*(at for at, place in enumerate(inits) if place >= each.index), steady))
    return tuple(out)


@dataclass(slots=True)
class _Room:
    """One GPU; free cores and blocks of each phase. Rooms of equal `kind` can stand for each other where both agree."""

    view: GpuView
    cores: list[int]
    blocks: list[int]
    size: int
    numa: int
    takes_shares: bool
    kind: int = 0

    @property
    def likeness(self) -> tuple[object, ...]:
        return (self.kind, tuple(self.cores), tuple(self.blocks))


@dataclass(frozen=True, slots=True)
class _Demand:
    """What one container takes of each of its GPUs."""

    at: int
    count: int
    whole: bool
    cores: int
    blocks: int
    phases: tuple[int, ...]

    def fits(self, room: _Room) -> bool:
        if self.whole:
            cores, blocks = CORES_PER_GPU, room.size
            if self.blocks > blocks:
                return False
        elif room.takes_shares:
            cores, blocks = self.cores, self.blocks
        else:
            return False
        for phase in self.phases:  # noqa: SIM110 - asked most of all, and a generator costs more than the answer
            if room.cores[phase] < cores or room.blocks[phase] < blocks:
                return False
        return True

    def takes(self, room: _Room, sign: int) -> None:
        cores, blocks = (CORES_PER_GPU, room.size) if self.whole else (self.cores, self.blocks)
        for phase in self.phases:
            room.cores[phase] -= sign * cores
            room.blocks[phase] -= sign * blocks


def assign(
    pod: PodRequest, state: NodeState, *, fixed: Collection[Allocation] = (), allowance: int = _ALLOWANCE
) -> dict[str, Chosen] | Unassigned:
    """By container; `fixed` have theirs and are left out."""
    rules = Rules(pod.preferences.gpus, state.cordoned)
    running = phases(pod.containers)
    count = 1 + max((phase for each in running for phase in each), default=0)
    rooms = [_room(view, count) for view in sorted(state.snapshot.gpus, key=_fullness) if is_open(view, rules)]
    kinds: dict[tuple[object, ...], int] = {}
    for room in rooms:
        room.kind = kinds.setdefault((room.size, room.numa, room.takes_shares), len(kinds))
    held = {each.owner.name: each for each in fixed}
    for each, phase_of in zip(pod.containers, running, strict=True):
        if each.name in held:
            _occupy(rooms, held[each.name], phase_of)
    wanting = [(at, each) for at, each in enumerate(pod.containers) if each.name not in held]
    demands = sorted((_demand(at, each, running[at]) for at, each in wanting), key=_size)
    search = _Search(rooms, one_numa=pod.preferences.gpus.one_numa, allowance=allowance)
    if not search.run(demands):
        return Unassigned.GIVEN_UP if search.exhausted else Unassigned.NONE_EXISTS
    return {each.name: search.chosen[at] for at, each in wanting}


def _occupy(rooms: Iterable[_Room], held: Allocation, running: tuple[int, ...]) -> None:
    shares = {share.uuid: share for share in held.shares}
    for room in rooms:
        if (share := shares.get(room.view.gpu.uuid)) is not None:
            for phase in running:
                room.cores[phase] -= share.cores
                room.blocks[phase] -= share.blocks


def _room(view: GpuView, phase_count: int) -> _Room:
    gpu = view.gpu
    return _Room(
        view,
        [view.free_cores] * phase_count,
        [view.free_blocks] * phase_count,
        size=gpu.blocks,
        numa=-1 if gpu.numa is None else gpu.numa,
        takes_shares=gpu.compute_mode is not ComputeMode.EXCLUSIVE_PROCESS,
    )


def _fullness(view: GpuView) -> tuple[int, int, int]:
    return (view.free_cores, view.free_blocks, view.gpu.minor)


def _demand(at: int, container: ContainerRequest, running: tuple[int, ...]) -> _Demand:
    request = container.request
    whole = request.kind is not RequestKind.SHARE
    return _Demand(at, request.gpus, whole, request.cores_per_gpu, request.blocks_per_gpu, running)


def _size(demand: _Demand) -> tuple[int, ...]:
    return (-demand.whole, -demand.count, -demand.cores, -demand.blocks, -len(demand.phases), demand.at)


class _Search:
    """Depth first; `chosen` by the container's place."""

    def __init__(self, rooms: list[_Room], *, one_numa: bool, allowance: int) -> None:
        self._rooms = rooms
        self._one_numa = one_numa
        self._allowance = allowance
        self.chosen: dict[int, Chosen] = {}

    @property
    def exhausted(self) -> bool:
        return self._allowance < 0

    def run(self, left: Sequence[_Demand]) -> bool:
        if not left:
            return True
        found = self._tightest(left)
        if found is None:
            return False
        demand, fitting = found
        rest = [each for each in left if each is not demand]
        for rooms in self._sets(fitting, demand.count):
            self._take(demand, rooms, 1)
            if self.run(rest):
                self.chosen[demand.at] = tuple(sorted((room.view for room in rooms), key=lambda view: view.gpu.minor))
                return True
            self._take(demand, rooms, -1)
            if self.exhausted:
                return False
        return False

    def _tightest(self, left: Sequence[_Demand]) -> tuple[_Demand, list[_Room]] | None:
        """The demand with the least to choose from, the largest first among equals; None where one has too little."""
        self._allowance -= len(left) * len(self._rooms)
        if self.exhausted:
            return None
        best: tuple[_Demand, list[_Room]] | None = None
        for demand in left:
            fitting = [room for room in self._rooms if demand.fits(room)]
            if len(fitting) < demand.count:
                return None
            if best is None or len(fitting) - demand.count < len(best[1]) - best[0].count:
                best = demand, fitting
        return best

    def _take(self, demand: _Demand, rooms: Sequence[_Room], sign: int) -> None:
        for room in rooms:
            demand.takes(room, sign)

    def _sets(self, fitting: list[_Room], count: int) -> Iterator[tuple[_Room, ...]]:
        if not self._one_numa or count == 1:
            yield from _unlike(fitting, count)
            return
        for numa in sorted({room.numa for room in fitting}):
            yield from _unlike([room for room in fitting if room.numa == numa], count)


def _unlike(rooms: list[_Room], count: int) -> Iterator[tuple[_Room, ...]]:
    """Sets of that size, of which no two are alike; the first rooms first."""
    if count == 0:
        yield ()
        return
    tried = set()
    for at in range(len(rooms) - count + 1):
        if (likeness := rooms[at].likeness) in tried:
            continue
        tried.add(likeness)
        for rest in _unlike(rooms[at + 1 :], count - 1):
            yield (rooms[at], *rest)
