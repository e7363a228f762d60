"""One node as the choice among nodes sees it: its GPUs with what is free, and what else tasks need of it.

In: an inventory and what every pod holds (`occupancy`), or rows of a trace. Out: a value that never changes; what a pod
takes makes a new one. A node that has not changed is the same object, so whoever calculates something of a node may
keep the result beside it. Not here: which pods there are, and when the node was last heard of.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from deviceplugin.model.allocation import Allocation
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.placement.occupancy import snapshot_for
from deviceplugin.placement.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Spare:
    """Free CPU (thousandths of one) and memory (MiB)."""

    cpu_milli: int
    memory_mib: int

    def covers(self, other: "Spare") -> bool:
        return self.cpu_milli >= other.cpu_milli and self.memory_mib >= other.memory_mib

    def __sub__(self, other: "Spare") -> "Spare":
        return Spare(self.cpu_milli - other.cpu_milli, self.memory_mib - other.memory_mib)


@dataclass(frozen=True, slots=True, eq=False)
class NodeState:
    """`spare` is None where somebody else looks after CPU and memory: kube-scheduler has, before it asks an extender.

    `cordoned` GPUs take no new work by their operator's wish. Without `share_mode` the node gives whole GPUs only.
    """

    name: str
    snapshot: Snapshot
    share_mode: bool = True
    cordoned: frozenset[GpuUuid] = frozenset()
    spare: Spare | None = None


def node_state(
    name: str,
    inventory: Inventory,
    allocations: Iterable[Allocation],
    *,
    share_mode: bool = True,
    cordoned: frozenset[GpuUuid] = frozenset(),
    processes: Mapping[GpuUuid, int] | None = None,
) -> NodeState:
    """The node with everything that its pods hold taken away."""
    snapshot = snapshot_for(inventory, allocations, processes=processes)
    return NodeState(name, snapshot, share_mode=share_mode, cordoned=cordoned)


def without_spare(state: NodeState, taken: Spare) -> NodeState:
    """The same GPUs with less CPU and memory beside them."""
    return state if state.spare is None else replace(state, spare=state.spare - taken)
