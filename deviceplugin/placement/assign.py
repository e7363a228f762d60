"""Places all containers of a pod at once, if one after the other does not work out.

In: a pod and a node. Out: the GPUs of each container, or whether it is certain that there is no such assignment: the
allowance of work is enough for all but pods of a dozen GPU containers and more that leave nothing over. The container
with the least choice is tried first, among equals the largest, GPUs in the order of how full they are; GPUs that are in
all respects alike are tried once.

What runs at the same time is a phase: one for each init container, and one for the app containers; a sidecar runs in
all phases from its own on. No GPU has more in any phase than it has free: the same as in `snapshot`, said so that a
search can count with it.
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from deviceplugin.model.allocation import Allocation
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.placement.budget import Budget
from deviceplugin.placement.candidates import Restrictions, is_open
from deviceplugin.placement.fit import Demand, GpuAmount, GpuModel, Sharing, demand_of
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.snapshot import GpuView, phases

_ALLOWANCE = 6_000  # looks at a GPU for a container: some 3 ms
Chosen = tuple[GpuView, ...]


class Unassigned(enum.Enum):
    """Why no assignment was found."""

    NONE_EXISTS = enum.auto()
    GIVEN_UP = enum.auto()


class _PhasedGpu(msgspec.Struct):
    """One GPU; free cores and blocks of each phase. Of two with equal `alike` either can stand for the other."""

    view: GpuView
    cores: list[int]
    blocks: list[int]
    numa: int
    model: int = 0
    kind: int = 0

    @property
    def alike(self) -> tuple[object, ...]:
        return (self.kind, tuple(self.cores), tuple(self.blocks))


class _Wanted(msgspec.Struct, frozen=True):
    """One container, by its place in the pod. `needs`: what must be free on a GPU, by the number of its model."""

    at: int
    demand: Demand
    needs: tuple[GpuAmount, ...]
    phases: tuple[int, ...]

    def fits(self, gpu: _PhasedGpu) -> bool:
        cores, blocks = self.needs[gpu.model]
        for phase in self.phases:  # noqa: SIM110 - asked most of all, and a generator costs more than the answer
            if gpu.cores[phase] < cores or gpu.blocks[phase] < blocks:
                return False
        return True

    def take(self, gpus: Iterable[_PhasedGpu], sign: int) -> None:
        for gpu in gpus:
            cores, blocks = self.needs[gpu.model]
            for phase in self.phases:
                gpu.cores[phase] -= sign * cores
                gpu.blocks[phase] -= sign * blocks

    @property
    def largest_first(self) -> tuple[int, ...]:
        gpus, sharing, (cores, blocks) = self.demand
        return (sharing is not Sharing.WHOLE, -gpus, -cores, -blocks, -len(self.phases), self.at)


def assign(
    pod: PodRequest,
    state: NodeState,
    *,
    fixed: Collection[Allocation] = (),
    allowance: int = _ALLOWANCE,
    budget: Budget | None = None,
) -> dict[str, Chosen] | Unassigned:
    """By container; `fixed` have theirs and are left out. `budget` may end the search before the allowance does."""
    budget = budget or Budget()
    restrictions = Restrictions(pod.preferences.gpus, state.cordoned)
    running = phases(pod.containers)
    count = 1 + max((phase for each in running for phase in each), default=0)
    gpus = [_phased(view, count) for view in sorted(state.snapshot.gpus, key=_fullness) if is_open(view, restrictions)]
    models = _number(gpus)
    held = {each.owner.name: each for each in fixed}
    for each, phase_of in zip(pod.containers, running, strict=True):
        if each.name in held:
            _occupy(gpus, held[each.name], phase_of)
    wanting = [(at, each) for at, each in enumerate(pod.containers) if each.name not in held]
    wanted = sorted((_wanted(at, each, models, running[at]) for at, each in wanting), key=lambda one: one.largest_first)
    search = _Search(gpus, one_numa=pod.preferences.gpus.one_numa, allowance=Budget(min(allowance, budget.left)))
    found = search.run(wanted)
    budget.may(search.spent)
    if not found:
        return Unassigned.GIVEN_UP if search.exhausted else Unassigned.NONE_EXISTS
    return {each.name: search.chosen[at] for at, each in wanting}


def _number(gpus: Iterable[_PhasedGpu]) -> tuple[GpuModel, ...]:
    """Gives equal numbers to equal models, and to GPUs that differ in nothing but what is free; the models in order."""
    models: dict[GpuModel, int] = {}
    kinds: dict[tuple[int, int], int] = {}
    for gpu in gpus:
        model = gpu.view.capacity.model._replace(name="")  # no container here asks for a name: the filter has
        gpu.model = models.setdefault(model, len(models))
        gpu.kind = kinds.setdefault((gpu.model, gpu.numa), len(kinds))
    return tuple(models)


def _occupy(gpus: Iterable[_PhasedGpu], held: Allocation, running: tuple[int, ...]) -> None:
    shares = {share.uuid: share for share in held.shares}
    for gpu in gpus:
        if (share := shares.get(gpu.view.gpu.uuid)) is not None:
            for phase in running:
                gpu.cores[phase] -= share.cores
                gpu.blocks[phase] -= share.blocks


def _phased(view: GpuView, phase_count: int) -> _PhasedGpu:
    numa = -1 if view.gpu.numa is None else view.gpu.numa
    return _PhasedGpu(view, [view.free_cores] * phase_count, [view.free_blocks] * phase_count, numa)


def _fullness(view: GpuView) -> tuple[int, int, int]:
    return (view.free_cores, view.free_blocks, view.gpu.minor)


def _wanted(at: int, container: ContainerRequest, models: Iterable[GpuModel], running: tuple[int, ...]) -> _Wanted:
    demand = demand_of(container.request)
    return _Wanted(at, demand, tuple(demand.needs(model) for model in models), running)


class _Search:
    """Depth first; `chosen` by the container's place."""

    def __init__(self, gpus: list[_PhasedGpu], *, one_numa: bool, allowance: Budget) -> None:
        self._gpus = gpus
        self._one_numa = one_numa
        self._allowance = allowance
        self.chosen: dict[int, Chosen] = {}

    @property
    def exhausted(self) -> bool:
        return self._allowance.is_spent

    @property
    def spent(self) -> int:
        return self._allowance.spent

    def run(self, left: Sequence[_Wanted]) -> bool:
        if not left:
            return True
        found = self._tightest(left)
        if found is None:
            return False
        wanted, fitting = found
        rest = [each for each in left if each is not wanted]
        for gpus in self._sets(fitting, wanted.demand.gpus):
            wanted.take(gpus, 1)
            if self.run(rest):
                self.chosen[wanted.at] = tuple(sorted((gpu.view for gpu in gpus), key=lambda view: view.gpu.minor))
                return True
            wanted.take(gpus, -1)
            if self.exhausted:
                return False
        return False

    def _tightest(self, left: Sequence[_Wanted]) -> tuple[_Wanted, list[_PhasedGpu]] | None:
        """The wanted with the least to choose from, the largest first among equals; None if one has too little."""
        if not self._allowance.may(len(left) * len(self._gpus)):
            return None
        best: tuple[_Wanted, list[_PhasedGpu]] | None = None
        for wanted in left:
            fitting = [gpu for gpu in self._gpus if wanted.fits(gpu)]
            if len(fitting) < wanted.demand.gpus:
                return None
            if best is None or len(fitting) - wanted.demand.gpus < len(best[1]) - best[0].demand.gpus:
                best = wanted, fitting
        return best

    def _sets(self, fitting: list[_PhasedGpu], count: int) -> Iterator[tuple[_PhasedGpu, ...]]:
        if not self._one_numa or count == 1:
            yield from _unlike(fitting, count)
            return
        for numa in sorted({gpu.numa for gpu in fitting}):
            yield from _unlike([gpu for gpu in fitting if gpu.numa == numa], count)


def _unlike(gpus: list[_PhasedGpu], count: int) -> Iterator[tuple[_PhasedGpu, ...]]:
    """Sets of that size, no two alike; the first GPUs first."""
    if count == 0:
        yield ()
        return
    tried = set()
    for at in range(len(gpus) - count + 1):
        if (alike := gpus[at].alike) in tried:
            continue
        tried.add(alike)
        for rest in _unlike(gpus[at + 1 :], count - 1):
            yield (gpus[at], *rest)
