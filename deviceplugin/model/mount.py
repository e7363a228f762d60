"""A bind mount of a container, and where libraries and limits are mounted in every one.

`Mount` is the value that the Allocate answer and a CDI file have in common; the library directory is what the agent and
the webhook both write into a container's environment, and the two mounts are what no volume of a pod may cover.
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
    """Inside a container; the lineage's `compat32=true` selects the 32-bit libraries."""
    return f"{DRIVER_MOUNT}/{'lib' if compat32 else 'lib64'}"
