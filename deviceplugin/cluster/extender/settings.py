"""Settings of the extender: its policies and its timeouts."""

from dataclasses import dataclass

from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.units import ResourceNames


@dataclass(frozen=True, slots=True)
class ReservationTimeouts:
    """In seconds. `gang`: for a gang that waits at Permit: its longest wait and a margin.

    `cycle`: for pods that kube-scheduler places in one cycle: from the last request for any of them to the first
    Binding; only kube-scheduler's own work lies between. `unconfirmed`: longer than the API server works on one request
    (60 s).
    """

    reservation: float = 60.0
    gang: float = 600.0
    cycle: float = 5.0
    unconfirmed: float = 75.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`one_node`: filter answers the node it chose; else all that fit, and kube-scheduler chooses by score.

    `scheduler`: the schedulerName that the webhook writes into GPU pods; empty: none.
    """

    node_policy: NodePolicy = NodePolicy.BINPACK
    gpu_policy: GpuPolicy = GpuPolicy.BINPACK
    one_node: bool = True
    timeouts: ReservationTimeouts = ReservationTimeouts()
    names: ResourceNames = ResourceNames()
    scheduler: str = ""


DEFAULT_SETTINGS = Settings()
