"""What the driver holds beyond what it was asked for: contexts, modules, slabs. It counts without a request."""

import sys

import pytest

from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.interposed import GIB
from tests.library.memory_client import KIB, MIB, OUT_OF_MEMORY, UNIT, Cuda, pointer_to, room

GUESS = 256 * MIB


def overhead(gpu_slice: GpuSlice, cuda: Cuda) -> int:
    return gpu_slice.use(cuda).overhead


def module(size: int) -> bytes:
    head = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing (\n)\n{\nret;\n}\n//"
    return head.encode().ljust(size, b"x") + b"\n\0"


def test_a_context_counts_and_what_is_free_says_so(gpu_slice: GpuSlice, user: Cuda) -> None:
    assert (user.left(), user.total()) == (gpu_slice.room, gpu_slice.limit)
    user.alloc(gpu_slice.room - UNIT)
    assert user.left() == UNIT


@pytest.mark.parametrize("ask", ["what is free", "everything"])
def test_a_new_context_is_counted_before_anything_is_given_out(gpu_slice: GpuSlice, ask: str) -> None:
    """Programs ask what is free, or take it all, as soon as they have a context."""
    cuda = gpu_slice.start(context=False)
    for _ in range(3):
        cuda.begin()
        if ask == "what is free":
            assert cuda.left() == gpu_slice.room
        assert cuda.code("cuMemAlloc_v2", room(8), gpu_slice.room + UNIT) == OUT_OF_MEMORY
        cuda("cuDevicePrimaryCtxRelease_v2", 0)


def test_a_context_that_does_not_fit_is_made_and_nothing_else_is(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start(context=False, VCUDA_EMULATOR_CONTEXT_MIB="1024")
    cuda.begin()
    assert eventually(lambda: overhead(gpu_slice, cuda) == GIB)
    assert cuda.left() == 0
    for name in ("cuMemAlloc_v2", "cuMemAllocAsync"):
        assert cuda.code(name, room(8), 1, 0) == OUT_OF_MEMORY
    assert gpu_slice.errors.read_text() == ""


def test_a_module_counts_while_it_is_loaded(gpu_slice: GpuSlice, user: Cuda) -> None:
    loaded = user.get("cuModuleLoadData", pointer_to(module(5 * MIB)))
    assert eventually(lambda: overhead(gpu_slice, user) > CONTEXT)
    user("cuModuleUnload", loaded)
    assert eventually(lambda: overhead(gpu_slice, user) == CONTEXT)


def test_a_module_is_charged_at_the_next_query(gpu_slice: GpuSlice) -> None:
    cuda, size = gpu_slice.start(), 5 * MIB
    before = cuda.left()
    cuda("cuModuleLoadData", room(8), pointer_to(module(size)))
    assert cuda.code("cuMemAlloc_v2", room(8), before - size) == OUT_OF_MEMORY
    cuda("cuModuleLoadData", room(8), pointer_to(module(size)))
    assert cuda.left() <= before - 2 * size


def test_the_slab_that_small_allocations_share_counts(gpu_slice: GpuSlice, user: Cuda) -> None:
    pointer = user.alloc(KIB)
    assert eventually(lambda: gpu_slice.total() == CONTEXT + UNIT)
    assert gpu_slice.used() == KIB
    user.free(pointer)
    assert eventually(lambda: gpu_slice.total() == CONTEXT)


def test_contexts_end_and_give_their_memory_back(gpu_slice: GpuSlice, user: Cuda) -> None:
    second = user.get("cuCtxCreate_v2", 0, 0)
    user("cuCtxDestroy_v2", second)
    user("cuDevicePrimaryCtxRelease_v2", 0)
    assert eventually(lambda: overhead(gpu_slice, user) == 0)


def test_allocating_meanwhile_does_not_lower_it(gpu_slice: GpuSlice, user: Cuda) -> None:
    for _ in range(300):
        user.free(user.alloc(gpu_slice.room))
        assert overhead(gpu_slice, user) == CONTEXT
    assert gpu_slice.counters().refusals == 0


def test_managed_memory_that_is_on_the_host_does_not_hide_the_context(gpu_slice: GpuSlice, user: Cuda) -> None:
    user.get("cuMemAllocManaged", gpu_slice.room, 1)
    assert not eventually(lambda: overhead(gpu_slice, user) < CONTEXT, within=1.3)
    assert user.code("cuMemAlloc_v2", room(8), UNIT) == OUT_OF_MEMORY


@pytest.mark.parametrize("gone", ["libnvidia-ml.so.1", "libnvidia-ml-real.so.1"])
def test_without_nvml_a_context_is_guessed(gpu_slice: GpuSlice, gone: str) -> None:
    (gpu_slice.container.driver / gone).unlink()
    cuda = gpu_slice.start(context=False)
    cuda.begin()
    assert eventually(lambda: overhead(gpu_slice, cuda) == GUESS)
    cuda.alloc(gpu_slice.limit - GUESS)
    assert cuda.code("cuMemAlloc_v2", room(8), UNIT) == OUT_OF_MEMORY
    assert gpu_slice.errors.read_text() == ""


_OPENS_NVML_LATER = """
import ctypes, json, time
cuda = ctypes.CDLL("libcuda.so.1")
context, total, free = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
deadline = time.monotonic() + 5
while "nvidia-ml-real" not in open("/proc/self/maps").read() and "libnvidia-ml" not in open("/proc/self/maps").read():
    assert time.monotonic() < deadline
    time.sleep(0.005)
nvml, device, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(json.dumps([list(memory), [total.value, free.value]]))
"""


def test_nvml_that_is_opened_later_is_the_interposer(gpu_slice: GpuSlice) -> None:
    with gpu_slice.container.start_program(sys.executable, "-c", _OPENS_NVML_LATER) as process:
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert out.startswith(f"[[{gpu_slice.limit}, ")
