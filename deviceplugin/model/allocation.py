"""Which container has which part of which GPU. Placement decides it, the ledger keeps it, annotations carry it.

A pod is identified by its UID; namespace and name are for users. A container is named inside its pod. Init containers
run one after the other before the app containers, so both use the same capacity. A sidecar (an init container with
restartPolicy Always) starts among them and stays. `placement.occupancy` has the arithmetic.
"""

import enum
from dataclasses import dataclass
from typing import NewType

from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.request import Request

PodUid = NewType("PodUid", str)
OwnerKey = tuple[PodUid, str]
"""A container by the UID of its pod and its name."""


class ContainerRole(enum.Enum):
    """When the container runs in the life of its pod; UNKNOWN while the pod has not been seen: possibly always."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod; only `uid` identifies it, because the next pod of a StatefulSet has the same name."""

    uid: PodUid
    namespace: str
    name: str

    @property
    def is_only_named(self) -> bool:
        """The name stands in for the UID, while nobody shows the UID of a pod that kubelet admits."""
        return self.uid == str(self)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """A container of a pod."""

    pod: PodRef
    name: str

    @property
    def key(self) -> OwnerKey:
        return (self.pod.uid, self.name)

    def __str__(self) -> str:
        return f"{self.pod}/{self.name}"


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A part of one GPU: cores of 100, blocks of 256 MiB."""

    uuid: GpuUuid
    cores: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one container has; `shares` has one entry for each GPU, and whole GPUs have all their blocks.

    `index` is the container's place among the init containers, sidecars included, or among the app containers.
    """

    owner: ContainerRef
    role: ContainerRole
    request: Request
    shares: tuple[GpuShare, ...]
    index: int = 0

    @property
    def uuids(self) -> frozenset[GpuUuid]:
        return frozenset(share.uuid for share in self.shares)
