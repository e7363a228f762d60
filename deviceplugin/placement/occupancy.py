"""Who holds how much of each GPU, by kubelet's arithmetic: the one place that adds allocations up.

In: allocations. Out: what is occupied, or a snapshot of what a new container may have. Init containers run one after
the other before the app containers, so they share one room; sidecars stay. A pod occupies of a GPU the larger of

    its sidecars + its app containers        and        its sidecars + the largest of its init containers

for cores and blocks each. The order of allocations does not matter, so that a ledger read back in any order says the
same. The price: an init container that ends before a later sidecar of the same pod starts counts as running beside it.

Invariant: an allocation placed on a snapshot from here never takes a GPU beyond its capacity.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _PodUse:
    """What one pod has of one GPU: the largest init container, all sidecars, all app containers."""

    init: Occupancy = _NOTHING
    sidecars: Occupancy = _NOTHING
    apps: Occupancy = _NOTHING

    @property
    def total(self) -> Occupancy:
        return self.sidecars + (self.init | self.apps)

    def beside(self, role: ContainerRole) -> Occupancy:
        """What runs at the same time as a further container of that role."""
        match role:
            case ContainerRole.INIT:
                return self.sidecars
            case ContainerRole.SIDECAR:
                return self.total
            case ContainerRole.APP:
                return self.sidecars + self.apps

    def plus(self, role: ContainerRole, more: Occupancy) -> "_PodUse":
        match role:
            case ContainerRole.INIT:
                return _PodUse(self.init | more, self.sidecars, self.apps)
            case ContainerRole.SIDECAR:
                return _PodUse(self.init, self.sidecars + more, self.apps)
            case ContainerRole.APP:
                return _PodUse(self.init, self.sidecars, self.apps + more)


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
    processes: Mapping[GpuUuid, int] | None = None,
) -> Snapshot:
    """What a further container may have: of this pod, only what runs beside a container of that role counts.

    Without a pod everything counts. A container that is placed again must not be among the allocations.
    """
    held: dict[GpuUuid, Occupancy] = {}
    for (uuid, owner), use in _uses(allocations).items():
        held[uuid] = held.get(uuid, _NOTHING) + (use.beside(role) if owner == pod else use.total)
    running = processes or {}
    views = tuple(
        GpuView(
            gpu=gpu,
            free_cores=max(0, CORES_PER_GPU - held.get(gpu.uuid, _NOTHING).cores),
            free_blocks=max(0, gpu.blocks - held.get(gpu.uuid, _NOTHING).blocks),
            processes=running.get(gpu.uuid, 0),
            health=inventory.health_of(gpu.uuid),
        )
        for gpu in inventory.gpus
    )
    return Snapshot(gpus=views, topology=inventory.topology)


def _uses(allocations: Iterable[Allocation]) -> dict[tuple[GpuUuid, PodUid], _PodUse]:
    uses: dict[tuple[GpuUuid, PodUid], _PodUse] = {}
    for allocation in allocations:
        for part in allocation.shares:
            key = (part.uuid, allocation.owner.pod.uid)
            more = Occupancy(part.cores, part.blocks)
            uses[key] = uses.get(key, _PodUse()).plus(allocation.role, more)
    return uses
