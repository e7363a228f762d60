"""Images that lie in memory as the CUDA runtime has them: wrapped, or before memory that cannot be read."""

import ctypes
import struct
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

from tests.library.inside.runtime import table_entry

Answer = Any

_MODULES = "6bd5fb6c5bf4e74a8987d93912fd9df9"
_PAGE = 4096


def _ready() -> ctypes.CDLL:
    cuda = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    cuda.cuInit(0)
    assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return cuda


def loads_wrapped(image: str, kernel: str) -> list[int]:
    """Results of loading a wrapped fat binary, by the function and by the runtime's table; then of finding a kernel."""
    cuda = _ready()
    content = ctypes.create_string_buffer(bytes.fromhex(image))
    wrapper = struct.pack("<IIQQ", 0x466243B1, 1, ctypes.addressof(content), 0)
    by_function, by_table, plain, function = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    return [
        cuda.cuModuleLoadFatBinary(byref(by_function), c_char_p(wrapper)),
        table_entry(_MODULES, 1)(byref(by_table), c_char_p(wrapper)),
        table_entry(_MODULES, 8)(content, byref(plain)),
        cuda.cuModuleGetFunction(byref(function), by_function, kernel.encode()),
        cuda.cuModuleGetFunction(byref(function), by_table, kernel.encode()),
        cuda.cuModuleGetFunction(byref(function), plain, kernel.encode()),
    ]


def loads_before_unreadable_memory(image: str) -> list[int]:
    """Results of loading the image, and ever shorter beginnings of it, where the page behind cannot be read."""
    cuda = _ready()
    content = bytes.fromhex(image)
    room = -(-len(content) // _PAGE) * _PAGE
    libc = ctypes.CDLL(None)
    libc.mmap.restype = c_void_p
    start = libc.mmap(None, c_size_t(room + _PAGE), c_int(3), c_int(0x22), c_int(-1), c_size_t(0))
    assert libc.mprotect(c_void_p(start + room), c_size_t(_PAGE), c_int(0)) == 0
    codes = []
    for length in range(len(content), 7, -8):
        at = start + room - length
        ctypes.memmove(at, content, length)
        module = c_void_p()
        codes.append(cuda.cuModuleLoadData(byref(module), c_void_p(at)))
    return codes
