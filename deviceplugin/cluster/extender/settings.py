"""Settings of the extender: its policies, and how long it reserves."""

from dataclasses import dataclass

from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.units import ResourceNames


@dataclass(frozen=True, slots=True)
class Settings:
    """`one_node`: filter answers the node it chose; else all that fit, and kube-scheduler chooses by score.

    `scheduler`: the schedulerName that the webhook writes into GPU pods; empty: none. Times are in seconds.
    `gang_reservation_time`: for a gang that waits at Permit: its longest wait and a margin.
    """

    node_policy: NodePolicy = NodePolicy.FRAGMENTATION
    gpu_policy: GpuPolicy = GpuPolicy.BINPACK
    one_node: bool = True
    reservation_time: float = 60.0
    gang_reservation_time: float = 600.0
    names: ResourceNames = ResourceNames()
    scheduler: str = ""


DEFAULT_SETTINGS = Settings()
