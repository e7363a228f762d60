"""NVIDIA's CUDA runtime in a container: how far it gets, what it asks of the driver, and the driver's tables for it."""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_ulong, c_void_p
from typing import Any

Answer = Any

_TABLES = 64


def calls_made(symbols: list[str]) -> dict[str, int]:
    """How often this process called each of the emulated driver's functions, where it called it at all."""
    driver = ctypes.CDLL("libcuda.so.1")  # where ours is in front of it, the emulator's counters are found behind it
    driver.vcuda_emulator_calls.restype = c_uint64
    counts = {symbol: driver.vcuda_emulator_calls(symbol.encode()) for symbol in symbols}
    return {symbol: count for symbol, count in counts.items() if count}


def tables_asked() -> list[str]:
    """The UUIDs of the tables that this process asked the emulated driver for, in order."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.vcuda_emulator_tables_asked.restype = c_size_t
    room = (ctypes.c_ubyte * (16 * _TABLES))()
    count = driver.vcuda_emulator_tables_asked(room, c_ulong(_TABLES))
    assert count <= _TABLES
    return [bytes(room[16 * place : 16 * (place + 1)]).hex() for place in range(count)]


def runtime_begins(path: str, symbols: list[str]) -> dict[str, Answer]:
    """Opens a libcudart and lets it initialise itself."""
    runtime = ctypes.CDLL(path)
    runtime.cudaGetErrorName.restype = c_char_p
    numbers = {name: c_int(-1) for name in ("cudaRuntimeGetVersion", "cudaDriverGetVersion", "cudaGetDeviceCount")}
    codes = {name: getattr(runtime, name)(byref(number)) for name, number in numbers.items()}
    codes["cudaFree"] = runtime.cudaFree(None)
    return {
        "codes": {name: runtime.cudaGetErrorName(code).decode() for name, code in codes.items()},
        "numbers": {name: number.value for name, number in numbers.items()},
        "tables": tables_asked(),
        "calls": calls_made(symbols),
    }


def table_entry(uuid: str, place: int) -> Answer:
    """A function of the driver's table, of no declared signature."""
    driver = ctypes.CDLL("libcuda.so.1")
    table = c_void_p()
    assert driver.cuGetExportTable(byref(table), bytes.fromhex(uuid)) == 0
    return ctypes.CFUNCTYPE(c_int)((c_void_p * (place + 1)).from_address(table.value or 0)[place] or 0)


def contexts_by_tables() -> dict[str, Answer]:
    """What the driver says of contexts that were taken or made by its tables instead of its functions."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuInit(0)
    handles, created, current = [c_void_p() for _ in range(4)], c_void_p(), c_void_p()
    flags, active = c_int(), c_int()
    primary_of_table = table_entry("6bd5fb6c5bf4e74a8987d93912fd9df9", 2)
    codes, actives = list[int](), list[int]()
    for taken in (
        primary_of_table,
        driver.cuDevicePrimaryCtxRetain,
        primary_of_table,
        lambda handle, device: driver.cuDevicePrimaryCtxReset_v2(device) or primary_of_table(handle, device),
    ):
        codes += [
            taken(byref(handles[len(actives)]), 0),
            driver.cuDevicePrimaryCtxGetState(0, byref(flags), byref(active)),
        ]
        actives.append(active.value)
    codes += [
        table_entry("0ca50b8c1004929a89a7d0df10e77286", 1)(byref(created), 0, 0),
        driver.cuCtxGetCurrent(byref(current)),
    ]
    return {
        "codes": codes,
        "active": actives,
        "primaries": len({handle.value for handle in handles}),
        "current": current.value == created.value,
        "unknown": table_entry("6bd5fb6c5bf4e74a8987d93912fd9df9", 3)(),
    }
