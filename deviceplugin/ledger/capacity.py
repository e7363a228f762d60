"""Whether grants fit on the GPUs that are here: the last door before anything is written.

In: the allocations before and after a change, and the inventory. Out: which GPUs hold more than they have. Pure; the
arithmetic of init containers is `placement.occupancy`'s. A GPU that is over-committed already (found so at start)
may be relieved or left as it is, never loaded further.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from deviceplugin.errors import CapacityError
from deviceplugin.model.allocation import Allocation
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.units import CORES_PER_GPU, format_blocks
from deviceplugin.placement.occupancy import occupied


@dataclass(frozen=True, slots=True)
class Load:
    """What is held of one GPU and what it has; both zero in `has` where the GPU is not in the inventory."""

    uuid: GpuUuid
    cores: int
    blocks: int
    has_cores: int
    has_blocks: int

    @property
    def is_over(self) -> bool:
        return self.cores > self.has_cores or self.blocks > self.has_blocks

    def is_worse_than(self, before: "Load") -> bool:
        """More is held of something of which too much is held now."""
        more_cores = self.cores > max(before.cores, self.has_cores)
        more_blocks = self.blocks > max(before.blocks, self.has_blocks)
        return more_cores or more_blocks

    def __str__(self) -> str:
        return (
            f"GPU {self.uuid} holds {self.cores} of {self.has_cores} cores and {self.blocks} of "
            f"{format_blocks(self.has_blocks)}"
        )


def loads(allocations: Iterable[Allocation], inventory: Inventory) -> dict[GpuUuid, Load]:
    """The load of every GPU that something is held of."""
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    return {
        uuid: Load(
            uuid=uuid,
            cores=held.cores,
            blocks=held.blocks,
            has_cores=CORES_PER_GPU if uuid in gpus else 0,
            has_blocks=gpus[uuid].blocks if uuid in gpus else 0,
        )
        for uuid, held in occupied(allocations).items()
    }


def over_commitments(allocations: Iterable[Allocation], inventory: Inventory) -> tuple[Load, ...]:
    """Every GPU of which more is held than it has."""
    return tuple(load for load in loads(allocations, inventory).values() if load.is_over)


def check(
    before: Iterable[Allocation], after: Iterable[Allocation], inventory: Inventory, *, gpus: Set[GpuUuid]
) -> None:
    """Raises CapacityError where `after` over-commits one of these GPUs more than `before` does."""
    held = loads(_touching(before, gpus), inventory)
    for uuid, load in loads(_touching(after, gpus), inventory).items():
        now = held.get(uuid, Load(uuid, 0, 0, load.has_cores, load.has_blocks))
        if uuid in gpus and load.is_worse_than(now):
            raise CapacityError(_sentence(now, load, inventory))


def _touching(allocations: Iterable[Allocation], gpus: Set[GpuUuid]) -> Iterable[Allocation]:
    return (allocation for allocation in allocations if any(share.uuid in gpus for share in allocation.shares))


def _sentence(now: Load, then: Load, inventory: Inventory) -> str:
    gpu = inventory.gpu(then.uuid)
    if gpu is None:
        return f"GPU {then.uuid} is not on this node any more, so nothing can be granted on it; create the pod again"
    free_cores, free_blocks = max(0, now.has_cores - now.cores), max(0, now.has_blocks - now.blocks)
    return (
        f"GPU {gpu.minor} ({then.uuid}) has {free_cores} cores and {format_blocks(free_blocks)} free and the request "
        f"needs {then.cores - now.cores} cores and {format_blocks(then.blocks - now.blocks)} more of it; "
        "ask for less, or create the pod again when other pods have ended"
    )
