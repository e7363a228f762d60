"""One entry of the ledger: a grant is created at Allocate and gets its id before its owner is certain.

The id names the directory that the container mounts, never a pod: at Allocate the owner may still be a guess, and what
kubelet has recorded cannot change afterwards. The owner can change: PreStartContainer proves it.
"""

import enum
from dataclasses import dataclass
from typing import NewType

from deviceplugin.model.allocation import Allocation
from deviceplugin.model.units import Resource

GrantId = NewType("GrantId", str)


class Source(enum.Enum):
    """What identified the container of the Allocate."""

    PODS = "pods"  # kubelet's GET /pods
    PODRESOURCES = "podresources"  # kubelet's PodResources socket
    APISERVER = "apiserver"  # pending pods of this node in predicate-time order: a guess
    CHECKPOINT = "checkpoint"  # rebuilt from kubelet's checkpoint


@dataclass(frozen=True, slots=True)
class Grant:
    """Slots that are held. `answered`: resources whose Allocate was answered. `created`: Unix time in seconds.

    `soft_cores` above 0 is the pod's `vcuda-core-limit`: it may use idle time up to that percentage. It is stored here
    because PreStartContainer must not need the API server.
    """

    id: GrantId
    allocation: Allocation
    answered: frozenset[Resource]
    source: Source
    proved: bool
    created: float
    soft_cores: int = 0

    @property
    def is_share(self) -> bool:
        """Whole GPUs run on the untouched driver and share nothing."""
        return self.allocation.request.is_share
