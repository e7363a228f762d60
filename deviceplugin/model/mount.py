"""Bind mounts of containers, and the paths at which libraries and limits are mounted.

`Mount` is common to the Allocate answer and a CDI file. Agent and webhook both write the library directory into the
environment of a container. No volume of a pod may cover the two mounts. A share's container also gets vcuda's libraries
at `COMPAT`, unless the pod has a volume there: NVIDIA's images keep a newer libcuda there for older drivers, and put it
before every other by LD_LIBRARY_PATH or by the linker's cache.
"""

import posixpath
import re
from dataclasses import dataclass

from deviceplugin.errors import RequestError

DRIVER_MOUNT = "/usr/local/nvidia"
GRANT_MOUNT = "/etc/vcuda"
NODE_STATE = "/etc/gpu-manager"  # on the node, by default: journal, limits and library of all containers
COMPAT = "/usr/local/cuda/compat"  # of CUDA's images: forward compatibility
LIBRARIES = f"{DRIVER_MOUNT}/lib64"
MOST_LIBRARY_PATH = 4096
"""Bytes of a container's own LD_LIBRARY_PATH: it is copied into kubelet's checkpoint or a CDI file that all parse."""

_MAY_BE_OVER = frozenset(("", "/", ".", "u"))  # second characters of a path that may be at, above or below `COMPAT`
LIBRARIES_32 = f"{DRIVER_MOUNT}/lib"  # for containers with gpu-manager's `compat32=true`


@dataclass(frozen=True, slots=True)
class Mount:
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
