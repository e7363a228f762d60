"""Where a function is: in which file, under which name."""

import ctypes
from ctypes import byref, c_char_p, c_void_p
from pathlib import Path

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
