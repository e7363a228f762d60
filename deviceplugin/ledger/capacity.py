"""Whether grants fit on the GPUs that are here: the last check before anything is written.

In: the allocations before and after a change, and the inventory. Out: which GPUs hold more than they have. Pure;
`placement.occupancy` counts init containers. A GPU that is over-committed already, as found at start, may be relieved
or left as it is, never loaded further.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from deviceplugin.errors import CapacityError
from deviceplugin.model.allocation import Allocation
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.units import format_blocks
from deviceplugin.placement.fit import NOTHING, GpuAmount, model_of
from deviceplugin.placement.occupancy import occupied


@dataclass(frozen=True, slots=True)
class Load:
    """What is held of one GPU and what it has: nothing where the GPU is not in the inventory."""

    uuid: GpuUuid
    held: GpuAmount
    has: GpuAmount

    @property
    def is_over(self) -> bool:
        return not self.has.covers(self.held)

    def is_worse_than(self, before: "Load") -> bool:
        """More is held of what is over-committed now."""
        return not (before.held | self.has).covers(self.held)

    def __str__(self) -> str:
        return (
            f"GPU {self.uuid} holds {self.held.cores} of {self.has.cores} cores and {self.held.blocks} of "
            f"{format_blocks(self.has.blocks)}"
        )


def loads(allocations: Iterable[Allocation], inventory: Inventory) -> dict[GpuUuid, Load]:
    has = {gpu.uuid: model_of(gpu).whole for gpu in inventory.gpus}
    return {uuid: Load(uuid, held, has.get(uuid, NOTHING)) for uuid, held in occupied(allocations).items()}


def check(
    before: Iterable[Allocation], after: Iterable[Allocation], inventory: Inventory, *, gpus: Set[GpuUuid]
) -> None:
    """Raises CapacityError where `after` over-commits one of these GPUs more than `before` does."""
    held = loads(_touching(before, gpus), inventory)
    for uuid, load in loads(_touching(after, gpus), inventory).items():
        now = held.get(uuid, Load(uuid, NOTHING, load.has))
        if uuid in gpus and load.is_worse_than(now):
            raise CapacityError(_sentence(now, load, inventory))


def _touching(allocations: Iterable[Allocation], gpus: Set[GpuUuid]) -> Iterable[Allocation]:
    return (allocation for allocation in allocations if any(share.uuid in gpus for share in allocation.shares))


def _sentence(now: Load, then: Load, inventory: Inventory) -> str:
    gpu = inventory.gpu(then.uuid)
    if gpu is None:
        return f"GPU {then.uuid} is not on this node any more, so nothing can be granted on it; create the pod again"
    free = now.has - now.held
    more = GpuAmount(then.held.cores - now.held.cores, then.held.blocks - now.held.blocks)
    return (
        f"GPU {gpu.minor} ({then.uuid}) has {free.cores} cores and {format_blocks(free.blocks)} free and the request "
        f"needs {more.cores} cores and {format_blocks(more.blocks)} more of it; "
        "ask for less, or create the pod again when other pods have ended"
    )
