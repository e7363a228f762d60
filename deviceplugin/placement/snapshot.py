"""What placement looks at: every GPU of a node with what is free on it at one moment, and a summary of it.

In: an inventory less what is held. Out: values that never change. A `Summary` answers for most pods at once whether
they fit: for shares and for whole GPUs it has what is free and what the empty node would have, the largest first. It is
calculated once for a node that does not change. Filters of a pod are not in it: such a pod is answered from a summary
of the GPUs that it admits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from deviceplugin.model.gpu import Gpu, GpuUuid, Health
from deviceplugin.model.topology import Topology
from deviceplugin.placement.fit import NOTHING, Demand, GpuAmount, GpuCapacity, GpuModel, Sharing, model_of, offers

_Offers = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as a request sees it: free cores (of 100), free blocks, processes that NVML sees on it."""

    gpu: Gpu
    free_cores: int
    free_blocks: int
    processes: int = 0
    health: Health = Health()
    _capacity: GpuCapacity | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def capacity(self) -> GpuCapacity:
        """What the rule of fit sees of it; calculated when it is first asked for."""
        if self._capacity is None:
            object.__setattr__(self, "_capacity", GpuCapacity(model_of(self.gpu), self.free_cores, self.free_blocks))
            assert self._capacity is not None
        return self._capacity

    @property
    def is_whole(self) -> bool:
        """Nobody holds any part of it."""
        return self.capacity.is_whole

    @property
    def free(self) -> GpuAmount:
        return GpuAmount(self.free_cores, self.free_blocks)

    def less(self, held: GpuAmount) -> "GpuView":
        """With so much taken; where more is taken than is free, nothing is left."""
        cores, blocks = max(0, self.free_cores - held.cores), max(0, self.free_blocks - held.blocks)
        left = GpuView(self.gpu, cores, blocks, self.processes, self.health)
        # The model is the same: to find it again costs more than the rest, and each pod makes a new view.
        object.__setattr__(left, "_capacity", GpuCapacity(self.capacity.model, cores, blocks))
        return left


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All GPUs of one node and how they are linked."""

    gpus: tuple[GpuView, ...]
    topology: Topology

    def less(self, held: Mapping[GpuUuid, GpuAmount]) -> "Snapshot":
        views = tuple(view.less(held[view.gpu.uuid]) if view.gpu.uuid in held else view for view in self.gpus)
        return Snapshot(views, self.topology)


@dataclass(frozen=True, slots=True)
class Summary:
    """What GPUs offer now to each kind of demand, the most cores first; `free` is what all of them have together."""

    models: tuple[GpuModel, ...]
    now: Mapping[Sharing, _Offers]
    free: GpuAmount

    @property
    def empty(self) -> Mapping[Sharing, _Offers]:
        """The same as if nothing was held."""
        return _offers_of_empty(self.models)

    @property
    def whole(self) -> GpuAmount:
        """What all of them have together when nothing is held."""
        return sum((model.whole for model in self.models), NOTHING)

    def fits(self, demand: Demand) -> bool:
        """Whether enough GPUs can serve it, as `Demand.rejection` says of each."""
        return _covered(self.now[demand.sharing], demand)

    def fits_empty(self, demand: Demand) -> bool:
        return _covered(self.empty[demand.sharing], demand)


def _covered(found: _Offers, demand: Demand) -> bool:
    count, _, (cores, blocks) = demand
    for free_cores, free_blocks in found:
        if free_cores < cores:
            return False
        if free_blocks >= blocks:
            count -= 1
            if not count:
                return True
    return False


@lru_cache(maxsize=256)
def _offers_of_empty(models: tuple[GpuModel, ...]) -> Mapping[Sharing, _Offers]:
    return _all_offers([GpuCapacity(model, *model.whole) for model in models])


def _all_offers(gpus: list[GpuCapacity]) -> Mapping[Sharing, _Offers]:
    return {sharing: offers(gpus, sharing) for sharing in Sharing}


def summarize(views: Iterable[GpuView]) -> Summary:
    """Of GPUs that are open to work."""
    gpus = [view.capacity for view in views]
    free = GpuAmount(sum([gpu.cores for gpu in gpus]), sum([gpu.blocks for gpu in gpus]))
    return Summary(tuple([gpu.model for gpu in gpus]), _all_offers(gpus), free)


def summaries_by_numa(views: Iterable[GpuView]) -> tuple[Summary, ...]:
    """One for each NUMA node; GPUs whose NUMA node is not known count as one."""
    nodes: dict[int | None, list[GpuView]] = {}
    for view in views:
        nodes.setdefault(view.gpu.numa, []).append(view)
    return tuple(summarize(each) for each in nodes.values())
