"""What NVML tells of each process's use of the GPU, for some seconds. Out: one line of JSON with the samples."""

import ctypes
import itertools
import json
import sys
import time
from ctypes import byref, c_uint, c_ulonglong
from typing import Any

from benchmarks.gpu.inside.driver_api import CudaError, Nvml

SECONDS = 3.0


class Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = [("pid", c_uint), ("time", c_ulonglong), *((name, c_uint) for name in ("sm", "memory", "enc", "dec"))]


def samples(nvml: Nvml, since: int) -> list[Sample]:
    count, room = c_uint(256), (Sample * 256)()
    try:
        nvml.do("nvmlDeviceGetProcessUtilization", nvml.device, room, byref(count), c_ulonglong(since))
    except CudaError as error:
        if error.code == 6:  # NVML_ERROR_NOT_FOUND: nothing new
            return []
        raise
    return list(room[: count.value])


def watch(uuid: str) -> dict[str, Any]:
    nvml, seen, end = Nvml(uuid), dict[tuple[int, int], int](), time.monotonic() + SECONDS
    while time.monotonic() < end:
        for sample in samples(nvml, 0):
            if sample.time:
                seen[sample.pid, sample.time] = sample.sm
        time.sleep(0.05)
    times = sorted({stamp for _, stamp in seen})
    gaps = sorted(b - a for a, b in itertools.pairwise(times))
    return {
        "samples": len(seen),
        "pids": sorted({pid for pid, _ in seen}),
        "period_ms": gaps[len(gaps) // 2] / 1000 if gaps else None,
        "sm_percent": sorted(seen.values())[len(seen) // 2] if seen else None,
    }


if __name__ == "__main__":
    try:
        print(json.dumps(watch(sys.argv[1])))
    except CudaError as error:
        print(json.dumps({"samples": 0, "error": str(error)}))
