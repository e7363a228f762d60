"""What is known of the cluster's GPUs when a pod is reviewed.

In: inventories as the nodes carry them. Out: a frozen value. It is empty until a node has reported its GPUs; then no
share of a GPU's memory is calculated and no warning is given.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from deviceplugin.model.gpu import Inventory
from deviceplugin.model.units import blocks_in


@dataclass(frozen=True, slots=True)
class KnownGpus:
    """What the nodes' inventories say together; `most` is the largest number of GPUs of one node.

    `smallest_blocks` decides how much memory pods get in the whole cluster, and a node's inventory is only as
    trustworthy as the node. So it is not the least of all values: see `_without_outliers`.
    """

    smallest_blocks: int = 0
    largest_blocks: int = 0
    most: int = 0
    models: frozenset[str] = frozenset()

    @classmethod
    def of(cls, inventories: Iterable[Inventory]) -> "KnownGpus":
        """Unhealthy GPUs count: they may come back, and a pod can wait for them. GPUs without a block do not."""
        counts, smallest, largest, models = [0], list[int](), [0], set[str]()
        for inventory in inventories:
            blocks = [found for gpu in inventory.gpus if (found := blocks_in(gpu.memory_bytes))]
            counts.append(len(inventory.gpus))
            models.update(gpu.model for gpu in inventory.gpus)
            if blocks:
                smallest.append(min(blocks))
                largest.append(max(blocks))
        return cls(_without_outliers(smallest), max(largest), max(counts), frozenset(models))


def _without_outliers(smallest: list[int]) -> int:
    """The smallest GPU of all nodes but a tenth of them (at least one), those with the smallest GPUs.

    Of two nodes nobody can say which one is wrong, so both count.
    """
    if not smallest:
        return 0
    ignored = min(max(1, len(smallest) // 10), (len(smallest) - 1) // 2)
    return sorted(smallest)[ignored]
