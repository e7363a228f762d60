"""Which container has which part of which GPU, and the bind mounts with which it gets them.

Placement decides allocations, the ledger keeps them, annotations carry them. A pod is identified by its UID; namespace
and name are for users. A container is named inside its pod. Init containers run one after the other before the app
containers, so both use the same capacity. A sidecar (an init container with restartPolicy Always) starts among them and
stays. `placement.snapshot` has the arithmetic.

`Mount` is common to the Allocate answer and a CDI file. Agent and webhook both write the library directory into the
environment of a container. No volume of a pod may cover the two mounts. A share's container also gets vcuda's libraries
at `COMPAT`, unless the pod has a volume there: NVIDIA's images keep a newer libcuda there for older drivers, and put it
before every other by LD_LIBRARY_PATH or by the linker's cache.
"""

import enum
import posixpath
import re
from typing import NewType

import msgspec

from deviceplugin.errors import RequestError
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


class PodRef(msgspec.Struct, frozen=True):
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


class ContainerRef(msgspec.Struct, frozen=True):
    """A container of a pod."""

    pod: PodRef
    name: str

    @property
    def key(self) -> OwnerKey:
        return (self.pod.uid, self.name)

    def __str__(self) -> str:
        return f"{self.pod}/{self.name}"


class GpuShare(msgspec.Struct, frozen=True):
    """A part of one GPU: cores of 100, blocks of 256 MiB."""

    uuid: GpuUuid
    cores: int
    blocks: int


class Allocation(msgspec.Struct, frozen=True):
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
        return frozenset([share.uuid for share in self.shares])


DRIVER_MOUNT = "/usr/local/nvidia"
GRANT_MOUNT = "/etc/vcuda"
NODE_STATE = "/etc/gpu-manager"  # on the node, by default: journal, limits and library of all containers
COMPAT = "/usr/local/cuda/compat"  # of CUDA's images: forward compatibility
LIBRARIES = f"{DRIVER_MOUNT}/lib64"
MOST_LIBRARY_PATH = 4096
"""Bytes of a container's own LD_LIBRARY_PATH: it is copied into kubelet's checkpoint or a CDI file that all parse."""

_MAY_BE_OVER = frozenset(("", "/", ".", "u"))  # second characters of a path that may be at, above or below `COMPAT`
LIBRARIES_32 = f"{DRIVER_MOUNT}/lib"  # for containers with gpu-manager's `compat32=true`


class Mount(msgspec.Struct, frozen=True):
    """`host` is a path on the node, `inside` one in the container."""

    host: str
    inside: str
    read_only: bool = True


def libraries_of(compat32: str) -> str:
    """The directory of a container's libraries; `compat32` is its variable, in any case as in gpu-manager."""
    return LIBRARIES_32 if compat32.lower() == "true" else LIBRARIES


def require_short_library_path(own: str, what: str) -> None:
    """Raises RequestError; `what` names the container."""
    if len(own.encode(errors="surrogatepass")) > MOST_LIBRARY_PATH:
        raise RequestError(
            f"{what}: its LD_LIBRARY_PATH has more than {MOST_LIBRARY_PATH:,} bytes; shorten it, for example by "
            "links in one directory of the image"
        )


def covers_compat(path: str) -> bool:
    """Whether a volume at this path is at, above or below `COMPAT`, so that another mount there could fail.

    `/usr/local/cuda` may be a link to the directory of a version. With an empty volume at any
    `/usr/local/cuda-...` a pod turns the mount off.
    """
    if path[:1] == "/" and path[1:2] not in _MAY_BE_OVER and ".." not in path:
        return False  # as most paths are
    normal = re.sub(r"^/usr/local/cuda-[^/]+", "/usr/local/cuda", posixpath.normpath(f"/{path.lstrip('/')}"))
    return f"{COMPAT}/".startswith(f"{normal.rstrip('/')}/") or normal.startswith(f"{COMPAT}/")
