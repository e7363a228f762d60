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
    """What all nodes' inventories say together; `most` is the largest number of GPUs of one node."""

    smallest_blocks: int = 0
    largest_blocks: int = 0
    most: int = 0
    models: frozenset[str] = frozenset()

    @classmethod
    def of(cls, inventories: Iterable[Inventory]) -> "KnownGpus":
        """Unhealthy GPUs count: they may come back, and a pod can wait for them."""
        counts, blocks, models = [0], set[int](), set[str]()
        for inventory in inventories:
            counts.append(len(inventory.gpus))
            blocks.update(blocks_in(gpu.memory_bytes) for gpu in inventory.gpus)
            models.update(gpu.model for gpu in inventory.gpus)
        return cls(min(blocks, default=0), max(blocks, default=0), max(counts), frozenset(models))
