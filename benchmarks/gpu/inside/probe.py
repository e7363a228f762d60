"""What driver the loader finds and which GPUs it has, as a line of JSON; if none, a sentence on stderr and status 1."""

import json
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, create_string_buffer
from pathlib import Path
from typing import Any

from benchmarks.gpu.inside.driver_api import Cuda, CudaError, Nvml, uuid_text


def loaded(name: str) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = line.split(maxsplit=5)[5] if line.count(" ") >= 5 and "/" in line else ""
        if Path(file).name.startswith(name):
            return str(Path(file).resolve())
    raise OSError(f"{name} is loaded from nowhere")


def device(cuda: Cuda, ordinal: int) -> dict[str, Any]:
    number, name, bus, total = c_int(), create_string_buffer(96), create_string_buffer(32), c_size_t()
    raw = create_string_buffer(16)
    cuda.do("cuDeviceGet", byref(number), ordinal)
    cuda.do("cuDeviceGetName", name, 96, number)
    cuda.do("cuDeviceGetPCIBusId", bus, 32, number)
    cuda.do("cuDeviceGetUuid", raw, number)
    cuda.do("cuDeviceTotalMem_v2", byref(total), number)
    bus_id = f"0000{bus.value.decode()}" if len(bus.value) == 12 else bus.value.decode()
    return {"uuid": uuid_text(raw.raw), "bus_id": bus_id, "name": name.value.decode(), "memory": total.value}


def describe() -> dict[str, Any]:
    cuda, count, version = Cuda(), c_int(), c_int()
    cuda.do("cuInit", 0)
    cuda.do("cuDeviceGetCount", byref(count))
    cuda.do("cuDriverGetVersion", byref(version))
    if count.value == 0:
        raise OSError("the driver has no GPU")
    devices = [device(cuda, ordinal) for ordinal in range(count.value)]
    nvml, text = Nvml(devices[0]["uuid"]), create_string_buffer(96)
    nvml.do("nvmlSystemGetDriverVersion", text, 96)
    if "libvcuda" in Path("/proc/self/maps").read_text():
        raise OSError("libcuda.so.1 is vcuda's already: run this outside of its containers")
    return {
        "cuda": loaded("libcuda.so"),
        "nvml": loaded("libnvidia-ml.so"),
        "version": c_char_p(text.value).value.decode(),  # type: ignore[union-attr]
        "cuda_version": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "devices": devices,
    }


if __name__ == "__main__":
    try:
        print(json.dumps(describe()))
    except (OSError, CudaError, AttributeError) as error:
        sys.exit(f"no driver can be used: {error}")
