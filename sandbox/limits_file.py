"""Reads a limits file as the library does, for tests and the demo.

In: the bytes. Out: the limits, or a ParseError with the reason if the library would refuse them too.
"""

from deviceplugin.container.limits_file import (
    CHECKSUM_AT,
    DEVICE,
    FILE_NAME,
    HEADER,
    MAGIC,
    MAX_DEVICES,
    VERSION,
    DeviceLimits,
    GrantLimits,
    checksum_of,
)
from deviceplugin.errors import ParseError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import GpuUuid


def decode(data: bytes) -> GrantLimits:
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


def _string(field: bytes) -> str:
    text, end, _ = field.partition(b"\0")
    if not end:
        raise ParseError(f"{FILE_NAME} has a name without an end")
    return text.decode()
