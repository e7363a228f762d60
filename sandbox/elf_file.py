"""Small ELF shared objects, written byte by byte: for word sizes and machines for which there is no compiler here.

In: the names and needs of the object. Out: its bytes, with which ldconfig, readelf and pyelftools agree; there is no
code in it. Facts kept: program headers and a dynamic segment are enough, sections are not needed.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_X86_64, _AARCH64, _I386, _ARM = 62, 183, 3, 40
MACHINES = {("x86_64", 64): _X86_64, ("x86_64", 32): _I386, ("aarch64", 64): _AARCH64, ("aarch64", 32): _ARM}
_ET_DYN, _PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _READ = 3, 1, 2, 4, 4
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 1, 5, 6, 10, 11, 14
_NT_GNU_ABI_TAG, _LINUX = 1, 0


@dataclass(frozen=True, slots=True)
class _Layout:
    """The structures of one word size."""

    file_header: str
    program_header: str
    dynamic: str
    symbol_size: int

    def segment(self, kind: int, offset: int, size: int) -> bytes:
        if self.symbol_size == 24:
            return struct.pack(self.program_header, kind, _READ, offset, offset, offset, size, size, 8)
        return struct.pack(self.program_header, kind, offset, offset, offset, size, size, _READ, 4)


_LAYOUTS = {
    64: _Layout("<HHIQQQIHHHHHH", "<IIQQQQQQ", "<qQ", 24),
    32: _Layout("<HHIIIIIHHHHHH", "<IIIIIIII", "<iI", 16),
}


def elf_object(
    soname: str = "",
    *,
    needed: Sequence[str] = (),
    bits: int = 64,
    machine: str = "x86_64",
    abi: tuple[int, int, int] | None = None,
    content: bytes = b"",
) -> bytes:
    """`content` is appended, so that two objects that say the same can differ."""
    layout = _LAYOUTS[bits]
    head = 16 + struct.calcsize(layout.file_header)
    segments = 3 if abi else 2
    start = head + segments * struct.calcsize(layout.program_header)
    note = struct.pack("<III4sIIII", 4, 16, _NT_GNU_ABI_TAG, b"GNU\0", _LINUX, *abi) if abi else b""
    strings, offsets = _strings((soname, *needed))
    symbols_at = start + len(note)
    strings_at = symbols_at + layout.symbol_size
    dynamic_at = -(-(strings_at + len(strings)) // 8) * 8
    tags = [(_DT_NEEDED, offset) for offset in offsets[1:]]
    tags += [(_DT_SONAME, offsets[0])] if soname else []
    tags += [(_DT_STRTAB, strings_at), (_DT_SYMTAB, symbols_at), (_DT_STRSZ, len(strings))]
    tags += [(_DT_SYMENT, layout.symbol_size), (0, 0)]
    dynamic = b"".join(struct.pack(layout.dynamic, tag, value) for tag, value in tags)
    size = dynamic_at + len(dynamic)
    headers = [layout.segment(_PT_LOAD, 0, size), layout.segment(_PT_DYNAMIC, dynamic_at, len(dynamic))]
    headers += [layout.segment(_PT_NOTE, start, len(note))] if abi else []
    body = b"".join((*headers, note, bytes(layout.symbol_size), strings))
    file_header = struct.pack(
        *(layout.file_header, _ET_DYN, MACHINES[machine, bits], 1, 0, head, 0, 0),
        *(head, struct.calcsize(layout.program_header), segments, 0, 0, 0),
    )
    ident = b"\x7fELF" + bytes((bits // 32, 1, 1)) + bytes(9)
    return (ident + file_header + body).ljust(dynamic_at, b"\0") + dynamic + content


def _strings(texts: Sequence[str]) -> tuple[bytes, list[int]]:
    table, offsets = b"\0", []
    for text in texts:
        offsets.append(len(table))
        table += text.encode() + b"\0"
    return table, offsets
