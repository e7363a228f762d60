"""Opening libraries, in every order."""

import ctypes
from ctypes import byref, c_char_p, c_void_p
from pathlib import Path

from tests.library.inside.cuda import cuda_memory, shown
from tests.library.inside.nvml import shown_by_nvml

DLADDR = ctypes.CDLL(None).dladdr


class Place(ctypes.Structure):
    """Dl_info."""

    _fields_ = (("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p), ("address", c_void_p))


def place(address: int | None) -> list[str]:
    """Which file a function is in, and its name there."""
    found = Place()
    if not address or not DLADDR(c_void_p(address), byref(found)):
        return ["", ""]
    symbol = found.symbol.decode() if found.symbol and found.address == address else ""
    return [Path(found.file.decode()).name, symbol]


def address_of(library: ctypes.CDLL, symbol: str) -> int | None:
    try:
        return ctypes.cast(getattr(library, symbol), c_void_p).value
    except AttributeError:
        return None


def open_libraries(*names: str) -> list[list[str]]:
    """Opens them in this order; for each, where its first well-known function is."""
    opened = [ctypes.CDLL(name) for name in names]
    return [place(address_of(library, "cuInit") or address_of(library, "nvmlInit_v2")) for library in opened]


def shown_after(*names: str) -> list[int]:
    """Opens libraries; what the last one shows of the memory."""
    return cuda_memory([ctypes.CDLL(name) for name in names][-1])


def slots_of_both() -> list[int]:
    """The slot that a process has after NVML, and after CUDA."""
    shown_by_nvml()
    first = ctypes.CDLL("libvcuda.so.1").vcuda_slot_number()
    shown()
    return [first, ctypes.CDLL("libvcuda.so.1").vcuda_slot_number()]


def reopened(times: int) -> list[int]:
    """Opens libcuda, uses it and closes it, again and again."""
    totals = []
    for _ in range(times):
        cuda = ctypes.CDLL("libcuda.so.1")
        context = c_void_p()
        cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
        totals.append(cuda_memory(cuda)[1])
        ctypes.CDLL(None).dlclose(c_void_p(cuda._handle))
    return totals


def refused_library(name: str) -> str:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return ""


def resolved(name: str, *symbols: str) -> dict[str, list[str]]:
    """Where each symbol is found through a handle of the library; "" where it is not."""
    library = ctypes.CDLL(name)
    return {symbol: place(address_of(library, symbol)) for symbol in symbols}


def error_after_opening(name: str) -> str:
    """What dlerror says after a dlopen that succeeded."""
    library = ctypes.CDLL(None)
    library.dlopen.restype, library.dlerror.restype = c_void_p, c_char_p
    assert library.dlopen(name.encode(), 1)
    return (library.dlerror() or b"").decode()


def called_unseen(*symbols: str) -> dict[str, int]:
    """The answer of functions that the driver lacks, called without arguments."""
    cuda = ctypes.CDLL("libcuda.so.1")
    return {symbol: getattr(cuda, symbol)(0, 0, 0, 0, 0) for symbol in symbols}
