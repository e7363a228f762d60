"""Images with machine code as NVIDIA's tools lay them out: cubins and fat binaries.

In: names of kernels and variables. Out: bytes. Not here: instructions; the emulator looks at none.
"""

import struct
from collections.abc import Sequence

_HEADER, _SECTION, _SYMBOL = "<16sHHIQQQIHHHHHH", "<IIQQQQIIQQ", "<IBBHQQ"
_CUDA, _PROGBITS, _SYMTAB, _STRTAB, _NOBITS = 190, 1, 2, 3, 8
_OBJECT, _KERNEL, _DEVICE_FUNCTION = (0x11, 0), (0x12, 0x10), (0x12, 0)
_PTX, _ELF = 1, 2
_ABI, _OLD_ABI = 0x41, 0x33
_COMPRESSED = 0x2000

Section = tuple[str, int, bytes, int, int]  # name, type, content, size, link


def cubin(
    kernels: Sequence[str] = ("work",),
    *,
    variables: dict[str, int] | None = None,
    device_functions: Sequence[str] = (),
    target: int = 80,
    since_13: bool = True,
) -> bytes:
    """`variables`: bytes by name. `since_13`: as tools of CUDA 13 write the target; otherwise as older ones do."""
    functions = [(name, _KERNEL) for name in kernels] + [(name, _DEVICE_FUNCTION) for name in device_functions]
    sizes = variables or {}
    strings = _Strings()
    symbols = [struct.pack(_SYMBOL, 0, 0, 0, 0, 0, 0)]
    for number, (name, (info, other)) in enumerate(functions):
        symbols.append(struct.pack(_SYMBOL, strings.add(name), info, other, 5 + number, 0, 256))
    for name, size in sizes.items():
        symbols.append(struct.pack(_SYMBOL, strings.add(name), *_OBJECT, 4, 0, size))
    sections: list[Section] = [
        ("", 0, b"", 0, 0),
        (".strtab", _STRTAB, strings.content, len(strings.content), 0),
        (".symtab", _SYMTAB, b"".join(symbols), len(b"".join(symbols)), 1),
        (".shstrtab", _STRTAB, b"", 0, 0),
        (".nv.global", _NOBITS, b"", sum(sizes.values()), 0),
        *((f".text.{name}", _PROGBITS, bytes(256), 256, 0) for name, _ in functions),
    ]
    return _elf(sections, target << 8 if since_13 else target, _ABI if since_13 else _OLD_ABI)


class _Strings:
    def __init__(self) -> None:
        self.content = b"\0"

    def add(self, text: str) -> int:
        self.content += text.encode() + b"\0"
        return len(self.content) - len(text) - 1


def _elf(sections: list[Section], flags: int, abi: int) -> bytes:
    names = _Strings()
    places = [names.add(name) if name else 0 for name, *_ in sections]
    body, table = b"", b""
    for (name, kind, content, size, link), place in zip(sections, places, strict=True):
        content, size = (names.content, len(names.content)) if name == ".shstrtab" else (content, size)
        table += struct.pack(_SECTION, place, kind, 0, 0, 64 + len(body), size, link, 0, 1, 0)
        body += content
    identity = b"\x7fELF\x02\x01\x01" + bytes([abi, 8 if abi == _ABI else 7])
    head = (identity, 2, _CUDA, 1, 0, 0, 64 + len(body), flags, 64, 56, 0, 64, len(sections), 3)
    return struct.pack(_HEADER, *head) + body + table


def fat_binary(*images: tuple[int, bytes], compressed: bool = False) -> bytes:
    """Targets, 80 for 8.0, and images, each a cubin or PTX."""
    entries = b""
    for target, image in images:
        kind = _ELF if image.startswith(b"\x7fELF") else _PTX
        padded = image + bytes(-len(image) % 8)
        flags = _COMPRESSED if compressed else 0x11
        head = (kind, 0x101, 64, len(padded), 0, len(image), 0, 0, target, 64, 0, flags, 0, 0)
        entries += struct.pack("<HHIIIIIIIIIQQQ", *head) + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries
