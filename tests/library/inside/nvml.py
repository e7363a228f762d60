"""What NVML shows: memory, processes, switches. Through C structs, because every generation of them is asked for."""

import ctypes
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from typing import Any

Answer = Any


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Memory2(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (("version", c_uint), *((name, c_ulonglong) for name in ("total", "reserved", "free", "used")))


MEMORY_2 = ctypes.sizeof(Memory2) | 2 << 24


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


class Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = (
        ("pid", c_uint),
        ("time", c_ulonglong),
        *((name, c_uint) for name in ("sm", "memory", "encoder", "decoder")),
    )


class Utilization(ctypes.Structure):
    """nvmlProcessUtilizationInfo_v1_t."""

    _fields_ = (
        ("time", c_ulonglong),
        *((name, c_uint) for name in ("pid", "sm", "memory", "encoder", "decoder", "jpeg", "ofa")),
    )


class Utilizations(ctypes.Structure):
    """nvmlProcessesUtilizationInfo_v1_t."""

    _fields_ = (
        ("version", c_uint),
        ("count", c_uint),
        ("last_seen", c_ulonglong),
        ("entries", ctypes.POINTER(Utilization)),
    )


def loads(device: int, function: str, room: int, version: int = 1) -> Answer:
    """[error, count, [[pid, percent], ...]] of one of the two functions; with no room: their number is asked for."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle = c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(device, byref(handle))
    if function == "nvmlDeviceGetProcessUtilization":
        count, samples = c_uint(room), (Sample * max(room, 1))()
        error = nvml[function](handle, samples if room else None, byref(count), c_ulonglong(0))
        return [error, count.value, [[each.pid, each.sm] for each in samples[: count.value]] if error == 0 else []]
    entries = (Utilization * max(room, 1))()
    asked = Utilizations(ctypes.sizeof(Utilizations) | version << 24, room, 0, entries if room else None)
    error = nvml[function](handle, byref(asked))
    return [error, asked.count, [[each.pid, each.sm] for each in entries[: asked.count]] if error == 0 else []]


def loads_without_count(device: int) -> list[int]:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle = c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(device, byref(handle))
    return [
        nvml.nvmlDeviceGetProcessUtilization(handle, None, None, c_ulonglong(0)),
        nvml.nvmlDeviceGetProcessesUtilizationInfo(handle, None),
    ]


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


class Value(ctypes.Structure):
    """nvmlSample_t with an unsigned int."""

    _fields_ = (("time", c_ulonglong), ("value", c_uint), ("rest", c_uint))


def utilization(device: int) -> Answer:
    """[error, gpu, memory]"""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle, rates = c_void_p(), (c_uint * 2)()
    nvml.nvmlDeviceGetHandleByIndex_v2(device, byref(handle))
    return [nvml.nvmlDeviceGetUtilizationRates(handle, byref(rates)), *rates]


def samples(device: int, kind: int, room: int) -> Answer:
    """[error, count, [value, ...], [time, ...]]; with no room: their number is asked for."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle, count, value_type, found = c_void_p(), c_uint(room), c_uint(), (Value * max(room, 1))()
    nvml.nvmlDeviceGetHandleByIndex_v2(device, byref(handle))
    ask = nvml.nvmlDeviceGetSamples
    error = ask(handle, kind, c_ulonglong(0), byref(value_type), byref(count), byref(found) if room else None)
    got = found[: count.value] if room and error == 0 else []
    return [error, count.value, [each.value for each in got], [each.time for each in got]]


def utilization_malformed() -> list[int]:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle, rates = c_void_p(), (c_uint * 2)()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle))
    ask = nvml.nvmlDeviceGetSamples
    return [
        nvml.nvmlDeviceGetUtilizationRates(handle, None),
        nvml.nvmlDeviceGetUtilizationRates(None, byref(rates)),
        ask(handle, 1, c_ulonglong(0), None, byref(c_uint(1)), None),
    ]


def accounted(room: int) -> Answer:
    """[error, count, [pid, ...]] of the processes that accounting knows on device 0."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle, count, pids = c_void_p(), c_uint(room), (c_uint * max(room, 1))()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle))
    error = nvml.nvmlDeviceGetAccountingPids(handle, byref(count), byref(pids) if room else None)
    return [error, count.value, list(pids[: count.value]) if error == 0 else []]


def accounted_for(pid: int) -> Answer:
    """For both generations: the error, and whether anything of the process was told."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle, first, second = c_void_p(), (c_uint * 16)(), (c_uint * 16)(pid)
    nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle))
    old = nvml.nvmlDeviceGetAccountingStats(handle, pid, byref(first))
    new = nvml.nvmlDeviceGetAccountingStats_v2(handle, byref(second))
    return [[old, any(first)], [new, any(second[1:])]]


def domains() -> Answer:
    """[error, percent of each domain of device 0], and the error where there is no place for them."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle, info = c_void_p(), (c_uint * 33)()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle))
    ask = nvml.nvmlDeviceGetDynamicPstatesInfo
    return [ask(handle, byref(info)), list(info[2::4]), ask(handle, None)]


def settings(*functions: str) -> dict[str, int]:
    """The answer of each function that sets something of device 0, with zeros for what is to be set."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    handle = c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle))
    return {name: nvml[name](handle, 0, 0) for name in functions}
