"""Bind mounts of containers, and the paths at which libraries and limits are mounted.

`Mount` is common to the Allocate answer and a CDI file. Agent and webhook both write the library directory into the
environment of a container. No volume of a pod may cover the two mounts.
"""

from dataclasses import dataclass

DRIVER_MOUNT = "/usr/local/nvidia"
GRANT_MOUNT = "/etc/vcuda"


@dataclass(frozen=True, slots=True)
class Mount:
    """`host` is a path on the node, `inside` one in the container."""

    host: str
    inside: str
    read_only: bool = True


def library_directory(*, compat32: bool) -> str:
    """The path inside a container; gpu-manager's `compat32=true` selects the 32-bit libraries."""
    return f"{DRIVER_MOUNT}/{'lib' if compat32 else 'lib64'}"
