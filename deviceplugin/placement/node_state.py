"""One node as the choice among nodes sees it: its GPUs with what is free, and what else tasks need of it.

In: an inventory and what every pod holds (`occupancy`), or rows of a trace. Out: a value that never changes; what a pod
takes makes a new one. A node that has not changed is the same object, so whoever calculates something of a node may
keep the result beside it, as the gate does with `open_gpus`. Not here: which pods there are, and when the node was
last heard of.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from deviceplugin.model.allocation import Allocation
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.placement.candidates import broken
from deviceplugin.placement.occupancy import snapshot_for
from deviceplugin.placement.snapshot import GpuView, Snapshot
from deviceplugin.placement.summary import Summary, summaries_by_numa, summarize


@dataclass(frozen=True, slots=True)
class Spare:
    """Free CPU (thousandths of one) and memory (MiB)."""

    cpu_milli: int
    memory_mib: int

    def covers(self, other: "Spare") -> bool:
        return self.cpu_milli >= other.cpu_milli and self.memory_mib >= other.memory_mib

    def __sub__(self, other: "Spare") -> "Spare":
        return Spare(self.cpu_milli - other.cpu_milli, self.memory_mib - other.memory_mib)


@dataclass(frozen=True, slots=True)
class OpenGpus:
    """Those GPUs of a node that work may land on, with what the gate asks of them again and again."""

    views: tuple[GpuView, ...]
    uuids: frozenset[GpuUuid]
    models: tuple[str, ...]
    summary: Summary


@dataclass(frozen=True, slots=True, eq=False)
class NodeState:
    """`spare` is None where nothing is known of CPU and memory.

    `cordoned` GPUs take no new work by their operator's wish. Without `share_mode` the node gives whole GPUs only.
    """

    name: str
    snapshot: Snapshot
    share_mode: bool = True
    cordoned: frozenset[GpuUuid] = frozenset()
    spare: Spare | None = None
    _open: OpenGpus | None = field(default=None, init=False, repr=False)
    _numa: tuple[Summary, ...] | None = field(default=None, init=False, repr=False)

    @property
    def open_gpus(self) -> OpenGpus:
        """Neither ill nor cordoned; calculated when it is first asked for."""
        if self._open is None:
            views = tuple(view for view in self.snapshot.gpus if self._is_open(view))
            uuids = frozenset(view.gpu.uuid for view in views)
            models = tuple(sorted({view.gpu.model for view in views}))
            object.__setattr__(self, "_open", OpenGpus(views, uuids, models, summarize(views)))
            assert self._open is not None
        return self._open

    @property
    def numa_nodes(self) -> tuple[Summary, ...]:
        """Of the open GPUs, one summary for each NUMA node."""
        if self._numa is None:
            object.__setattr__(self, "_numa", summaries_by_numa(self.open_gpus.views))
            assert self._numa is not None
        return self._numa

    def with_spare(self, spare: Spare | None) -> "NodeState":
        """The same GPUs, with what was calculated of them; the same object where nothing is different."""
        if self.spare == spare:
            return self
        changed = replace(self, spare=spare)
        object.__setattr__(changed, "_open", self._open)
        object.__setattr__(changed, "_numa", self._numa)
        return changed

    def _is_open(self, view: GpuView) -> bool:
        return view.gpu.uuid not in self.cordoned and broken(view) is None


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
    return state if state.spare is None else state.with_spare(state.spare - taken)
