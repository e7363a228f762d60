"""What ELF files say of themselves, and what the dynamic loader's cache says of where they are.

In: a path, or the bytes of `/etc/ld.so.cache`. Out: `Elf` (word size, machine, SONAME, what it needs, the ABI it was
made for), or the `CacheEntry`s in the loader's own order: which library names lead to which files. A ParseError of one
sentence, whatever the file holds, because vcuda does not install drivers. Of an ELF file only headers, the dynamic
segment and notes are read, so a library of 100 MB costs a millisecond.

Formats of the cache: glibc's new one (`glibc-ld.so.cache1.1`), alone or behind the old one (`ld.so-1.7.0`, until glibc
2.31), which is skipped; little endian, as on every machine with a GPU. ldconfig is never run: the mirror must not
change the node. What a name means for the mirror is not here (`search`).
"""

import enum
import itertools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from deviceplugin.errors import ContainerError, ParseError

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.segments import NoteSegment

_MAGIC = b"\x7fELF"
_MOST_TAGS = 4096
_MOST_SEGMENTS, _MOST_SECTIONS = 512, 4096
_LONGEST_NAME = 255


class Machine(enum.Enum):
    """A node's kind of processor, as `uname -m` names it."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"

    @classmethod
    def here(cls) -> "Machine":
        name = os.uname().machine
        if name not in [each.value for each in cls]:
            raise ContainerError(f"no driver can be mirrored on a {name} machine; use a node with x86_64 or aarch64")
        return cls(name)


_NATIVE = {Machine.X86_64: "EM_X86_64", Machine.AARCH64: "EM_AARCH64"}
_COMPATIBLE = {Machine.X86_64: "EM_386", Machine.AARCH64: "EM_ARM"}


class Elf(msgspec.Struct, frozen=True):
    """`machine` is ELF's own name; `abi` the oldest kernel that the file names in its ABI note, None without one."""

    bits: int
    machine: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    abi: tuple[int, int, int] | None = None

    def bits_on(self, machine: Machine) -> int:
        """64 or 32 for a file that this machine can load, else 0."""
        if self.bits == 64 and self.machine == _NATIVE[machine]:
            return 64
        return 32 if self.bits == 32 and self.machine == _COMPATIBLE[machine] else 0


def is_elf(path: Path) -> bool:
    """Whether it claims to be one; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_elf(path: Path) -> Elf:
    from elftools.elf.elffile import ELFFile  # 2.5 MiB, for agents that build a mirror

    try:
        with path.open("rb") as file:
            return _facts(ELFFile(file))
    except OSError as error:
        raise ParseError(f"{path} cannot be read: {error.strerror}; look at the driver's installation") from None
    except Exception as error:  # pyelftools raises almost anything on a damaged file
        raise ParseError(
            f"{path} is damaged ({type(error).__name__} where its ELF headers are read); install the driver again"
        ) from None


def _facts(elf: "ELFFile") -> Elf:
    """An ELF header can claim four thousand million segments that all lie in the same place, hence the bounds."""
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.segments import NoteSegment

    if elf.num_segments() > _MOST_SEGMENTS or elf.num_sections() > _MOST_SECTIONS:
        raise ValueError("more headers than any library has")
    names: dict[str, list[str]] = {"soname": [], "needed": []}
    abi, has_dynamic = None, False
    for segment in elf.iter_segments():
        if isinstance(segment, DynamicSegment):
            if has_dynamic:
                raise ValueError("two dynamic segments")
            has_dynamic = True
            for tag in itertools.islice(segment.iter_tags(), _MOST_TAGS):
                for kind in names.keys() & vars(tag).keys():
                    names[kind].append(str(getattr(tag, kind)))
        elif isinstance(segment, NoteSegment):
            abi = abi or _abi(segment)
    soname = _file_name(names["soname"][0]) if names["soname"] else ""
    return Elf(int(elf.elfclass), str(elf["e_machine"]), soname, tuple(names["needed"]), abi)


def _file_name(text: str) -> str:
    """A SONAME becomes a file's name, and that may lead nowhere else."""
    if "/" in text or "\0" in text or text in (".", "..") or len(os.fsencode(text)) > _LONGEST_NAME:
        raise ValueError(text)
    return text


def _abi(segment: "NoteSegment") -> tuple[int, int, int] | None:
    for note in itertools.islice(segment.iter_notes(), _MOST_TAGS):
        if note["n_type"] == "NT_GNU_ABI_TAG" and note["n_name"] == "GNU":
            desc = note["n_desc"]
            return int(desc["abi_major"]), int(desc["abi_minor"]), int(desc["abi_tiny"])
    return None


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


class CacheEntry(msgspec.Struct, frozen=True):
    """One name; `bits` is 64, 32, or 0 for an ABI that no GPU program has (x32 and the like)."""

    name: str
    path: str
    bits: int


def parse_cache(data: bytes, *, source: Path) -> tuple[CacheEntry, ...]:
    """All entries; `source` is named if they cannot be had."""
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
