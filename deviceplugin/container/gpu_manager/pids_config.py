"""`pids.config` of the lineage's client: the processes of its container as the host numbers them.

In: PIDs. Out: a bare array of 32-bit integers, native order, nothing before or behind. The reader searches it by
bisection and takes 1,024 at most, so it is sorted and cut.
"""

import struct
from collections.abc import Iterable

FILE_NAME = "pids.config"
MOST = 1024


def encode(pids: Iterable[int]) -> bytes:
    known = sorted(set(pids))[:MOST]
    return struct.pack(f"={len(known)}i", *known)


def decode(data: bytes) -> tuple[int, ...]:
    """As the client reads it: a torn entry at the end is left out."""
    whole = len(data) // 4
    return struct.unpack_from(f"={min(whole, MOST)}i", data)
