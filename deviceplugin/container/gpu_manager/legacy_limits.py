"""The limits file of the lineage: `vcuda.config`, 8,240 bytes that vcuda-controller's client reads as one C struct.

In: what a container was granted. Out: the bytes. Layout (x86-64, little endian, no magic and no version; see
docs/reference/container.md): a change of any offset breaks every client without a word, so a test holds golden
bytes. Not here: the versioned per-device file of our own library.
"""

import re
import struct
from dataclasses import dataclass

from deviceplugin.model.units import CORES_PER_GPU

FILE_NAME = "vcuda.config"
SIZE = 8240

#  0 pod_uid[48] | 48 limit | 52 padding[4044] | 4096 container_name[4096] | 8192 bus_id[16] | 8208 gpu_memory
#  8216 utilization | 8220 hard_limit | 8224 driver major, minor | 8232 enable | 8236 padding[4]
_LAYOUT = struct.Struct("<48si4044x4096s16sQiiiii4x")


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """What the client enforces. Memory in bytes; `soft_cores` above 0: may borrow idle time up to that percentage."""

    pod_uid: str
    container: str
    cores: int
    memory_bytes: int
    soft_cores: int = 0
    driver_version: str = ""

    @property
    def enforced(self) -> bool:
        """Whole GPUs run on the untouched driver."""
        return self.cores < CORES_PER_GPU


def encode(limits: ContainerLimits) -> bytes:
    """The file's bytes; names longer than their field are cut, as the reader expects a NUL at the end."""
    major, minor = _driver_numbers(limits.driver_version)
    return _LAYOUT.pack(
        _text(limits.pod_uid, 48),
        min(limits.soft_cores, CORES_PER_GPU),
        _text(limits.container, 4096),
        b"",
        limits.memory_bytes,
        limits.cores,
        0 if limits.soft_cores else 1,
        major,
        minor,
        1 if limits.enforced else 0,
    )


def decode(data: bytes) -> ContainerLimits:
    """The reverse of `encode`, for checks and tests; ValueError when the size is wrong."""
    if len(data) != SIZE:
        raise ValueError(f"{FILE_NAME} has {len(data)} bytes, not {SIZE}")
    uid, soft, name, _, memory, cores, _, major, minor, _ = _LAYOUT.unpack(data)
    return ContainerLimits(
        pod_uid=uid.rstrip(b"\0").decode(),
        container=name.rstrip(b"\0").decode(),
        cores=cores,
        memory_bytes=memory,
        soft_cores=soft,
        driver_version=f"{major}.{minor}" if major else "",
    )


def _text(value: str, size: int) -> bytes:
    return value.encode()[: size - 1]


def _driver_numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
