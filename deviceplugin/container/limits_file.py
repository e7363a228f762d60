"""The limits file of our library: `limits`, versioned, one record for each GPU, with a checksum.

In: what a grant may use. Out: the bytes that library/abi/limits.h describes. The header of the C side is the
contract: a test compiles it and compares every offset. The file is replaced by rename and never changed in place, so
`generation` is how a reader tells one version from the next. Not here: gpu-manager's `vcuda.config`
(`gpu_manager.client_files`).
"""

import struct

import msgspec

from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.structs import replace

FILE_NAME = "limits"
VERSION = 1
MAX_DEVICES = 16
MAGIC = b"VCUDALIM"

HEADER = struct.Struct("<8sIIIIQ32sQ56x")  # magic version size device_count flags generation grant checksum
DEVICE = struct.Struct("<48s32sQII32x")  # uuid bus_id memory_bytes cores soft_cores
CHECKSUM_AT = 64
_GENERATION = 5  # among the fields of HEADER
_LAST_GENERATION = (1 << 64) - 1


class DeviceLimits(msgspec.Struct, frozen=True):
    """One GPU: bytes, 0 for no limit; percent of its time, from 100 on no limit; `soft_cores` 0: `cores` is hard."""

    uuid: GpuUuid
    bus_id: str
    memory_bytes: int
    cores: int
    soft_cores: int = 0


class GrantLimits(msgspec.Struct, frozen=True):
    """Everything that one grant may use; `generation` counts the changes of it."""

    grant: GrantId
    devices: tuple[DeviceLimits, ...]
    generation: int = 1


def encode(limits: GrantLimits) -> bytes:
    if len(limits.devices) > MAX_DEVICES:
        raise ValueError(f"{len(limits.devices)} GPUs in one limits file; {MAX_DEVICES} at most")
    size = HEADER.size + DEVICE.size * len(limits.devices)
    body = b"".join(_device(each) for each in limits.devices)
    grant = _text(limits.grant, 32)

    def header(checksum: int) -> bytes:
        return HEADER.pack(MAGIC, VERSION, size, len(limits.devices), 0, limits.generation, grant, checksum)

    return header(checksum_of(header(0) + body)) + body


def successor(wanted: GrantLimits, before: bytes | None) -> bytes:
    """The file to put in place of `before`: the same bytes where nothing changed, else one generation on."""
    if before is None or len(before) < HEADER.size or not before.startswith(MAGIC):
        return encode(wanted)
    generation = int(HEADER.unpack_from(before)[_GENERATION])
    same = encode(replace(wanted, generation=generation))
    return before if same == before else encode(replace(wanted, generation=(generation + 1) & _LAST_GENERATION))


def checksum_of(data: bytes) -> int:
    """64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def soft_limit(cores: int, requested: int) -> int:
    """The `soft_cores` of a limit that the pod asks for; 0 where it is not above the hard share."""
    soft = min(requested, CORES_PER_GPU)
    return soft if soft > cores else 0


def _device(limits: DeviceLimits) -> bytes:
    return DEVICE.pack(
        _text(limits.uuid, 48), _text(limits.bus_id, 32), limits.memory_bytes, limits.cores, limits.soft_cores
    )


def _text(value: str, size: int) -> bytes:
    """Cut so that the reader finds a NUL at the end."""
    return value.encode()[: size - 1]
