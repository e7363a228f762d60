"""The limits file of our library: `limits`, versioned, one record for each GPU, with a checksum.

In: what a grant may use. Out: the bytes that library/abi/limits.h describes, and back. The header of the C side is the
contract: a test compiles it and compares every offset. The file is replaced by rename and never changed in place, so
`generation` is how a reader tells one version from the next. Not here: gpu-manager's `vcuda.config`
(`gpu_manager.client_files`).
"""

import struct
from dataclasses import dataclass, replace

from deviceplugin.errors import ParseError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.units import CORES_PER_GPU

FILE_NAME = "limits"
VERSION = 1
MAX_DEVICES = 16
MAGIC = b"VCUDALIM"

HEADER = struct.Struct("<8sIIIIQ32sQ56x")  # magic version size device_count flags generation grant checksum
DEVICE = struct.Struct("<48s32sQII32x")  # uuid bus_id memory_bytes cores soft_cores
CHECKSUM_AT = 64
_LAST_GENERATION = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """One GPU: bytes, 0 for no limit; percent of its time, from 100 on no limit; `soft_cores` 0: `cores` is hard."""

    uuid: GpuUuid
    bus_id: str
    memory_bytes: int
    cores: int
    soft_cores: int = 0


@dataclass(frozen=True, slots=True)
class GrantLimits:
    """Everything that one grant may use; `generation` counts the changes of it."""

    grant: GrantId
    devices: tuple[DeviceLimits, ...]
    generation: int = 1


def encode(limits: GrantLimits) -> bytes:
    """The whole file."""
    if len(limits.devices) > MAX_DEVICES:
        raise ValueError(f"{len(limits.devices)} GPUs in one limits file; {MAX_DEVICES} at most")
    size = HEADER.size + DEVICE.size * len(limits.devices)
    body = b"".join(_device(each) for each in limits.devices)
    grant = _text(limits.grant, 32)

    def header(checksum: int) -> bytes:
        return HEADER.pack(MAGIC, VERSION, size, len(limits.devices), 0, limits.generation, grant, checksum)

    return header(checksum_of(header(0) + body)) + body


def decode(data: bytes) -> GrantLimits:
    """What the bytes say; ParseError with the reason where our library would refuse them too."""
    if len(data) < HEADER.size:
        raise ParseError(f"{FILE_NAME} has {len(data)} bytes, fewer than its header of {HEADER.size}")
    magic, version, size, count, flags, generation, grant, checksum = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ParseError(f"{FILE_NAME} begins with {magic!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise ParseError(f"{FILE_NAME} has version {version}; known is {VERSION}")
    if size != len(data) or not 0 < count <= MAX_DEVICES or size != HEADER.size + DEVICE.size * count:
        raise ParseError(f"{FILE_NAME} has {len(data)} bytes and says {size} with {count} GPUs")
    if flags:
        raise ParseError(f"{FILE_NAME} has unknown flags {flags:#x}")
    if checksum != checksum_of(data[:CHECKSUM_AT] + bytes(8) + data[CHECKSUM_AT + 8 :]):
        raise ParseError(f"{FILE_NAME} is torn: its checksum is wrong")
    try:
        devices = tuple(
            DeviceLimits(GpuUuid(_string(uuid)), _string(bus_id), memory, cores, soft)
            for uuid, bus_id, memory, cores, soft in DEVICE.iter_unpack(data[HEADER.size :])
        )
        found = GrantLimits(GrantId(_string(grant)), devices, generation)
    except UnicodeDecodeError:
        raise ParseError(f"{FILE_NAME} has a name that is no text") from None
    for position, device in enumerate(devices):
        if not device.uuid or not device.cores:
            raise ParseError(f"{FILE_NAME} has no UUID or no cores for GPU {position}")
    return found


def successor(wanted: GrantLimits, before: bytes | None) -> bytes:
    """The file to put in place of `before`: the same bytes where nothing changed, else one generation on."""
    try:
        old = decode(before) if before is not None else None
    except ParseError:
        old = None
    if old is None or before is None:
        return encode(wanted)
    if old == replace(wanted, generation=old.generation):
        return before
    return encode(replace(wanted, generation=(old.generation + 1) & _LAST_GENERATION))


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


def _string(field: bytes) -> str:
    text, end, _ = field.partition(b"\0")
    if not end:
        raise ParseError(f"{FILE_NAME} has a name without an end")
    return text.decode()
