"""What is known of the cluster's GPUs when a pod is reviewed.

In: inventories as the nodes carry them. Out: a frozen value. It is empty until a node has reported its GPUs; then no
share of a GPU's memory is calculated, and no request is called too large.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.units import BLOCK_MIB, MIB


@dataclass(frozen=True, slots=True)
class GpuKind:
    """GPUs of one model with the same memory; `nodes` is how many nodes report it."""

    model: str
    mib: int
    nodes: int = 1
    uuids: frozenset[GpuUuid] = frozenset()

    @property
    def blocks(self) -> int:
        return self.mib // BLOCK_MIB

    def is_admitted_by(self, wanted: GpuFilter) -> bool:
        """Looks through the pod's list, which is short, and not through the GPUs of the cluster."""
        if wanted.uuids:
            has_one = not self.uuids.isdisjoint(wanted.uuids - wanted.not_uuids)
        else:
            has_one = not wanted.not_uuids or not self.uuids <= wanted.not_uuids
        return has_one and wanted.admits_model(self.model)


@dataclass(frozen=True, slots=True)
class KnownGpus:
    """What the nodes' inventories say together; `most` is the largest number of GPUs of one node.

    `smallest_blocks` decides how much memory pods get in the whole cluster, and a node's inventory is only as
    trustworthy as the node. So it is not the least of all values: see `_without_outliers`.
    """

    smallest_blocks: int = 0
    most: int = 0
    kinds: tuple[GpuKind, ...] = ()

    @classmethod
    def of(cls, inventories: Iterable[Inventory]) -> "KnownGpus":
        """Unhealthy GPUs count: they may come back, and a pod can wait for them. GPUs without a block do not."""
        counts, smallest = [0], list[int]()
        nodes, uuids = Counter[tuple[str, int]](), defaultdict[tuple[str, int], set[GpuUuid]](set)
        for inventory in inventories:
            here = dict[tuple[str, int], list[GpuUuid]]()
            for gpu in inventory.gpus:  # 40,000 in a large cluster, on the event loop
                here.setdefault((gpu.model, gpu.memory_bytes // MIB), []).append(gpu.uuid)
            counts.append(len(inventory.gpus))
            smallest += _smallest(mib // BLOCK_MIB for _, mib in here)
            for kind, found in here.items():
                nodes[kind] += 1
                uuids[kind].update(found)
        kinds = tuple(GpuKind(*kind, count, frozenset(uuids[kind])) for kind, count in sorted(nodes.items()))
        return cls(_without_outliers(smallest), max(counts), kinds)

    def admitted_by(self, wanted: GpuFilter) -> "KnownGpus":
        """The same with only those kinds that a pod accepts."""
        if wanted == ANY_GPU:
            return self
        return replace(self, kinds=tuple(each for each in self.kinds if each.is_admitted_by(wanted)))

    @property
    def largest_blocks(self) -> int:
        return max((each.blocks for each in self.kinds), default=0)


def _smallest(blocks: Iterable[int]) -> list[int]:
    """None or one."""
    return sorted(filter(None, blocks))[:1]


def _without_outliers(smallest: list[int]) -> int:
    """The smallest GPU of all nodes but a tenth of them (at least one), those with the smallest GPUs.

    Of two nodes nobody can say which one is wrong, so both count.
    """
    if not smallest:
        return 0
    ignored = min(max(1, len(smallest) // 10), (len(smallest) - 1) // 2)
    return sorted(smallest)[ignored]
