"""The contents of a mirror, file by file. Pure.

In: the libraries and programs that were chosen, and our objects. Out: a `MirrorPlan` whose key is made of every name
and every content, so that two plans with one key are one tree. `origin` is the driver as it is. In `nvidia` our objects
stand under every name of the real ones: glibc takes two files of one SONAME for one library, so a process that opened
the versioned name first would keep the real one. They stand there as files and never as links (ldconfig moves links);
the real ones have an alias that our objects need, and no other name. Our library has no 32-bit objects, so shares get
no 32-bit libcuda or NVML either: it would enforce no limit.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from deviceplugin.container.driver_mirror.components import (
    CUDA,
    CUDA_ALIAS,
    CUDA_FRONT,
    NVML,
    NVML_ALIAS,
    NVML_FRONT,
    Components,
    Interposers,
)
from deviceplugin.container.driver_mirror.search import DriverFile, DriverLibrary
from deviceplugin.structs import replace

SHARED_FLAVOUR, WHOLE_FLAVOUR = "nvidia", "origin"
FLAVOURS = (SHARED_FLAVOUR, WHOLE_FLAVOUR)
PROGRAMS = "bin"
LIBRARIES = {64: "lib64", 32: "lib"}
_FORMAT = 1  # of the tree; a change of it rebuilds every tree
_FRONTS = {CUDA: (CUDA_FRONT, CUDA_ALIAS), NVML: (NVML_FRONT, NVML_ALIAS)}
_VENDOR, _INDIRECT = "libGLX_nvidia.so", "libGLX_indirect.so.0"
_ALWAYS_NEEDED = (CUDA_FRONT, NVML_FRONT, "libnvidia-ptxjitcompiler.so.1")
_DRIVERS_OWN = ("libnvidia-", "libcuda.so")


class FileEntry(msgspec.Struct, frozen=True):
    """A file of the tree; `is_interposer`: vcuda's own, known by its content."""

    source: Path
    identity: str
    is_interposer: bool = False


class LinkEntry(msgspec.Struct, frozen=True):
    """A symbolic link to a name beside it."""

    target: str


Entry = FileEntry | LinkEntry


class MirrorPlan(msgspec.Struct, frozen=True):
    """`missing`: libraries that containers need and that are not there; `refusal`: why no share may start, or empty."""

    entries: Mapping[PurePosixPath, Entry] = msgspec.field(default_factory=dict)
    driver: str = ""
    missing: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def key(self) -> str:
        content = [
            (str(path), entry.target if isinstance(entry, LinkEntry) else entry.identity, isinstance(entry, LinkEntry))
            for path, entry in sorted(self.entries.items())
        ]
        return hashlib.sha256(json.dumps([_FORMAT, content]).encode()).hexdigest()[:16]


UNENFORCED = "shares cannot start, because nothing would enforce their limits"
EMPTY = MirrorPlan(refusal="shares cannot start yet, because the driver was not read yet; kubelet tries again")
"""The mirror before the first refresh: it can be mounted and is empty."""


class Chosen(msgspec.Struct, frozen=True):
    """What goes in: the driver's files and vcuda's. `root` is named if something is missing."""

    libraries: Sequence[DriverLibrary]
    programs: Mapping[str, DriverFile]
    interposers: Interposers
    driver: str
    root: Path


def make_plan(chosen: Chosen, *, shared: Components, whole: Components) -> MirrorPlan:
    """`shared` and `whole` say which of the driver's files belong to each flavour."""
    missing = _missing(_of(whole, chosen.libraries))
    entries = {
        **_flavour(WHOLE_FLAVOUR, _of(whole, chosen.libraries), whole, chosen),
        **_flavour(SHARED_FLAVOUR, _behind(_of(shared, chosen.libraries)), shared, chosen),
        **_in_front(chosen.interposers, _of(shared, chosen.libraries)),
    }
    return MirrorPlan(entries, chosen.driver, missing, _refusal(chosen, missing))


def _of(components: Components, libraries: Iterable[DriverLibrary]) -> list[DriverLibrary]:
    """Without libcuda and NVML no flavour is of any use, whatever a configuration lists."""
    wanted = (CUDA, NVML, *components.libraries)
    return [each for each in libraries if any(name.startswith(wanted) for name in each.names)]


def _flavour(
    flavour: str, libraries: Sequence[DriverLibrary], components: Components, chosen: Chosen
) -> dict[PurePosixPath, Entry]:
    entries: dict[PurePosixPath, Entry] = {}
    for name in components.programs:
        if name in chosen.programs:
            source = chosen.programs[name]
            entries[PurePosixPath(flavour, PROGRAMS, name)] = FileEntry(source.path, source.identity)
    for each in libraries:
        entry = FileEntry(each.source.path, each.source.identity)
        entries[PurePosixPath(flavour, LIBRARIES[each.bits], each.name)] = entry
    for each in libraries:
        for name in _links(each):
            entries.setdefault(PurePosixPath(flavour, LIBRARIES[each.bits], name), LinkEntry(each.name))
    return entries


def _links(library: DriverLibrary) -> Iterable[str]:
    names = [library.elf.soname or library.name, *library.names]
    if library.name.startswith(_VENDOR):
        names.append(_INDIRECT)
    return [name for name in dict.fromkeys(names) if name != library.name]


def _behind(libraries: Iterable[DriverLibrary]) -> list[DriverLibrary]:
    """For shares: libcuda and NVML keep their alias only; those that vcuda has no object for (32 bits) are left out."""
    placed = []
    for each in libraries:
        alias = _alias(each)
        if alias is None:
            placed.append(each)
        elif each.bits == 64:
            placed.append(replace(each, names=(alias,), elf=replace(each.elf, soname="")))
    return placed


def _alias(library: DriverLibrary) -> str | None:
    return next((alias for beginning, (_, alias) in _FRONTS.items() if library.name.startswith(beginning)), None)


def _in_front(interposers: Interposers, libraries: Sequence[DriverLibrary]) -> dict[PurePosixPath, Entry]:
    """vcuda's objects under the names that programs open, and under all names of the real libraries."""
    names = {each.path.name: set(each.names) for each in interposers.objects}
    for each in libraries:
        for beginning, (front, _) in _FRONTS.items():
            if each.bits == 64 and each.name.startswith(beginning) and front in names:
                names[front].update(each.names)
    return {
        PurePosixPath(SHARED_FLAVOUR, LIBRARIES[64], name): FileEntry(each.path, each.digest, is_interposer=True)
        for each in interposers.objects
        for name in sorted(names[each.path.name])
    }


def _missing(libraries: Sequence[DriverLibrary]) -> tuple[str, ...]:
    """Of what programs open, and of what the driver's own libraries need of each other."""
    native = [each for each in libraries if each.bits == 64]
    present = {name for each in native for name in (each.elf.soname, *each.names)}
    needed = {name for each in native for name in each.elf.needed if name.startswith(_DRIVERS_OWN)}
    return tuple(sorted({*_ALWAYS_NEEDED, *needed} - present))


def _refusal(chosen: Chosen, missing: Sequence[str]) -> str:
    reason = chosen.interposers.trouble
    absent = [name for name in (CUDA_FRONT, NVML_FRONT) if name in missing]
    if not reason and absent:
        reason = (
            f"the driver below {chosen.root} has no 64-bit {' and no '.join(absent)}; "
            "install all of the driver there or correct --driver-root"
        )
    return f"{UNENFORCED}: {reason}" if reason else ""
