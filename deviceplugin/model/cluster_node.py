"""A node as the scheduler needs it: what its agent and its operator say about it.

In: `kube.cluster_nodes` decodes it. A heartbeat of kubelet changes nothing here, so the value stays equal. `inventory`
is the text of the annotation; `parse_inventory` parses it when it changes.
"""

from dataclasses import dataclass

from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.units import Compute


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """`cores` and `blocks` are what kubelet offers: 0 while the agent is down. `cordon` has UUIDs and minors.

    `close_nvml`: the agent shall let go of the driver; every GPU is cordoned as long as this is asked.
    `allocatable` is the CPU and memory that kubelet offers, None if unknown. `discouraged`: it has a taint with
    PreferNoSchedule.
    """

    name: str
    uid: str
    inventory: str = ""
    cordon: frozenset[str] = frozenset()
    close_nvml: bool = False
    unschedulable: bool = False
    ready: bool = False
    deleting: bool = False
    cores: int = 0
    blocks: int = 0
    allocatable: Compute | None = None
    discouraged: bool = False

    def cordoned(self, inventory: Inventory) -> frozenset[GpuUuid]:
        """The GPUs that get no new pods; `unmatched` has the words that mean none of them."""
        if self.close_nvml:
            return frozenset(gpu.uuid for gpu in inventory.gpus)
        if not self.cordon:
            return frozenset()
        return frozenset(gpu.uuid for gpu in inventory.gpus if gpu.uuid in self.cordon or str(gpu.minor) in self.cordon)

    def unmatched(self, inventory: Inventory) -> frozenset[str]:
        """The words of the cordon that name no GPU of the node."""
        return self.cordon - {word for gpu in inventory.gpus for word in (gpu.uuid, str(gpu.minor))}


def cordon_words(*texts: str) -> frozenset[str]:
    """The union of several lists: one list cannot uncordon a GPU of another list."""
    return frozenset(word.strip() for text in texts for word in text.split(",") if word.strip())
