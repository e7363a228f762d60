"""The dynamic loader's cache, `/etc/ld.so.cache`: which library names lead to which files.

In: the bytes. Out: the entries in the loader's own order, or a ParseError of one sentence, whatever the bytes are.
Formats: glibc's new one (`glibc-ld.so.cache1.1`), alone or behind the old one (`ld.so-1.7.0`, until glibc 2.31), which
is skipped; little endian, as on every machine with a GPU. ldconfig is never run: the mirror must not
change the node. What a name means for the mirror is not here (`search`).
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.errors import ParseError

_NEW_MAGIC, _OLD_MAGIC = b"glibc-ld.so.cache1.1", b"ld.so-1.7.0"
_NEW_HEADER = struct.Struct("<20sIIB3xIIII")  # magic, entries, bytes of text, byte order, extensions and spare words
_NEW_ENTRY = struct.Struct("<iIIIQ")  # flags, name, path, kernel, processor features; names count from the header
_OLD_HEADER = struct.Struct("<11sxI")
_OLD_ENTRY = struct.Struct("<iII")
_ALIGNMENTS = (8, 4, 16)  # of the new header behind an old cache; which one depends on who wrote it
_BYTE_ORDER, _UNSET, _LITTLE = 3, 0, 2
_LONGEST_TEXT = 4096

# glibc's FLAG_REQUIRED_MASK and the values that matter where there are GPUs.
_ABI_MASK = 0xFF00
_WORD_SIZES = {0x0300: 64, 0x0A00: 64, 0x0000: 32, 0x0900: 32, 0x0B00: 32}


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One name; `bits` is 64, 32, or 0 for an ABI that no GPU program has (x32 and the like)."""

    name: str
    path: str
    bits: int


def parse_cache(data: bytes, *, source: Path) -> tuple[CacheEntry, ...]:
    """All entries; `source` is named where they cannot be had."""
    try:
        return tuple(_entries(data))
    except _DamageError as damage:
        raise ParseError(f"{source} is no cache of the dynamic loader: {damage}; run ldconfig on the node") from None


class _DamageError(Exception):
    """What is wrong, as a phrase."""


def _entries(data: bytes) -> Iterator[CacheEntry]:
    if data.startswith(_NEW_MAGIC):
        return _new_entries(data)
    if not data.startswith(_OLD_MAGIC):
        raise _DamageError("it begins like none")
    _require(data, _OLD_HEADER.size, "its header")
    count = _OLD_HEADER.unpack_from(data)[1]
    end = _OLD_HEADER.size + count * _OLD_ENTRY.size
    _require(data, end, f"{count} entries")
    for alignment in _ALIGNMENTS:
        start = -(-end // alignment) * alignment
        if data.startswith(_NEW_MAGIC, start):
            return _new_entries(data[start:])
    raise _DamageError("it has the old form only")


def _new_entries(data: bytes) -> Iterator[CacheEntry]:
    _require(data, _NEW_HEADER.size, "its header")
    _, count, _, order, *_ = _NEW_HEADER.unpack_from(data)
    if order & _BYTE_ORDER not in (_UNSET, _LITTLE):
        raise _DamageError("it was written for a machine of another byte order")
    end = _NEW_HEADER.size + count * _NEW_ENTRY.size
    _require(data, end, f"{count} entries")
    for flags, name, path, *_ in _NEW_ENTRY.iter_unpack(data[_NEW_HEADER.size : end]):
        yield CacheEntry(_text(data, name), _text(data, path), _WORD_SIZES.get(flags & _ABI_MASK, 0))


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start, start + _LONGEST_TEXT)
    if start >= len(data) or end < 0:
        raise _DamageError(f"the text at byte {start} has no end in it")
    return os.fsdecode(data[start:end])


def _require(data: bytes, size: int, what: str) -> None:
    if len(data) < size:
        raise _DamageError(f"{what} would need {size} bytes and it has {len(data)}")
