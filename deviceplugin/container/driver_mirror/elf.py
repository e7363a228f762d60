"""What an ELF file says of itself: word size, machine, SONAME, what it needs, the ABI it was made for.

In: a path. Out: `Elf`, or a ParseError of one sentence, whatever the file holds, because vcuda does
not install drivers. Only headers, the dynamic segment and notes are read, so a library of 100 MB costs a millisecond.
"""

import enum
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import NoteSegment

from deviceplugin.errors import ContainerError, ParseError

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


@dataclass(frozen=True, slots=True)
class Elf:
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
    """Whether it claims to be one; False where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_elf(path: Path) -> Elf:
    try:
        with path.open("rb") as file:
            return _facts(ELFFile(file))
    except OSError as error:
        raise ParseError(f"{path} cannot be read: {error.strerror}; look at the driver's installation") from None
    except Exception as error:  # pyelftools raises almost anything on a damaged file
        raise ParseError(
            f"{path} is damaged ({type(error).__name__} where its ELF headers are read); install the driver again"
        ) from None


def _facts(elf: ELFFile) -> Elf:
    """An ELF header can claim four thousand million segments that all lie in the same place, hence the bounds."""
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


def _abi(segment: NoteSegment) -> tuple[int, int, int] | None:
    for note in itertools.islice(segment.iter_notes(), _MOST_TAGS):
        if note["n_type"] == "NT_GNU_ABI_TAG" and note["n_name"] == "GNU":
            desc = note["n_desc"]
            return int(desc["abi_major"]), int(desc["abi_minor"]), int(desc["abi_tiny"])
    return None
