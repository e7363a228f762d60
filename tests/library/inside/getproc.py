"""Questions to cuGetProcAddress, through ours and to the driver itself."""

import ctypes
from collections.abc import Iterable
from ctypes import byref, c_char_p, c_int, c_uint64, c_void_p
from typing import Any

from tests.library.inside.loading import place

Answer = Any


def ask(library: ctypes.CDLL, function: str, base: str | None, version: int, flag: int) -> list[Answer]:
    """[error, status, file, symbol, address]"""
    entry, status = c_void_p(), c_int(-1)
    name = base.encode() if base is not None else None
    extra = (byref(status),) if function.endswith("_v2") else ()
    error = getattr(library, function)(name, byref(entry), version, c_uint64(flag), *extra)
    return [error, status.value, *place(entry.value), entry.value]


def getproc(function: str, bases: Iterable[str], versions: Iterable[int], flags: Iterable[int]) -> Answer:
    """For each base, version and flag: what we say and what the driver says."""
    cuda, real = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcuda-real.so.1")
    flags, versions = list(flags), list(versions)
    return [
        [base, version, flag, ask(cuda, function, base, version, flag), ask(real, function, base, version, flag)]
        for base in bases
        for version in versions
        for flag in flags
    ]


def getproc_nulls() -> Answer:
    """Questions with NULL in them: [ours, the driver's] each."""
    cuda, real = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcuda-real.so.1")

    def both(function: str, *args: Answer) -> list[int]:
        return [getattr(library, function)(*args) for library in (cuda, real)]

    entry = c_void_p()
    return [
        both("cuGetProcAddress", None, byref(entry), 11030, c_uint64(0)),
        both("cuGetProcAddress", b"cuInit", None, 11030, c_uint64(0)),
        both("cuGetProcAddress_v2", None, byref(entry), 12000, c_uint64(0), None),
        both("cuGetProcAddress_v2", b"cuInit", None, 12000, c_uint64(0), None),
        both("cuGetProcAddress_v2", b"cuInit", byref(entry), 12000, c_uint64(0), None),
        both("cuGetProcAddress_v2", b"cuNoSuchThing", byref(entry), 12000, c_uint64(0), None),
    ]


def got_by_the_driver() -> list[str]:
    """Where a function is that was asked for inside cuInit."""
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    return place(c_void_p.in_dll(ctypes.CDLL("libcuda-real.so.1"), "driver_got").value)


def chained_getproc() -> list[list[str]]:
    """As a runtime does: asks for cuGetProcAddress itself, then goes on with what it was given."""
    cuda = ctypes.CDLL("libcuda.so.1")
    entry = c_void_p()
    cuda.cuGetProcAddress(b"cuGetProcAddress", byref(entry), 11030, c_uint64(0))
    first = ctypes.CFUNCTYPE(c_int, c_char_p, c_void_p, c_int, c_uint64)(entry.value or 0)
    found = [place(entry.value)]
    first(b"cuGetProcAddress", byref(entry), 12000, 0)
    second = ctypes.CFUNCTYPE(c_int, c_char_p, c_void_p, c_int, c_uint64, c_void_p)(entry.value or 0)
    found.append(place(entry.value))
    second(b"cuMemGetInfo", byref(entry), 12000, 0, None)
    return [*found, place(entry.value)]
