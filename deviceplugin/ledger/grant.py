"""One entry of the ledger: a grant is made at Allocate and named before its owner is certain.

The grant's id names the directory that the container mounts, never a pod: at Allocate identity may still be a guess,
and what kubelet has recorded cannot be changed afterwards. The owner can: PreStartContainer proves it (design 3.2).
"""

import enum
import secrets
from dataclasses import dataclass
from typing import NewType

from deviceplugin.model.allocation import Allocation
from deviceplugin.model.units import Resource

GrantId = NewType("GrantId", str)


class Source(enum.Enum):
    """What said for whom the Allocate was."""

    PODS = "pods"  # kubelet's GET /pods
    PODRESOURCES = "podresources"  # kubelet's PodResources socket
    APISERVER = "apiserver"  # pending pods of this node in predicate-time order: a guess
    CHECKPOINT = "checkpoint"  # rebuilt from kubelet's checkpoint


@dataclass(frozen=True, slots=True)
class Grant:
    """Slots that are held. `answered`: resources whose Allocate was answered. `created`: Unix time in seconds.

    `soft_cores` above 0 is the pod's `vcuda-core-limit`: it may borrow idle time up to that percentage. Kept here,
    because PreStartContainer must not need the API server.
    """

    id: GrantId
    allocation: Allocation
    answered: frozenset[Resource]
    source: Source
    proved: bool
    created: float
    soft_cores: int = 0


def new_grant_id() -> GrantId:
    """Names the directory that the container mounts: short, unguessable, and never used twice."""
    return GrantId(f"g-{secrets.token_hex(8)}")
