"""Settings of the extender: its policies and its timeouts."""

from dataclasses import dataclass

from deviceplugin.cluster.extender.cache.reservations import DEFAULT_TIMEOUTS, ReservationTimeouts
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.units import ResourceNames


@dataclass(frozen=True, slots=True)
class Settings:
    """`one_node`: filter answers the node it chose; else all that fit, and kube-scheduler chooses by score.

    `scheduler`: the schedulerName that the webhook writes into GPU pods; empty: none.
    """

    node_policy: NodePolicy = NodePolicy.BINPACK
    gpu_policy: GpuPolicy = GpuPolicy.BINPACK
    one_node: bool = True
    timeouts: ReservationTimeouts = DEFAULT_TIMEOUTS
    names: ResourceNames = ResourceNames()
    scheduler: str = ""


DEFAULT_SETTINGS = Settings()
