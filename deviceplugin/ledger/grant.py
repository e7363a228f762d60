"""One entry of the ledger: a grant is created at Allocate and gets its id before its owner is certain.

The id names the directory that the container mounts, never a pod: at Allocate the owner may still be a guess, and what
kubelet has recorded cannot change afterwards. The owner can change: PreStartContainer proves it.
"""

import enum
from dataclasses import dataclass
from typing import NewType

from deviceplugin.model.allocation import Allocation, GpuShare
from deviceplugin.model.pod_limits import NO_LIMITS, PodLimits
from deviceplugin.model.units import Resource

GrantId = NewType("GrantId", str)


class Source(enum.Enum):
    """What identified the container of the Allocate."""

    PODS = "pods"  # kubelet's GET /pods
    PODRESOURCES = "podresources"  # kubelet's PodResources socket
    APISERVER = "apiserver"  # pending pods of this node in predicate-time order: a guess
    CHECKPOINT = "checkpoint"  # rebuilt from kubelet's checkpoint
    CLAIM = "claim"  # a ResourceClaim: the owner is the claim in the pod's place, and one of its requests


@dataclass(frozen=True, slots=True)
class Grant:
    """Slots that are held. `answered`: resources whose Allocate was answered. `created`: Unix time in seconds.

    `limits` are those of the pod's annotations, stored here because PreStartContainer must not need the API server.
    """

    id: GrantId
    allocation: Allocation
    answered: frozenset[Resource]
    source: Source
    proved: bool
    created: float
    limits: PodLimits = NO_LIMITS

    @property
    def is_of_gpu_manager(self) -> bool:
        """Taken over from gpu-manager, which named directories after pods (`rebuild`)."""
        return self.id.partition(".")[0] == self.allocation.owner.pod.uid

    @property
    def is_share(self) -> bool:
        """Whole GPUs run on the untouched driver and share nothing."""
        return self.allocation.request.is_share

    def memory_limit(self, share: GpuShare) -> int:
        """Bytes of one of its GPUs that the container may use."""
        return (self.limits if self.is_share else NO_LIMITS).memory_bytes(share.blocks)
