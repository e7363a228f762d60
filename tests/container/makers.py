"""Short ways to put words into a region, as a container's processes would."""

import struct
from pathlib import Path

from deviceplugin.container import region

GIB = 1 << 30


def put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def put_slot(
    path: Path,
    index: int,
    *,
    pid: int,
    used: int = 0,
    overhead: int = 0,
    pending: int = 0,
    start_time: int = 1,
    pid_namespace: int = 1,
    device: int = 0,
) -> None:
    """One process's part, and the mark up to which slots are used."""
    at = region.SLOTS_AT + region.SLOT_SIZE * index
    put(path, at, region.SLOT.pack(pid, 0, start_time, pid_namespace, 1))
    put(path, at + region.SLOT.size + region.USE.size * device, region.USE.pack(used, pending, overhead, 0))
    high = struct.unpack("<I", path.read_bytes()[region.HEAD.size : region.HEAD.size + 4])[0]
    put(path, region.HEAD.size, struct.pack("<I", max(high, index + 1)))


def put_counters(path: Path, *, device: int = 0, **words: int) -> None:
    counters = region.Counters(**words)
    values = [getattr(counters, name) for name in region.Counters.__struct_fields__]
    put(path, region.HEADER_SIZE + region.DEVICE.size * device, region.DEVICE.pack(*values))
