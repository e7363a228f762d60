"""What a process in the container hears about memory and time; each way asked for by name. Out: one line of JSON."""

# mypy: disable-error-code="import-not-found"

import json
import sys
from ctypes import byref, c_size_t, c_uint
from typing import Any

from benchmarks.gpu.inside.driver_api import MIB, Cuda, Nvml

STEPS = (64 * MIB, 256 * MIB, 2 * MIB, 1024 * MIB)


def cuda(_uuid: str) -> dict[str, Any]:
    """[free, total, bytes allocated just before] each."""
    api, total = Cuda(), c_size_t()
    device = api.start()
    api.do("cuDeviceTotalMem_v2", byref(total), device)
    steps = [(*api.memory(), 0)]
    for size in STEPS:
        api.allocate(size)
        steps.append((*api.memory(), size))
    return {"device_total": total.value, "steps": steps}


def nvml(uuid: str) -> dict[str, Any]:
    api = Cuda()
    api.start()
    api.allocate(512 * MIB)
    free, total = api.memory()
    library = Nvml(uuid)
    first, second = library.memory(), library.memory2()
    views = {"v1": first, "v2": second}
    printed: dict[str, Any] = {
        name: {"total": view.total, "free": view.free, "used": view.used} for name, view in views.items()
    }
    return printed | {"cuda": {"total": total, "free": free, "used": total - free}}


def pynvml(uuid: str) -> dict[str, Any]:
    import pynvml as library

    library.nvmlInit()
    return {"total": library.nvmlDeviceGetMemoryInfo(library.nvmlDeviceGetHandleByUUID(uuid)).total}


def utilization(uuid: str) -> dict[str, Any]:
    """NVML's percent of time in which the GPU and its memory were busy."""
    library, rates = Nvml(uuid), (c_uint * 2)()
    library.do("nvmlDeviceGetUtilizationRates", library.device, byref(rates))
    return {"gpu": rates[0], "memory": rates[1]}


def torch(_uuid: str) -> dict[str, Any]:
    import torch as library

    library.zeros(1, device="cuda")
    free, total = library.cuda.mem_get_info()
    return {"free": free, "total": total}


def cupy(_uuid: str) -> dict[str, Any]:
    import cupy as library

    free, total = library.cuda.runtime.memGetInfo()
    return {"free": free, "total": total}


if __name__ == "__main__":
    views = {each.__name__: each for each in (cuda, nvml, utilization, pynvml, torch, cupy)}
    print(json.dumps(views[sys.argv[1]](sys.argv[2])))
