"""gpu-manager's client as a reader of its files."""

import struct

from deviceplugin.gpu_manager.client_files import LIMITS_LAYOUT, ContainerLimits


def read_limits(data: bytes) -> ContainerLimits:
    """`vcuda.config`."""
    uid, soft, name, _, memory, cores, _, major, minor, _ = LIMITS_LAYOUT.unpack(data)
    return ContainerLimits(
        pod_uid=uid.rstrip(b"\0").decode(),
        container=name.rstrip(b"\0").decode(),
        cores=cores,
        memory_bytes=memory,
        soft_cores=soft,
        driver_version=f"{major}.{minor}" if major else "",
    )


def read_pids(data: bytes) -> tuple[int, ...]:
    """`pids.config`: a torn entry at the end is left out."""
    return struct.unpack_from(f"={len(data) // 4}i", data)
