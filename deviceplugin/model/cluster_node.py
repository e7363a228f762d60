"""A node as the cluster's side needs it: what its agent and its operator say of it.

In: `kube.cluster_nodes` decodes it. A heartbeat of kubelet changes nothing here, so the value stays equal. `inventory`
is the annotation's text: `parse_inventory` reads it where it has changed.
"""

from dataclasses import dataclass

from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.units import Compute


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """`cores` and `blocks` are what kubelet offers: 0 where its agent is away. `cordon` holds UUIDs and minors.

    `allocatable` is what kubelet offers of CPU and memory, None where that is not known.
    """

    name: str
    uid: str
    inventory: str = ""
    cordon: frozenset[str] = frozenset()
    unschedulable: bool = False
    ready: bool = False
    deleting: bool = False
    cores: int = 0
    blocks: int = 0
    allocatable: Compute | None = None

    def cordoned(self, inventory: Inventory) -> frozenset[GpuUuid]:
        """The GPUs that take no new work; words that name none of the node's GPUs are left out."""
        if not self.cordon:
            return frozenset()
        return frozenset(gpu.uuid for gpu in inventory.gpus if gpu.uuid in self.cordon or str(gpu.minor) in self.cordon)


def cordon_words(*texts: str) -> frozenset[str]:
    """The union of several lists: what one operator has taken out is not put back by another one's list."""
    return frozenset(word.strip() for text in texts for word in text.split(",") if word.strip())
