"""A process in a container: does what argv[1] names with the arguments in argv[2], and prints what it heard, as JSON.

Runs in an environment of its own, with nothing on its path but the standard library. Libraries are opened as CUDA
programs do, by name. Stderr belongs to our library: nothing else may write there.
"""

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

Answer = Any


class Place(ctypes.Structure):
    """Dl_info."""

    _fields_ = (("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p), ("address", c_void_p))


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Memory2(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (("version", c_uint), *((name, c_ulonglong) for name in ("total", "reserved", "free", "used")))


DLADDR = ctypes.CDLL(None).dladdr
MEMORY_2 = ctypes.sizeof(Memory2) | 2 << 24


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


def called(*symbols: str) -> dict[str, list[int]]:
    """Calls each function without arguments; its answer, and how often the driver saw it."""
    cuda, real = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcuda-real.so.1")
    return {symbol: [getattr(cuda, symbol)(0, 0, 0, 0, 0), real.driver_calls(symbol.encode())] for symbol in symbols}


def called_unseen(*symbols: str) -> dict[str, int]:
    """The answer of functions that the driver lacks, called without arguments."""
    cuda = ctypes.CDLL("libcuda.so.1")
    return {symbol: getattr(cuda, symbol)(0, 0, 0, 0, 0) for symbol in symbols}


def same_addresses(first: str, second: str, symbol: str) -> bool:
    return address_of(ctypes.CDLL(first), symbol) == address_of(ctypes.CDLL(second), symbol)


# ---- cuGetProcAddress ----


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


# ---- memory as it is shown ----


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


def in_context(device: int, name: str, *args: Answer) -> Answer:
    """Another function, with the device's primary context current."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    cuda.cuInit(0)
    assert cuda.cuDevicePrimaryCtxRetain(byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return FUNCTIONS[name](*args)


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


def nvml_memory(nvml: ctypes.CDLL, index: int) -> dict[str, Answer]:
    device, first, second = c_void_p(), Memory(), Memory2(version=MEMORY_2)
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, byref(first)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo_v2(device, byref(second)) == 0
    wrong = Memory2(version=1)
    return {
        "v1": [first.total, first.free, first.used],
        "v2": [second.total, second.free, second.used],
        "reserved": second.reserved,
        "wrong version": nvml.nvmlDeviceGetMemoryInfo_v2(device, byref(wrong)),
    }


def shown_by_nvml(index: int = 0) -> dict[str, Answer]:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    return nvml_memory(nvml, index)


class Process1(ctypes.Structure):
    """nvmlProcessInfo_v1_t."""

    _fields_ = (("pid", c_uint), ("used", c_ulonglong))


class Process2(ctypes.Structure):
    """nvmlProcessInfo_v2_t and _v3_t."""

    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


def running(device: int, kind: str, suffix: str, room: int) -> Answer:
    """[error, count, [[pid, bytes], ...]] of one list, asked for with room for so many entries."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle, count = c_void_p(), c_uint(room)
    nvml.nvmlDeviceGetHandleByIndex_v2(device, byref(handle))
    entries = ((Process2 if suffix else Process1) * max(room, 1))()
    pointer = byref(entries) if room else None
    error = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{suffix}")(handle, byref(count), pointer)
    found = [[entry.pid, entry.used] for entry in entries[: count.value]] if error == 0 else []
    return [error, count.value, found]


class Detail(ctypes.Structure):
    """nvmlProcessDetail_v1_t."""

    _fields_ = (*Process2._fields_, ("protected", c_ulonglong))


class Details(ctypes.Structure):
    """nvmlProcessDetailList_v1_t."""

    _fields_ = (("version", c_uint), ("mode", c_uint), ("count", c_uint), ("entries", ctypes.POINTER(Detail)))


def details(room: int, version: int) -> Answer:
    """[error, count, [[pid, bytes], ...]] of the list that newer drivers have, for device 0."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle = c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle))
    entries = (Detail * max(room, 1))()
    asked = Details(ctypes.sizeof(Details) | version << 24, 0, room, entries if room else None)
    error = nvml.nvmlDeviceGetRunningProcessDetailList(handle, byref(asked))
    return [error, asked.count, [[entry.pid, entry.used] for entry in entries[: asked.count]] if error == 0 else []]


def memory_error() -> int:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    error: int = nvml.nvmlDeviceGetMemoryInfo_v2(None, byref(Memory2(version=MEMORY_2)))
    return error


def running_without_count(device: int) -> list[int]:
    """What is malformed: no place for the count, a count without a list."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle = c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(device, byref(handle))
    ask = nvml.nvmlDeviceGetComputeRunningProcesses_v3
    return [ask(handle, None, None), ask(handle, byref(c_uint(3)), None), ask(None, byref(c_uint(0)), None)]


def switches(device: int) -> dict[str, int]:
    """The answer of each function that switches something of the whole GPU, to what it is already."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle, ignored = c_void_p(), c_uint()
    nvml.nvmlDeviceGetHandleByIndex_v2(device, byref(handle))
    return {
        "compute mode": nvml.nvmlDeviceSetComputeMode(handle, 0),
        "persistence": nvml.nvmlDeviceSetPersistenceMode(handle, 0),
        "MIG": nvml.nvmlDeviceSetMigMode(handle, 0, byref(ignored)),
        "ECC": nvml.nvmlDeviceSetEccMode(handle, 0),
        "ECC counters": nvml.nvmlDeviceClearEccErrorCounts(handle, 0),
        "power": nvml.nvmlDeviceSetPowerManagementLimit(handle, 500_000),
        "of no device": nvml.nvmlDeviceSetComputeMode(None, 0),
    }


# ---- the state ----


def claim() -> Answer:
    """This process's slot, and its pid."""
    return [ctypes.CDLL("libvcuda.so.1").vcuda_slot_number(), os.getpid()]


def claim_as(uid: int) -> Answer:
    os.setgroups([])
    os.setuid(uid)
    return claim()


def claims_after_fork() -> Answer:
    """Slot and pid of a process and of its child, which is ended without any exit handler."""
    vcuda = ctypes.CDLL("libvcuda.so.1")
    before = [vcuda.vcuda_slot_number(), os.getpid()]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps([vcuda.vcuda_slot_number(), os.getpid()]).encode())
        os._exit(0)
    answer = json.loads(os.read(reader, 1000))
    os.waitpid(child, 0)
    return [before, answer, [vcuda.vcuda_slot_number(), os.getpid()]]


def claim_and_exec() -> Answer:
    """Claims a slot, then becomes another program that does."""
    ctypes.CDLL("libvcuda.so.1").vcuda_slot_number()
    os.execv(sys.executable, [sys.executable, __file__, "claim", "[]"])


def from_a_thread(name: str, *args: Answer) -> Answer:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(FUNCTIONS[name](*args)))
    thread.start()
    thread.join()
    return answers[0]


def in_order(*names: str) -> Answer:
    return [FUNCTIONS[name]() for name in names]


def claim_and_wait() -> None:
    print(json.dumps(claim()), flush=True)
    sys.stdin.readline()


def totals_while_told() -> None:
    """Prints the total that CUDA shows whenever it differs, until stdin ends; the helper thread is what notices."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    for total in changing(lambda: cuda_memory(cuda)[1]):
        print(json.dumps(total), flush=True)


def totals_until(last: int) -> None:
    """The same without a thread of Python's own, until it is the last."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, seen = c_void_p(), 0
    cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    while seen != last:
        now = cuda_memory(cuda)[1]
        if now != seen:
            print(json.dumps(now), flush=True)
        seen = now
        time.sleep(0.02)


def totals_of_nvml_while_told() -> None:
    """The same of a process that uses NVML alone and has no helper thread."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    for total in changing(lambda: nvml_memory(nvml, 0)["v1"][0]):
        print(json.dumps(total), flush=True)


def changing(read: Any) -> Iterator[int]:
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    last = None
    while not ended.is_set():
        now = read()
        if now != last:
            yield now
            last = now
        time.sleep(0.02)


def frees_while_told() -> None:
    """The free memory, likewise."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    for free in changing(lambda: cuda_memory(cuda)[0]):
        print(json.dumps(free), flush=True)


def blocked_signals() -> str:
    """The mask of the helper thread."""
    threads()
    (helper,) = (each for each in Path("/proc/self/task").iterdir() if (each / "comm").read_text() == "vcuda-helper\n")
    return next(line.split()[1] for line in (helper / "status").read_text().splitlines() if line.startswith("SigBlk"))


def threads_after_fork() -> Answer:
    before = threads()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(threads()).encode())
        os._exit(0)
    answer = json.loads(os.read(reader, 1000))
    os.waitpid(child, 0)
    return [before, answer]


def spawned() -> int:
    """The end of a program that is started the way that runs no fork handlers."""
    threads()
    return os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1])


def threads() -> list[str]:
    """The names of this process's threads after a context was made."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    names: list[str] = []
    deadline = time.monotonic() + 0.3  # a new thread gives itself its name
    while "vcuda-helper" not in names and time.monotonic() < deadline:
        names = sorted(task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
    return names


FUNCTIONS = {name: value for name, value in globals().items() if callable(value) and not isinstance(value, type)}

if __name__ == "__main__":
    answer = FUNCTIONS[sys.argv[1]](*json.loads(sys.argv[2]))
    if answer is not None:
        print(json.dumps(answer), flush=True)
