"""The primary context as NVIDIA's runtime takes it, reset and taken again with memory in it each time.

    python -m benchmarks.gpu.inside.runtime_context MIB

Out: as native/primary.c, one line of JSON: how many of the allocations were refused, and, once the driver's figures
have had time to arrive, what cudaMemGetInfo says is used. Then it waits for the end of stdin. `cannot` in its place:
there is no libcudart that runs on this driver.
"""

import ctypes
import json
import sys
import time
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path

from benchmarks.gpu.inside.driver_api import MIB, CudaError

NAMES = ("libcudart.so.13", "libcudart.so.12")
DRIVER_TOO_OLD = 35
ROUNDS, SETTLED_S = 5, 2.0


def runtime() -> ctypes.CDLL | None:
    """The loader's, or that of a package, such as PyTorch brings: the first that the driver is new enough for."""
    packaged = [str(file) for name in NAMES for place in sys.path for file in Path(place).glob(f"nvidia/*/lib/{name}")]
    for file in (*NAMES, *packaged):
        try:
            found = ctypes.CDLL(file)
        except OSError:
            continue
        if found.cudaSetDevice(0) != DRIVER_TOO_OLD:
            return found
    return None


def do(found: ctypes.CDLL, call: str, *arguments: object) -> None:
    code = int(getattr(found, call)(*arguments))
    if code != 0:
        raise CudaError(call, code)


def refused(found: ctypes.CDLL, size: int) -> bool:
    """Takes the context and so much memory in it."""
    do(found, "cudaSetDevice", 0)
    return bool(found.cudaMalloc(byref(c_void_p()), c_size_t(size)))


def resets(found: ctypes.CDLL, size: int) -> dict[str, int]:
    count, free, total = 0, c_size_t(), c_size_t()
    for _ in range(ROUNDS):
        count += refused(found, size)
        do(found, "cudaDeviceReset")
    count += refused(found, size)
    time.sleep(SETTLED_S)
    do(found, "cudaMemGetInfo", byref(free), byref(total))
    return {"refused": count, "used": total.value - free.value}


if __name__ == "__main__":
    library = runtime()
    if library is None:
        print(json.dumps({"cannot": f"no {' or '.join(NAMES)} that runs on this driver"}), flush=True)
    else:
        print(json.dumps(resets(library, int(sys.argv[1]) * MIB)), flush=True)
        sys.stdin.read()
