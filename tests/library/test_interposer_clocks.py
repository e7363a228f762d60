"""Processes of one container in different time namespaces: each writes the node's time into what they share."""

import struct
import subprocess
import sys
import time

import pytest

from deviceplugin.container import region
from tests.library.gpu_slice import GpuSlice
from tests.library.interposed import device
from tests.library.starting_line import line_of

NEAR_NS = 20 * 10**9
ROW_HEAD, WANTED_AT = 128, 64  # abi/activity.h

_FILLS = """
import ctypes, time
cuda, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
for _ in range(50):
    assert cuda.cuMemsetD8_v2(pointer, 0, ctypes.c_size_t(1 << 20)) == 0
    assert cuda.cuCtxSynchronize() == 0
    time.sleep(0.02)
print("done", flush=True)
time.sleep(60)
"""


def words(data: bytes, at: int, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{count}Q", data, at)


@pytest.mark.parametrize("ahead_s", [0, 100_000, -300])
def test_what_a_process_tells_others_is_of_the_nodes_clock(
    gpu_slice: GpuSlice, running: list[subprocess.Popen[str]], ahead_s: int
) -> None:
    """Of each time in the account and in the activity file: 100,000 seconds ahead it looked like a long idle time."""
    gpu_slice.container.grant(device(0, memory=gpu_slice.limit, cores=50), generation=2)
    there = ("unshare", "-r", "--time", "--monotonic", str(ahead_s)) if ahead_s else ()
    process = gpu_slice.container.start_program(*there, sys.executable, "-S", "-c", _FILLS)
    running.append(process)
    assert line_of(process) == "done\n"
    (path,) = (gpu_slice.container.base / "state").glob("*.activity")
    data, row, now = gpu_slice.container.region_file.read_bytes(), path.read_bytes(), time.monotonic_ns()
    told = {
        "claimed": words(data, region.SLOTS_AT + 24, 1)[0],
        "reaped": words(data, 56, 1)[0],
        "refilled": words(data, 128 + 24, 1)[0],
        "sampled": words(data, 128 + 88, 1)[0],
        "wanted": words(row, WANTED_AT, 1)[0],
        "heartbeat": words(row, ROW_HEAD, 1)[0],
        "stretch": words(row, ROW_HEAD + 64, 1)[0],
        "end of the stretch": words(row, ROW_HEAD + 72, 1)[0],
    }
    assert {name: ns for name, ns in told.items() if not now - NEAR_NS < ns <= now} == {}
