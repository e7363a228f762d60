"""Who holds how much of each GPU, by kubelet's arithmetic: the one place that adds allocations up.

In: allocations. Out: what is occupied, or a snapshot of what a new container may have. A pod runs its init containers
one after the other; a sidecar among them starts in its turn and stays; the app containers come last. So a pod occupies
of a GPU, for cores and blocks each, the largest of

    its sidecars + its app containers        and, for each init container,        it + the sidecars before it

and a container needs room beside whatever runs in those phases in which it runs itself. A container of unknown role
counts as a sidecar before all others: in every phase. Only the allocations matter, never their order, so that a ledger
read back in any order says the same. Places in a list differ; where they do not, because an older journal does not name
them, a sidecar counts as the earlier one.

Invariant: an allocation placed on a snapshot from here never takes a GPU beyond its capacity.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from deviceplugin.model.allocation import Allocation, ContainerRole, PodUid
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.snapshot import GpuView, Snapshot


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Cores and blocks of one GPU."""

    cores: int = 0
    blocks: int = 0

    def __add__(self, other: "Occupancy") -> "Occupancy":
        return Occupancy(self.cores + other.cores, self.blocks + other.blocks)

    def __or__(self, other: "Occupancy") -> "Occupancy":
        """The larger of each: what two have that do not run at the same time."""
        return Occupancy(max(self.cores, other.cores), max(self.blocks, other.blocks))


_NOTHING = Occupancy()
_Placed = tuple[int, Occupancy]
"""What a container of the init list has, after its place there."""


@dataclass(slots=True)
class _PodUse:
    """What the containers of one pod have of one GPU."""

    inits: list[_Placed] = field(default_factory=list)
    sidecars: list[_Placed] = field(default_factory=list)
    apps: Occupancy = _NOTHING

    def add(self, role: ContainerRole, index: int, held: Occupancy) -> None:
        match role:
            case ContainerRole.INIT:
                self.inits.append((index, held))
            case ContainerRole.SIDECAR:
                self.sidecars.append((index, held))
            case ContainerRole.UNKNOWN:
                self.sidecars.append((0, held))
            case ContainerRole.APP:
                self.apps += held

    def beside(self, role: ContainerRole, index: int) -> Occupancy:
        """The most that runs at the same time as a further container of that role at that place."""
        match role:
            case ContainerRole.INIT:
                return self._sidecars_at(index)
            case ContainerRole.SIDECAR:
                return self._since(index)
            case ContainerRole.UNKNOWN:
                return self.total
            case ContainerRole.APP:
                return self._steady

    @property
    def total(self) -> Occupancy:
        return self._since(0)

    def _since(self, index: int) -> Occupancy:
        """The largest phase, of the init containers from that place on and of the app containers."""
        largest = self._steady
        for place, held in self.inits:
            if place >= index:
                largest |= held + self._sidecars_at(place)
        return largest

    @property
    def _steady(self) -> Occupancy:
        return sum((held for _, held in self.sidecars), self.apps)

    def _sidecars_at(self, index: int) -> Occupancy:
        return sum((held for place, held in self.sidecars if place <= index), _NOTHING)


def occupied(allocations: Iterable[Allocation]) -> dict[GpuUuid, Occupancy]:
    """What is held of each GPU that anything is held of."""
    totals: dict[GpuUuid, Occupancy] = {}
    for (uuid, _), use in _uses(allocations).items():
        totals[uuid] = totals.get(uuid, _NOTHING) + use.total
    return totals


def snapshot_for(
    inventory: Inventory,
    allocations: Iterable[Allocation],
    *,
    pod: PodUid | None = None,
    role: ContainerRole = ContainerRole.APP,
    index: int = 0,
    processes: Mapping[GpuUuid, int] | None = None,
) -> Snapshot:
    """What a further container may have: of this pod, only what runs beside a container of that role and place counts.

    Without a pod everything counts. A container that is placed again must not be among the allocations.
    """
    held: dict[GpuUuid, Occupancy] = {}
    for (uuid, owner), use in _uses(allocations).items():
        held[uuid] = held.get(uuid, _NOTHING) + (use.beside(role, index) if owner == pod else use.total)
    return _without(Snapshot(empty_views(inventory, processes or {}), inventory.topology), held)


def empty_views(inventory: Inventory, processes: Mapping[GpuUuid, int] = MappingProxyType({})) -> tuple[GpuView, ...]:
    """Every GPU as if nothing of it was held."""
    return tuple(
        GpuView(gpu, CORES_PER_GPU, gpu.blocks, processes.get(gpu.uuid, 0), inventory.health_of(gpu.uuid))
        for gpu in inventory.gpus
    )


def free_for_next_container(
    snapshot: Snapshot, own: Collection[Allocation], *, role: ContainerRole, index: int
) -> Snapshot:
    """What a further container of a pod may have, where the snapshot has all pods but this one, of which `own` are."""
    if not own:
        return snapshot
    held = {uuid: use.beside(role, index) for (uuid, _), use in _uses(own).items()}
    return _without(snapshot, held)


def _without(snapshot: Snapshot, held: Mapping[GpuUuid, Occupancy]) -> Snapshot:
    views = tuple(
        view.less(own.cores, own.blocks) if (own := held.get(view.gpu.uuid)) else view for view in snapshot.gpus
    )
    return Snapshot(views, snapshot.topology)


def _uses(allocations: Iterable[Allocation]) -> dict[tuple[GpuUuid, PodUid], _PodUse]:
    uses: dict[tuple[GpuUuid, PodUid], _PodUse] = {}
    for allocation in allocations:
        for part in allocation.shares:
            use = uses.setdefault((part.uuid, allocation.owner.pod.uid), _PodUse())
            use.add(allocation.role, allocation.index, Occupancy(part.cores, part.blocks))
    return uses
