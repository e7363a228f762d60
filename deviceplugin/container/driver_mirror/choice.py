"""Which of the libraries found belong to the driver that runs. Pure.

In: libraries in the loader's order and the version of the loaded kernel module. Out: those for the mirror. Two rules of
the lineage: of the names that Mesa has too, only NVIDIA's are taken (they need libnvidia-glcore, libnvidia-eglcore or
the dispatcher); libnvidia-tls only with thread-local storage of kernels from 2.3.99. Beyond them: what bears the
version of another driver is left out, and of several files of one name the first stays, those of the version before.
"""

import re
from collections.abc import Iterable, Sequence

from deviceplugin.container.driver_mirror.components import CUDA
from deviceplugin.container.driver_mirror.search import Library

_DRIVER_VERSION = re.compile(r"\d{3,}\.\d+(\.\d+)?")
_SHARED_WITH_MESA = ("libEGL.so", "libGLESv1_CM.so", "libGLESv2.so", "libGL.so")
_NVIDIAS = ("libnvidia-glcore", "libnvidia-eglcore", "libGLdispatch")
_TLS = "libnvidia-tls.so"
_NATIVE_TLS = (2, 3, 99)


def choose(libraries: Sequence[Library], *, loaded: str) -> tuple[Library, ...]:
    """`loaded` may be empty where nobody knows it."""
    version = driver_version(libraries, loaded=loaded)
    ours = [each for each in libraries if _is_nvidias(each) and driver_suffix(each) in ("", version)]
    ours = [each for each in ours if not _is_old_tls(each, ours)]
    return _first_of_each(sorted(ours, key=lambda each: driver_suffix(each) != version))


def driver_version(libraries: Iterable[Library], *, loaded: str) -> str:
    """The loaded one where there are files of it, else that of the first libcuda; empty where no file tells."""
    found = [driver_suffix(each) for each in libraries if each.name.startswith(CUDA)]
    return loaded if loaded in found else next(filter(None, found), loaded)


def driver_suffix(library: Library) -> str:
    """The driver's version in the file's name; empty where it has none or a version of its own."""
    return library.version if _DRIVER_VERSION.fullmatch(library.version) else ""


def _is_nvidias(library: Library) -> bool:
    if not library.name.startswith(_SHARED_WITH_MESA):
        return True
    return any(name.startswith(_NVIDIAS) for name in library.elf.needed)


def _is_old_tls(library: Library, all_of_them: Sequence[Library]) -> bool:
    """The one for older kernels, where the other one is there; drivers of today have one without a choice."""
    if not library.name.startswith(_TLS) or library.elf.abi == _NATIVE_TLS:
        return False
    others = (each for each in all_of_them if (each.stem, each.bits) == (library.stem, library.bits))
    return any(each.elf.abi == _NATIVE_TLS for each in others)


def _first_of_each(libraries: Iterable[Library]) -> tuple[Library, ...]:
    """Of several with one name or SONAME (two libGL.so.1 in two directories) the one that the loader would take."""
    kept: dict[tuple[int, str], Library] = {}
    names: set[tuple[int, str]] = set()
    for each in libraries:
        if (each.bits, each.name) not in names:
            names.add((each.bits, each.name))
            kept.setdefault((each.bits, each.elf.soname or each.name), each)
    return tuple(kept.values())
