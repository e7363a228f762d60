"""What placement looks at: every GPU of a node with what is free on it at one moment, by kubelet's arithmetic.

In: an inventory and the allocations that hold it; this is the one place that adds allocations up. Out: values that
never change. A `Summary` answers for most pods at once whether they fit: for shares and for whole GPUs it has what is
free and what the empty node would have, the largest first. It is calculated once for a node that does not change.
Filters of a pod are not in it: such a pod is answered from a summary of the GPUs that it admits.

A pod runs its init containers one after the other; a sidecar among them starts in its turn and stays; the app
containers come last. So a pod occupies of a GPU, for cores and blocks each, the largest of

    its sidecars + its app containers        and, for each init container,        it + the sidecars before it

and a container needs room beside whatever runs in those phases in which it runs itself. A container of unknown role
counts as a sidecar before all others: in every phase. Only the allocations matter, never their order, so that a ledger
read back in any order says the same. Places in a list differ; where they do not, because an older journal does not name
them, a sidecar counts as the earlier one.

Invariant: an allocation placed on a snapshot from here never takes a GPU beyond its capacity.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import msgspec
from msgspec.structs import force_setattr

from deviceplugin.model.allocation import Allocation, ContainerRole, PodUid
from deviceplugin.model.gpu import Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.pod_request import ContainerRequest
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.fit import NOTHING, Demand, GpuAmount, GpuCapacity, GpuModel, Sharing, model_of, offers

_Offers = Sequence[tuple[int, int]]
_NO_CAPACITY = GpuCapacity(GpuModel("", 0), 0, 0)


class GpuView(msgspec.Struct, frozen=True):
    """One GPU as a request sees it: free cores (of 100), free blocks, processes that NVML sees on it.

    `capacity` is what the rule of fit sees of it.
    """

    gpu: Gpu
    free_cores: int
    free_blocks: int
    processes: int = 0
    health: Health = Health()
    capacity: GpuCapacity = _NO_CAPACITY

    def __post_init__(self) -> None:
        force_setattr(self, "capacity", GpuCapacity(model_of(self.gpu), self.free_cores, self.free_blocks))

    @property
    def free(self) -> GpuAmount:
        return GpuAmount(self.free_cores, self.free_blocks)

    def less(self, held: GpuAmount) -> "GpuView":
        """With so much taken; where more is taken than is free, nothing is left."""
        cores, blocks = max(0, self.free_cores - held.cores), max(0, self.free_blocks - held.blocks)
        return GpuView(self.gpu, cores, blocks, self.processes, self.health)


class Snapshot(msgspec.Struct, frozen=True):
    """All GPUs of one node and how they are linked."""

    gpus: tuple[GpuView, ...]
    topology: Topology

    def less(self, held: Mapping[GpuUuid, GpuAmount]) -> "Snapshot":
        if not held:
            return self
        views = tuple(view.less(held[view.gpu.uuid]) if view.gpu.uuid in held else view for view in self.gpus)
        return Snapshot(views, self.topology)


class Summary(msgspec.Struct, frozen=True):
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
    # Lists, not generators, which cost more: this runs for each node that has changed.
    gpus = [view.capacity for view in views]
    free = GpuAmount(sum([gpu.cores for gpu in gpus]), sum([gpu.blocks for gpu in gpus]))
    return Summary(tuple([gpu.model for gpu in gpus]), _all_offers(gpus), free)


def summaries_by_numa(views: Iterable[GpuView]) -> tuple[Summary, ...]:
    """One for each NUMA node; GPUs whose NUMA node is not known count as one."""
    nodes: dict[int | None, list[GpuView]] = {}
    for view in views:
        nodes.setdefault(view.gpu.numa, []).append(view)
    return tuple(summarize(each) for each in nodes.values())


_Placed = tuple[int, GpuAmount]
"""What a container of the init list has, after its place there."""


class _PodUse(msgspec.Struct):
    """What the containers of one pod have of one GPU. All sums are of what was added so far."""

    inits: list[_Placed] = msgspec.field(default_factory=list)
    sidecars: list[_Placed] = msgspec.field(default_factory=list)
    steady: GpuAmount = NOTHING
    beside_inits: GpuAmount = NOTHING
    last: int = 0

    def add(self, role: ContainerRole, index: int, held: GpuAmount) -> None:
        if role is ContainerRole.INIT:
            self.inits.append((index, held))
            self.last = max(self.last, index)
            return
        self.steady += held
        if role is not ContainerRole.APP:
            index = 0 if role is ContainerRole.UNKNOWN else index
            self.sidecars.append((index, held))
            self.beside_inits += held
            self.last = max(self.last, index)

    def beside(self, role: ContainerRole, index: int) -> GpuAmount:
        """The most that runs at the same time as a further container of that role at that place."""
        match role:
            case ContainerRole.INIT:
                return self._sidecars_at(index)
            case ContainerRole.SIDECAR:
                return self._since(index)
            case ContainerRole.UNKNOWN:
                return self.total
            case ContainerRole.APP:
                return self.steady

    @property
    def total(self) -> GpuAmount:
        return self._since(0)

    def _since(self, index: int) -> GpuAmount:
        """The largest phase, of the init containers from that place on and of the app containers.

        Walks the init list once: a pod may have a thousand of both kinds.
        """
        if index > self.last:
            return self.steady
        largest, before, at = self.steady, NOTHING, 0
        sidecars = sorted(self.sidecars)
        for place, held in sorted(self.inits):
            while at < len(sidecars) and sidecars[at][0] <= place:
                before, at = before + sidecars[at][1], at + 1
            if place >= index:
                largest |= held + before
        return largest

    def _sidecars_at(self, index: int) -> GpuAmount:
        if index >= self.last:  # in kubelet's order all of them are before it
            return self.beside_inits
        return sum((held for place, held in self.sidecars if place <= index), NOTHING)


def occupied(allocations: Iterable[Allocation]) -> dict[GpuUuid, GpuAmount]:
    """What is held of each GPU that anything is held of."""
    totals: dict[GpuUuid, GpuAmount] = {}
    for (uuid, _), use in _uses(allocations).items():
        totals[uuid] = totals.get(uuid, NOTHING) + use.total
    return totals


def snapshot_for(
    inventory: Inventory,
    allocations: Iterable[Allocation],
    *,
    processes: Mapping[GpuUuid, int] = MappingProxyType({}),
) -> Snapshot:
    """What a further pod may have."""
    empty = tuple(
        GpuView(gpu, CORES_PER_GPU, gpu.blocks, processes.get(gpu.uuid, 0), inventory.health_of(gpu.uuid))
        for gpu in inventory.gpus
    )
    return Snapshot(empty, inventory.topology).less(occupied(allocations))


class OwnUse:
    """What the containers of one pod hold; each that is placed is added, and nothing is counted twice."""

    def __init__(self, own: Iterable[Allocation] = ()) -> None:
        self._by_gpu: dict[GpuUuid, _PodUse] = {}
        for each in own:
            self.add(each)

    def add(self, allocation: Allocation) -> None:
        for part in allocation.shares:
            use = self._by_gpu.setdefault(part.uuid, _PodUse())
            use.add(allocation.role, allocation.index, GpuAmount(part.cores, part.blocks))

    def free(self, snapshot: Snapshot, *, role: ContainerRole, index: int) -> Snapshot:
        """What a further container of the pod may have, where the snapshot has all pods but this one."""
        if not self._by_gpu:
            return snapshot
        return snapshot.less({uuid: use.beside(role, index) for uuid, use in self._by_gpu.items()})


def free_for_next_container(
    snapshot: Snapshot, own: Collection[Allocation], *, role: ContainerRole, index: int
) -> Snapshot:
    """The same for one container, beside `own`."""
    return OwnUse(own).free(snapshot, role=role, index=index)


def _uses(allocations: Iterable[Allocation]) -> dict[tuple[GpuUuid, PodUid], _PodUse]:
    uses: dict[tuple[GpuUuid, PodUid], _PodUse] = {}
    for allocation in allocations:
        for part in allocation.shares:
            use = uses.setdefault((part.uuid, allocation.owner.pod.uid), _PodUse())
            use.add(allocation.role, allocation.index, GpuAmount(part.cores, part.blocks))
    return uses


def peak_use(containers: Iterable[tuple[ContainerRole, int, GpuAmount]]) -> GpuAmount:
    """What a pod uses in the phase that uses most; of each container its role, its place in its list and its use."""
    use = _PodUse()
    for role, index, held in containers:
        use.add(role, index, held)
    return use.total


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
