"""Our library as it is installed: the three objects that stand in front of the driver in the containers of shares.

In: a directory. Out: the files with a digest of their content, or one phrase that says why there are none. Invariant:
only what is built as ours is taken. The real driver under the same name would let every share use the whole GPU, so
each object must be for this machine, bear its name as SONAME, and need the alias of the real one.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.container.driver_mirror.elf import Machine, read_elf
from deviceplugin.errors import ParseError

CUDA_FRONT, NVML_FRONT, STATE = "libcuda.so.1", "libnvidia-ml.so.1", "libvcuda.so.1"
CUDA_ALIAS, NVML_ALIAS = "libcuda-real.so.1", "libnvidia-ml-real.so.1"
_NEEDS = {STATE: (), CUDA_FRONT: (STATE, CUDA_ALIAS), NVML_FRONT: (STATE, NVML_ALIAS)}


@dataclass(frozen=True, slots=True)
class Interposer:
    """One object; `names` are those that it gets in the mirror."""

    path: Path
    digest: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interposers:
    """All three objects, or none and a phrase that says why."""

    objects: tuple[Interposer, ...] = ()
    trouble: str = ""


def interposer_paths(directory: Path) -> tuple[Path, ...]:
    return tuple(directory / name for name in _NEEDS)


def find_interposers(directory: Path, machine: Machine) -> Interposers:
    """Reads and checks them; they are small."""
    found = []
    for name in _NEEDS:
        path = directory / name
        if not path.is_file():
            return Interposers(trouble=f"{path} is missing; install vcuda's library there or correct --library-path")
        trouble = _trouble(path, machine)
        if trouble:
            return Interposers(trouble=trouble)
        found.append(Interposer(path, sha256_of(path), _names(name)))
    return Interposers(tuple(found))


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _trouble(path: Path, machine: Machine) -> str:
    try:
        elf = read_elf(path)
    except ParseError as error:
        return error.message
    advice = "install vcuda's library there or correct --library-path"
    if elf.bits_on(machine) != 64:
        return f"{path} is made for {elf.machine}, not for this machine; {advice}"
    lacking = [name for name in _NEEDS[path.name] if name not in elf.needed]
    if elf.soname != path.name or lacking:
        return f"{path} is not vcuda's: it should be called {path.name} and need {_words(path.name)}; {advice}"
    return ""


def _words(name: str) -> str:
    return " and ".join(_NEEDS[name]) or "nothing of the driver"


def _names(name: str) -> tuple[str, ...]:
    """The name that programs are linked for, and for the two in front the one that others open."""
    return (name,) if name == STATE else (name, name.removesuffix(".1"))
