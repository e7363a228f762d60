"""Which libnvidia-ml.so.1 is used: the system's, one below a driver root, or one file.

In: options. Out: the library mapped into this process under its SONAME, so that pynvml, which opens
`libnvidia-ml.so.1` by name, gets exactly this one. Not here: any call into it (`nvml`). Invariant: a library that the
operator named is used or refused, never silently replaced by the system's.
"""

import _ctypes
import ctypes
import os
from pathlib import Path

from deviceplugin.driver_root import DriverRoot
from deviceplugin.errors import DriverMissingError

SONAME = "libnvidia-ml.so.1"
SYSTEM_ROOT = Path("/")

_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/local/nvidia/lib64",
    "usr/lib/nvidia",
    "usr/lib",
    "opt/nvidia/lib64",
)


class NvmlLibrary:
    """The choice of a file, and what was mapped because of it."""

    def __init__(self, *, path: Path | None = None, root: Path = SYSTEM_ROOT) -> None:
        self._path = path
        self._root = root
        self._mapped: ctypes.CDLL | None = None

    def preload(self) -> None:
        """Maps the chosen file; for the system's own library there is nothing to do, the loader finds it."""
        if self._mapped is not None:
            return
        chosen = self._path or (_below(self._root) if self._root != SYSTEM_ROOT else None)
        if chosen is None:
            return
        try:
            mapped = ctypes.CDLL(str(chosen))
        except OSError as error:
            raise DriverMissingError(
                f"{chosen} cannot be loaded as NVML: {error}; name the driver's {SONAME} or its root directory"
            ) from None
        if not _answers_to_name(mapped):
            _unmap(mapped)
            raise DriverMissingError(
                f"{chosen} is a library, but not the one that this process knows as {SONAME}; "
                "name the driver's own file"
            )
        self._mapped = mapped

    def unmap(self) -> None:
        """Unmaps the library, so that the next `preload` takes the file that is there then."""
        if self._mapped is not None:
            _unmap(self._mapped)
            self._mapped = None


def _answers_to_name(library: ctypes.CDLL) -> bool:
    """Whether opening NVML by name gives this library."""
    try:
        named = ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    _unmap(named)  # only the reference that the question itself took
    return bool(named._handle == library._handle)  # noqa: SLF001 - ctypes has no public name for it


def _unmap(library: ctypes.CDLL) -> None:
    _ctypes.dlclose(library._handle)  # noqa: SLF001 - ctypes has no public way to unload


def _below(root: Path) -> Path:
    """The file itself: the loader would follow an absolute link from this process's root, not from the node's."""
    for directory in _DIRECTORIES:
        if found := DriverRoot(root).resolve(f"{directory}/{SONAME}"):
            return found
    raise DriverMissingError(
        f"there is no {SONAME} below the driver root {root}; install the driver there or correct --driver-root"
    )
