"""Looks for the driver's libraries and programs below a driver root, and chooses those of the loaded driver.

In: the root, the names that are wanted, and the version of the loaded kernel module. Out: each library once with every
name that leads to it, in the order in which the node's loader would take them; `choose` keeps those for the mirror. The
loader's cache says where; where it is missing, damaged or does not name the driver, well-known directories are read.
The mirror's own files come last: files of the driver that still runs outlive their removal from the node.

`choose` is pure and has two rules of gpu-manager: of the names that Mesa has too, only NVIDIA's are taken (they need
libnvidia-glcore, libnvidia-eglcore or the dispatcher); libnvidia-tls only with thread-local storage of kernels from
2.3.99. Beyond them: a file with the version of another driver is left out, and of several files of one name the first
stays, those of the loaded version before the others.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from deviceplugin.container.driver_mirror.components import CUDA, NVML
from deviceplugin.container.driver_mirror.elf import Elf, Machine, is_elf, parse_cache, read_elf
from deviceplugin.driver_root import CACHE, LIBRARY_DIRECTORIES, PROGRAM_DIRECTORIES, DriverRoot
from deviceplugin.errors import ParseError

_LARGEST_CACHE = 64 << 20


class DriverFile(msgspec.Struct, frozen=True):
    """A file of the driver; `identity` changes with the file's content, without the content being read."""

    path: Path
    identity: str

    @classmethod
    def of(cls, path: Path) -> "DriverFile | None":
        """None for what is no file."""
        identity = identity_of(path)
        return cls(path, identity) if identity else None


def identity_of(path: Path) -> str:
    """Empty if there is no file. Neither device (it may change at a boot) nor ctime (a hard link changes it)."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}" if stat.S_ISREG(found.st_mode) else ""


class DriverLibrary(msgspec.Struct, frozen=True):
    """One file; `names` are its own first, then those of links that lead to it. `bits` is 64 or 32."""

    source: DriverFile
    names: tuple[str, ...]
    bits: int
    elf: Elf

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def stem(self) -> str:
        """What versions have in common: `libcuda` of libcuda.so.580.65.06."""
        return self.name.partition(".so")[0]

    @property
    def version(self) -> str:
        """`580.65.06` of libcuda.so.580.65.06; empty without one."""
        return self.name.partition(".so.")[2]


class Kept(msgspec.Struct, frozen=True):
    """What a finished mirror holds of the driver version that is loaded."""

    version: str
    libraries: tuple[Path, ...]
    programs: Path


class Finding(msgspec.Struct, frozen=True):
    """`trouble` says in sentences what could not be read."""

    libraries: tuple[DriverLibrary, ...]
    trouble: tuple[str, ...] = ()


def find_libraries(
    root: DriverRoot, prefixes: Iterable[str], machine: Machine, *, loaded: str = "", kept: Kept | None = None
) -> Finding:
    """Every library whose name begins with one of `prefixes` and that this machine can load.

    The loader's cache knows one file of each SONAME; of the version `loaded` all files are found.
    """
    wanted = tuple(prefixes)
    trouble: list[str] = []
    files: dict[Path, list[str]] = {}
    mirrored = _in_mirror(kept, wanted) if kept is not None else ()
    for name, path in (*_candidates(root, wanted, loaded, trouble), *mirrored):
        names = files.setdefault(path, [path.name])
        if name not in names:
            names.append(name)
    libraries = (_library(path, tuple(names), machine, trouble) for path, names in files.items())
    return Finding(tuple(each for each in libraries if each is not None), tuple(trouble))


def find_programs(root: DriverRoot, names: Iterable[str], *, kept: Kept | None = None) -> Mapping[str, DriverFile]:
    """The first of each name that can be executed; with `kept` the mirror's, which fit its libraries."""
    found: dict[str, DriverFile] = {}
    for name in names:
        places = [root.resolve(f"{directory}/{name}") for directory in PROGRAM_DIRECTORIES]
        if kept is not None:
            places.insert(0, kept.programs / name)
        path = next((each for each in places if each is not None and os.access(each, os.X_OK)), None)
        source = DriverFile.of(path) if path is not None else None
        if source is not None:
            found[name] = source
    return found


def _candidates(
    root: DriverRoot, wanted: tuple[str, ...], loaded: str, trouble: list[str]
) -> Iterator[tuple[str, Path]]:
    named = list(_in_cache(root, wanted, trouble))
    if not any(name.startswith((CUDA, NVML)) for name, _ in named):
        named += _in_directories(root, LIBRARY_DIRECTORIES, wanted)
    yield from named
    if loaded:
        beside = dict.fromkeys(f"/{path.parent.relative_to(root.path)}" for _, path in named)
        siblings = _in_directories(root, beside, wanted)
        yield from ((name, path) for name, path in siblings if path.name.endswith(f".so.{loaded}"))


def _in_cache(root: DriverRoot, wanted: tuple[str, ...], trouble: list[str]) -> Iterator[tuple[str, Path]]:
    path = root.resolve(CACHE)
    if path is None:
        return
    try:
        with path.open("rb") as file:
            entries = parse_cache(file.read(_LARGEST_CACHE), source=path)
    except OSError as error:
        trouble.append(f"{path} cannot be read: {error.strerror}; well-known directories are searched instead")
        return
    except ParseError as error:
        trouble.append(error.message)
        return
    for entry in entries:
        found = root.resolve(entry.path) if entry.bits and entry.name.startswith(wanted) else None
        if found is not None and "/" not in entry.name:
            yield entry.name, found


def _in_directories(
    root: DriverRoot, directories: Iterable[str], wanted: tuple[str, ...]
) -> Iterator[tuple[str, Path]]:
    for directory in directories:
        for name in root.listing(directory):
            found = root.resolve(f"{directory}/{name}") if name.startswith(wanted) else None
            if found is not None:
                yield name, found


def _in_mirror(kept: Kept, wanted: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for directory in kept.libraries:
        for link in sorted(directory.iterdir()) if directory.is_dir() else ():
            path = link.resolve()
            if link.name.startswith(wanted) and path.name.endswith(f".so.{kept.version}"):
                yield link.name, path


def _library(path: Path, names: tuple[str, ...], machine: Machine, trouble: list[str]) -> DriverLibrary | None:
    """None for a file that no program here could load: a linker script, a library of another machine, a broken file."""
    source = DriverFile.of(path)
    try:
        elf = read_elf(path) if source is not None and is_elf(path) else None
    except ParseError as error:
        trouble.append(error.message)
        return None
    bits = elf.bits_on(machine) if elf is not None else 0
    return DriverLibrary(source, names, bits, elf) if source is not None and elf is not None and bits else None


_DRIVER_VERSION = re.compile(r"\d{3,}\.\d+(\.\d+)?")
_SHARED_WITH_MESA = ("libEGL.so", "libGLESv1_CM.so", "libGLESv2.so", "libGL.so")
_NVIDIAS = ("libnvidia-glcore", "libnvidia-eglcore", "libGLdispatch")
_TLS = "libnvidia-tls.so"
_NATIVE_TLS = (2, 3, 99)


def choose(libraries: Sequence[DriverLibrary], *, loaded: str) -> tuple[DriverLibrary, ...]:
    """`loaded` is empty where it is unknown."""
    version = driver_version(libraries, loaded=loaded)
    found = [each for each in libraries if _is_nvidias(each) and driver_suffix(each) in ("", version)]
    found = [each for each in found if not _is_old_tls(each, found)]
    return _first_of_each(sorted(found, key=lambda each: driver_suffix(each) != version))


def driver_version(libraries: Iterable[DriverLibrary], *, loaded: str) -> str:
    """The loaded one where there are files of it, else that of the first libcuda; empty if no file has one."""
    found = [driver_suffix(each) for each in libraries if each.name.startswith(CUDA)]
    return loaded if loaded in found else next(filter(None, found), loaded)


def driver_suffix(library: DriverLibrary) -> str:
    """The driver's version in the file's name; empty if it has none or a version that is not the driver's."""
    return library.version if _DRIVER_VERSION.fullmatch(library.version) else ""


def _is_nvidias(library: DriverLibrary) -> bool:
    if not library.name.startswith(_SHARED_WITH_MESA):
        return True
    return any(name.startswith(_NVIDIAS) for name in library.elf.needed)


def _is_old_tls(library: DriverLibrary, all_of_them: Sequence[DriverLibrary]) -> bool:
    """The one for older kernels, where the other one is there; drivers of today have one without a choice."""
    if not library.name.startswith(_TLS) or library.elf.abi == _NATIVE_TLS:
        return False
    others = (each for each in all_of_them if (each.stem, each.bits) == (library.stem, library.bits))
    return any(each.elf.abi == _NATIVE_TLS for each in others)


def _first_of_each(libraries: Iterable[DriverLibrary]) -> tuple[DriverLibrary, ...]:
    """Of several with one name or SONAME (two libGL.so.1 in two directories) the one that the loader would take."""
    kept: dict[tuple[int, str], DriverLibrary] = {}
    names: set[tuple[int, str]] = set()
    for each in libraries:
        if (each.bits, each.name) not in names:
            names.add((each.bits, each.name))
            kept.setdefault((each.bits, each.elf.soname or each.name), each)
    return tuple(kept.values())
