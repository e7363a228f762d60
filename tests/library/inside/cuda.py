"""What CUDA shows of memory, and contexts."""

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

Answer = Any


def cuda_memory(cuda: ctypes.CDLL) -> list[int]:
    """[free, total, total of device 0]"""
    free, total, all_of_it = c_size_t(), c_size_t(), c_size_t()
    cuda.cuMemGetInfo_v2(byref(free), byref(total))
    cuda.cuDeviceTotalMem_v2(byref(all_of_it), 0)
    return [free.value, total.value, all_of_it.value]


def shown(device: int = 0) -> dict[str, Answer]:
    """All views of the memory of device 0, or of another in those that take one."""
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    old, older = (c_uint(), c_uint()), c_uint()
    total = c_size_t()
    cuda.cuMemGetInfo(byref(old[0]), byref(old[1]))
    cuda.cuDeviceTotalMem(byref(older), device)
    cuda.cuDeviceTotalMem_v2(byref(total), device)
    free, all_of_it, _ = cuda_memory(cuda)
    only_free = c_size_t()
    cuda.cuMemGetInfo_v2(byref(only_free), None)
    return {
        "free": free,
        "total": all_of_it,
        "total of device": total.value,
        "32 bit": [old[0].value, old[1].value, older.value],
        "free alone": only_free.value,
    }


def totals_by_uuid() -> dict[str, int]:
    """What each device that the process sees is said to have, by the driver's UUID; needs no context."""
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    count, total = c_int(), c_size_t()
    cuda.cuDeviceGetCount(byref(count))
    found = {}
    for device in range(count.value):
        uuid = (ctypes.c_ubyte * 16)()
        cuda.cuDeviceGetUuid_v2(byref(uuid), device)
        cuda.cuDeviceTotalMem_v2(byref(total), device)
        found[bytes(uuid).hex()] = total.value
    return found


def memory_without_context() -> list[int]:
    """[error of cuMemGetInfo in a thread that has no context, total of device 0]"""
    cuda = ctypes.CDLL("libcuda.so.1")
    free, total = c_size_t(), c_size_t()
    error = cuda.cuMemGetInfo_v2(byref(free), byref(total))
    assert cuda.cuDeviceTotalMem_v2(byref(total), 0) == 0
    return [error, total.value]


def before_init() -> list[int]:
    """What works before cuInit, and what does not: version, total, getproc, init, total."""
    cuda = ctypes.CDLL("libcuda.so.1")
    version, total, entry = c_int(), c_size_t(), c_void_p()
    answers = [cuda.cuDriverGetVersion(byref(version)), cuda.cuDeviceTotalMem_v2(byref(total), 0)]
    answers.append(cuda.cuGetProcAddress_v2(b"cuInit", byref(entry), 12000, c_uint64(0), None))
    answers += [cuda.cuInit(0), cuda.cuInit(0), cuda.cuDeviceTotalMem_v2(byref(total), 0), total.value]
    return answers


def pools_of(kind: int, location: int) -> list[int]:
    """The errors of each function that gives out pools, asked for this kind of memory at this kind of location."""
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    pool, at, properties = c_void_p(), (c_int * 2)(location), (c_int * 22)(kind, 0, location)
    return [
        cuda.cuMemPoolCreate(byref(pool), properties),
        cuda.cuMemGetDefaultMemPool(byref(pool), at, kind),
        cuda.cuMemGetMemPool(byref(pool), at, kind),
    ]


def contexts() -> list[int]:
    """Every way to make and end a context; the errors, and the contexts of the device that are left."""
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    made, flags, active = c_void_p(), c_uint(), c_int()
    errors = [cuda.cuDevicePrimaryCtxRetain(byref(made), 0) for _ in range(2)]
    for create in (cuda.cuCtxCreate_v2, cuda.cuCtxCreate):
        errors += [create(byref(made), 0, 1), cuda.cuCtxDestroy_v2(made)]
    errors += [cuda.cuCtxCreate_v3(byref(made), None, 0, 0, 1), cuda.cuCtxDestroy(made)]
    errors += [cuda.cuCtxCreate_v4(byref(made), None, 0, 1), cuda.cuCtxDestroy_v2(made)]
    errors += [cuda.cuCtxDestroy_v2(None), cuda.cuDevicePrimaryCtxRelease_v2(0), cuda.cuDevicePrimaryCtxReset_v2(0)]
    cuda.cuDevicePrimaryCtxGetState(0, byref(flags), byref(active))
    return [*errors, active.value]


def hold_memory(size: int) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    pointer = c_uint64()
    print(cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size)), flush=True)
    sys.stdin.read()


def nested_view() -> list[int]:
    """What a driver hears that asks itself through its exports, and what the program hears."""
    cuda = ctypes.CDLL("libcuda.so.1")
    heard = c_void_p()
    cuda.cuDevicePrimaryCtxRetain(byref(heard), 0)
    return [heard.value or 0, cuda_memory(cuda)[1]]
