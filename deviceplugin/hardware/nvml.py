"""NVML itself: which library it is, and every call into it. The only importer of pynvml.

In: names of NVML functions and their arguments; the operator's choice of the library: the system's libnvidia-ml.so.1,
one below a driver root, or one file. Out: answers, or an `NvmlCallError` whose sentence names the function, the GPU,
what NVML said and what to do. A function that the driver lacks, and a question that this GPU does not answer, are
"unknown" (None), not errors. Not here: what the answers mean (`device`, `nvml_session`), and threads (`nvml_executor`):
every method runs on the NVML thread.

`NvmlLibrary` maps the library into this process under its SONAME, so that pynvml, which opens `libnvidia-ml.so.1` by
name, gets exactly this one. Invariants: a library that the operator named is used or refused, never silently replaced
by the system's; NVML is initialised once and kept until it shall be closed, because an init/shutdown pair costs more
than everything else that is ever asked.
"""

import _ctypes
import ctypes
import enum
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pynvml
import structlog

from deviceplugin.driver_root import DriverRoot
from deviceplugin.errors import DriverMissingError, HardwareError, NvmlCallError

SONAME = "libnvidia-ml.so.1"
_CORRECT_ROOT = "correct --driver-root"
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
            raise DriverMissingError(f"{chosen} cannot be loaded as NVML: {error}", advice=_CORRECT_ROOT) from None
        if not _answers_to_name(mapped):
            _unmap(mapped)
            raise DriverMissingError(
                f"{chosen} is a library, but not the one that this process knows as {SONAME}",
                advice=_CORRECT_ROOT,
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
        f"there is no {SONAME} below the driver root {root}", advice=f"install the driver there or {_CORRECT_ROOT}"
    )


_log = structlog.get_logger("vcuda.hardware")

Answer: TypeAlias = Any
"""What pynvml gives: it has no types. `device` and `nvml_session` turn it into values at once."""


class Status(enum.IntEnum):
    """The values of nvmlReturn_t that decide something here."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    NO_DATA = 21
    ARGUMENT_VERSION_MISMATCH = 25
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


STALE = frozenset({Status.UNINITIALIZED, Status.DRIVER_NOT_LOADED, Status.LIB_RM_VERSION_MISMATCH})
"""After these every handle is void: NVML must be opened again."""

GONE = frozenset({Status.GPU_IS_LOST, Status.GPU_NOT_FOUND, Status.RESET_REQUIRED})
"""After these the GPU can run nothing, without any doubt."""

_UNKNOWN = frozenset(
    {
        Status.NOT_SUPPORTED,
        Status.NO_PERMISSION,
        Status.NOT_FOUND,
        Status.NO_DATA,
        Status.NOT_READY,
        Status.ARGUMENT_VERSION_MISMATCH,
        Status.FUNCTION_NOT_FOUND,
    }
)

_ADVICE = {
    Status.UNINITIALIZED: "the agent opens NVML again by itself",
    Status.NO_PERMISSION: "give the agent access to the device nodes",
    Status.DRIVER_NOT_LOADED: "load the nvidia kernel module (modprobe nvidia)",
    Status.LIBRARY_NOT_FOUND: "install the driver, or name its root (--driver-root)",
    Status.FUNCTION_NOT_FOUND: "use a newer driver",
    Status.GPU_IS_LOST: "reset the GPU or reboot the node",
    Status.RESET_REQUIRED: "reset the GPU (nvidia-smi --gpu-reset)",
    Status.LIB_RM_VERSION_MISMATCH: "reload the kernel module of the new driver or reboot the node",
    Status.GPU_NOT_FOUND: "rescan the PCI bus or reboot the node",
}
_GIVEN_UP = -1  # no thread has this number
_MISSING = frozenset({Status.DRIVER_NOT_LOADED, Status.LIBRARY_NOT_FOUND})


class Subject(msgspec.Struct, frozen=True):
    """The GPU that a question is about: NVML's index, and the UUID once it is known."""

    index: int
    uuid: str = ""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.uuid})" if self.uuid else f"GPU {self.index}"


class Nvml:
    """The library of one process; `generation` grows with every opening and closing and dates the handles.

    `asking`: what the question that is outstanding is about, None if it is about no single GPU. One thread asks at a
    time. A thread that was given up (`disown`) may still be inside a question; it gets no answer and asks nothing more.
    `answered_at`: when the last question was answered, on the monotonic clock.
    `before_close`: gives back to NVML what was made of it, such as event sets, which keep device nodes open.
    """

    def __init__(self, library: NvmlLibrary | None = None) -> None:
        self.generation = 0
        self.asking: Subject | None = None
        self.answered_at = 0.0
        self.before_close: list[Callable[[], None]] = []
        self._asker: int | None = None
        self._library = library or NvmlLibrary()
        self._absent: set[str] = set()
        self._open = False

    def take_over(self) -> None:
        """From here on the calling thread asks."""
        self._asker = threading.get_ident()
        self.asking = None

    def disown(self) -> None:
        """The thread that asks is given up."""
        self._asker = _GIVEN_UP

    def open(self) -> None:
        """Loads and initialises; without a driver this is a DriverMissingError."""
        if self._open:
            return
        self._library.preload()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value in _MISSING:
                advice = _ADVICE[Status(error.value)]
                finding = f"no NVIDIA driver answers: NVML says {_said(error)!r}"
                raise DriverMissingError(finding, advice=advice) from None
            raise _failure("nvmlInit", error, None) from None
        self._open = True
        self.generation += 1

    def close(self) -> None:
        """Shuts NVML down; an error of it no longer matters."""
        if not self._open:
            return
        for give_back in tuple(self.before_close):
            give_back()
        self._open = False
        self.generation += 1
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            _log.debug("nvml_shutdown_failed", error=_said(error))

    def forget_library(self) -> None:
        """Unmaps the library: after an upgrade of the driver the mapped one has the wrong version."""
        self.close()
        if pynvml.nvmlLib is not None:
            _ctypes.dlclose(pynvml.nvmlLib._handle)  # noqa: SLF001 - ctypes has no public way to unload
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - else it calls into what is unmapped
        self._library.unmap()
        self._absent.clear()

    def required(self, function: str, *arguments: object, about: Subject | None = None) -> Answer:
        """The answer, or NvmlCallError."""
        try:
            return self._call(function, arguments, about)
        except pynvml.NVMLError as error:
            raise _failure(function, error, about) from None
        except UnicodeDecodeError:
            raise _garbled(function, about) from None

    def optional(self, function: str, *arguments: object, about: Subject | None = None, form: str = "") -> Answer:
        """The answer, or None if this driver or this GPU does not say; a GPU in trouble still raises.

        `form` distinguishes calls for which pynvml has one function with an argument.
        """
        if function + form in self._absent:
            return None
        try:
            return self._call(function, arguments, about)
        except pynvml.NVMLError as error:
            if error.value not in _UNKNOWN:
                raise _failure(function, error, about) from None
            if error.value == Status.FUNCTION_NOT_FOUND:
                self._remember_absent(function + form)
            return None

    def structure(self, name: str) -> Answer:
        """An empty structure for NVML to fill."""
        return getattr(pynvml, name)()

    def _call(self, function: str, arguments: tuple[object, ...], about: Subject | None) -> Answer:
        self._check_asker(function)
        self.asking = about
        try:
            return getattr(pynvml, function)(*arguments)
        finally:
            self._check_asker(function)
            self.asking = None
            self.answered_at = time.monotonic()

    def _check_asker(self, function: str) -> None:
        if self._asker not in (None, threading.get_ident()):
            raise HardwareError(f"{function}: the answer came too late, and another thread asks now")

    def _remember_absent(self, function: str) -> None:
        self._absent.add(function)
        _log.info("nvml_function_missing", function=function)


def _failure(function: str, error: Answer, about: Subject | None) -> NvmlCallError:
    code = int(error.value)
    advice = next((text for status, text in _ADVICE.items() if status == code), "see the kernel log (dmesg) for NVRM")
    subject = f" for {about}" if about else ""
    said = _said(error)
    finding = f"{function} failed{subject}: NVML says {said!r} ({code})"
    return NvmlCallError(finding, code=code, said=said, advice=advice)


def _garbled(function: str, about: Subject | None) -> NvmlCallError:
    """The firmware of a broken card has given such names; pynvml decodes them strictly."""
    said = "bytes that are no text"
    return NvmlCallError(f"{function} for {about} gave {said}; update the firmware", code=Status.UNKNOWN, said=said)


def _said(error: Answer) -> str:
    return str(error).strip().rstrip(".")
