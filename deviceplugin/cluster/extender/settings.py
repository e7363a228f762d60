"""How the extender chooses, and how long it waits: as the scheduler's settings say."""

from dataclasses import dataclass

from deviceplugin.cluster.extender.cache.reservations import DEFAULT_PATIENCE, Patience
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.units import ResourceNames


@dataclass(frozen=True, slots=True)
class Settings:
    """`one_node`: filter answers the node it chose; else all that fit, and kube-scheduler chooses by our scores.

    `scheduler`: what the webhook writes into `schedulerName` of pods for GPUs; empty: nothing.
    """

    node_policy: NodePolicy = NodePolicy.BINPACK
    gpu_policy: GpuPolicy = GpuPolicy.BINPACK
    one_node: bool = True
    patience: Patience = DEFAULT_PATIENCE
    names: ResourceNames = ResourceNames()
    scheduler: str = ""


DEFAULT_SETTINGS = Settings()
