"""Contexts under a memory limit: made while there is room for what the driver takes for them, as on a small GPU."""

import time

import pytest

from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.memory_client import MIB, OUT_OF_MEMORY, Cuda, pointer_to, pool_properties, room

KEEP, EVERYTHING = 4, (1 << 64) - 1  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD

WAYS: dict[str, list[int | None]] = {
    "cuDevicePrimaryCtxRetain": [0],
    "cuCtxCreate": [0, 0],
    "cuCtxCreate_v2": [0, 0],
    "cuCtxCreate_v3": [None, 0, 0, 0],
    "cuCtxCreate_v4": [None, 0, 0],
    "cuGreenCtxCreate": [None, 0, 1],
}


def newcomer(gpu_slice: GpuSlice) -> Cuda:
    """A process without a context."""
    cuda = gpu_slice.start(context=False)
    cuda("cuInit", 0)
    return cuda


@pytest.mark.parametrize("way", WAYS)
def test_a_full_container_has_no_room_for_another_context(gpu_slice: GpuSlice, way: str) -> None:
    holder, late = gpu_slice.start(), newcomer(gpu_slice)
    rest = holder.alloc(gpu_slice.room - 10 * CONTEXT // 8)
    half = holder.alloc(CONTEXT)
    assert late.code(way, room(8), *WAYS[way]) == OUT_OF_MEMORY
    assert gpu_slice.counters().refusals == 1
    assert gpu_slice.total() <= gpu_slice.limit
    assert gpu_slice.use(late).pending == 0
    holder.free(half)
    late(way, room(8), *WAYS[way])
    assert gpu_slice.use(late).overhead == CONTEXT
    holder.free(rest)
    assert gpu_slice.counters().peak <= gpu_slice.limit


@pytest.mark.parametrize("way", [way for way in WAYS if way.startswith("cuCtx")])
def test_a_full_process_has_no_room_for_another_context(gpu_slice: GpuSlice, user: Cuda, way: str) -> None:
    rest = user.alloc(gpu_slice.room)
    assert user.code(way, room(8), *WAYS[way]) == OUT_OF_MEMORY
    assert gpu_slice.use(user).pending == 0
    user.free(rest)
    user(way, room(8), *WAYS[way])
    assert user.left() == gpu_slice.room - CONTEXT // 4


@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("cuCtx")])
def test_a_primary_context_that_exists_needs_no_room(gpu_slice: GpuSlice, user: Cuda, way: str) -> None:
    user.alloc(gpu_slice.room)
    user(way, room(8), *WAYS[way])
    assert gpu_slice.counters().refusals == 0


def test_the_only_process_gets_its_context_whatever_the_limit(gpu_slice: GpuSlice) -> None:
    gpu_slice.change_limit(CONTEXT // 2, 2)
    first, second = newcomer(gpu_slice), newcomer(gpu_slice)
    first.get("cuDevicePrimaryCtxRetain", 0)
    assert second.code("cuDevicePrimaryCtxRetain", room(8), 0) == OUT_OF_MEMORY
    first("cuDevicePrimaryCtxRelease_v2", 0)
    assert eventually(lambda: gpu_slice.total() == 0)
    second.get("cuDevicePrimaryCtxRetain", 0)


def test_ended_processes_block_no_other(gpu_slice: GpuSlice) -> None:
    holder, late = gpu_slice.start(), newcomer(gpu_slice)
    holder.alloc(gpu_slice.room)
    assert late.code("cuDevicePrimaryCtxRetain", room(8), 0) == OUT_OF_MEMORY
    holder.kill()
    late.get("cuDevicePrimaryCtxRetain", 0)


def test_what_pools_keep_unused_is_given_back_for_a_context(gpu_slice: GpuSlice, user: Cuda) -> None:
    pool = user.get("cuMemPoolCreate", pointer_to(pool_properties()))
    user.set_attribute(pool, KEEP, EVERYTHING)
    user.free_async(user.get("cuMemAllocFromPoolAsync", gpu_slice.room, pool, 0))
    user.synchronize()
    user("cuDevicePrimaryCtxRelease_v2", 0)
    assert eventually(lambda: gpu_slice.total() == gpu_slice.room)
    gpu_slice.start()
    user.begin()
    assert eventually(lambda: gpu_slice.total() == 2 * CONTEXT)


def test_of_many_that_begin_at_once_as_many_as_fit_get_a_context(gpu_slice: GpuSlice) -> None:
    gpu_slice.change_limit(3 * CONTEXT + MIB, 2)
    racers = [newcomer(gpu_slice) for _ in range(6)]
    begin = time.monotonic()
    for racer in racers:
        racer.tell(call="cuDevicePrimaryCtxRetain", args=[room(8), 0])
    codes = [int(racer.listen()["code"]) for racer in racers]
    assert sorted(codes) == [0, 0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY, OUT_OF_MEMORY]
    assert time.monotonic() - begin < 8
    assert gpu_slice.total() == 3 * CONTEXT
    for racer, code in zip(racers, codes, strict=True):
        assert (racer.code("cuDevicePrimaryCtxRetain", room(8), 0) == 0) == (code == 0)


def test_a_context_that_the_driver_refuses_reserves_nothing(gpu_slice: GpuSlice) -> None:
    gpu_slice.start()
    cuda = newcomer(gpu_slice)
    assert cuda.code("cuCtxCreate_v2", room(8), 1 << 30, 0) != 0
    assert (gpu_slice.total(), gpu_slice.counters().refusals) == (CONTEXT, 0)


# ---- green contexts: a share of the multiprocessors, and no memory of their own ----


def green(cuda: Cuda, device: int = 0) -> tuple[int, int]:
    """With the context that stands for it."""
    made = cuda.get("cuGreenCtxCreate", None, device, 1)
    return made, cuda.get("cuCtxFromGreenCtx", made)


def test_what_is_allocated_in_a_green_context_is_its_devices(gpu_slice: GpuSlice) -> None:
    user = gpu_slice.start_beside_another()
    _, context = green(user)
    user("cuCtxSetCurrent", context)
    pointer = user.alloc(32 * MIB)
    assert user.code("cuMemAlloc_v2", room(8), gpu_slice.room) == OUT_OF_MEMORY
    user.free_async(user.alloc_async(32 * MIB))
    user.free(pointer)
    _, elsewhere = green(user, 1)
    user("cuCtxSetCurrent", elsewhere)
    user.alloc(gpu_slice.limit)  # without a limit
    user("cuMemPoolTrimTo", user.pool(), 0)
    assert gpu_slice.used() == 0


def test_memory_outlives_a_green_context_and_ends_with_the_primary_one(gpu_slice: GpuSlice, user: Cuda) -> None:
    made, context = green(user)
    user("cuCtxSetCurrent", context)
    first, _ = user.alloc(32 * MIB), user.alloc(16 * MIB)
    user("cuCtxSetCurrent", user.get("cuDevicePrimaryCtxRetain", 0))
    user("cuGreenCtxDestroy", made)
    assert gpu_slice.used() == 48 * MIB
    user.free(first)
    assert gpu_slice.used() == 16 * MIB
    user("cuDevicePrimaryCtxReset_v2", 0)
    assert gpu_slice.used() == 0


def test_the_last_green_context_ends_what_the_primary_one_holds(gpu_slice: GpuSlice) -> None:
    cuda = newcomer(gpu_slice)
    made, context = green(cuda)
    cuda("cuCtxSetCurrent", context)
    cuda.alloc(32 * MIB)
    assert gpu_slice.total() == CONTEXT + 32 * MIB
    cuda("cuGreenCtxDestroy", made)
    assert gpu_slice.used() == 0
    assert eventually(lambda: gpu_slice.total() == 0)
