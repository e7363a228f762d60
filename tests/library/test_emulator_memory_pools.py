"""Stream-ordered memory: what a pool holds, gives again, and gives back."""

import struct
from itertools import pairwise

import pytest

from tests.library.machine import Machine
from tests.library.memory_client import (
    CAPACITY,
    DEVICE,
    FABRIC,
    HOST,
    HOST_NUMA_CURRENT,
    INVALID_DEVICE,
    INVALID_VALUE,
    KIB,
    MANAGED,
    MIB,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    PINNED,
    POSIX_FD,
    READ_WRITE,
    RELEASE_THRESHOLD,
    RESERVED,
    RESERVED_HIGH,
    UNIT,
    USED,
    USED_HIGH,
    Cuda,
    access,
    location,
    pointer_to,
    pool_properties,
    room,
    start,
)

pytestmark = pytest.mark.thorough

_STEP = 32 * MIB
_KEEP_ALL = (1 << 64) - 1


def _levels(cuda: Cuda, pool: int) -> tuple[int, int, int, int]:
    """reserved, its high, used, its high."""
    reserved, used = cuda.attribute(pool, RESERVED), cuda.attribute(pool, USED)
    return reserved, cuda.attribute(pool, RESERVED_HIGH), used, cuda.attribute(pool, USED_HIGH)


def _pool(cuda: Cuda, **properties: int) -> int:
    return cuda.get("cuMemPoolCreate", pointer_to(pool_properties(**properties)))


@pytest.mark.parametrize(
    ("size", "reserved"), [(1, _STEP), (_STEP, _STEP), (_STEP + 1, 2 * _STEP), (100 * MIB, 4 * _STEP)]
)
def test_a_pool_grows_in_steps(cuda: Cuda, size: int, reserved: int) -> None:
    pool = cuda.pool()
    pointer = cuda.alloc_async(size)
    assert pointer % 512 == 0
    used = (size + 511) // 512 * 512
    assert _levels(cuda, pool) == (reserved, reserved, used, used)
    assert CAPACITY - cuda.left() == reserved


def test_near_the_end_of_the_gpu_a_pool_takes_what_it_needs_and_no_more(cuda: Cuda) -> None:
    cuda.alloc(CAPACITY - 10 * MIB)
    cuda.alloc_async(9 * MIB)
    assert cuda.left() == 0
    assert cuda.code("cuMemAllocAsync", room(8), 2 * MIB, 0) == OUT_OF_MEMORY


def test_what_was_freed_is_used_again_at_once_in_its_stream(cuda: Cuda) -> None:
    stream = cuda.stream()
    first = cuda.alloc_async(20 * MIB, stream)
    cuda.occupy(stream, 200)
    cuda.free_async(first, stream)
    assert cuda.alloc_async(20 * MIB, stream) == first
    assert cuda.attribute(cuda.pool(), RESERVED) == _STEP


def test_another_stream_follows_the_free_rather_than_growing_the_pool(cuda: Cuda) -> None:
    busy, other = cuda.stream(), cuda.stream()
    first = cuda.alloc_async(20 * MIB, busy)
    cuda.occupy(busy, 200)
    cuda.free_async(first, busy)
    second = cuda.alloc_async(20 * MIB, other)
    assert second == first
    cuda("cuStreamSynchronize", other)
    assert cuda.code("cuStreamQuery", busy) == 0


def test_without_dependencies_of_its_own_the_pool_grows_instead(cuda: Cuda) -> None:
    pool, busy, other = cuda.pool(), cuda.stream(), cuda.stream()
    cuda("cuMemPoolSetAttribute", pool, 3, pointer_to(struct.pack("i", 0)))
    first = cuda.alloc_async(20 * MIB, busy)
    cuda.occupy(busy, 200)
    cuda.free_async(first, busy)
    assert cuda.alloc_async(20 * MIB, other) != first
    assert cuda.attribute(pool, RESERVED) == 2 * _STEP


@pytest.mark.parametrize("wait", ["context", "stream", "event"])
def test_at_a_synchronisation_everything_above_the_threshold_goes_back(cuda: Cuda, wait: str) -> None:
    stream, event, pool = cuda.stream(), cuda.get("cuEventCreate", 0), cuda.pool()
    pointer = cuda.alloc_async(MIB, stream)
    cuda.free_async(pointer, stream)
    cuda("cuEventRecord", event, stream)
    assert CAPACITY - cuda.left() == _STEP
    calls: dict[str, tuple[str, int]] = {
        "context": ("cuCtxSynchronize", 0),
        "stream": ("cuStreamSynchronize", stream),
        "event": ("cuEventSynchronize", event),
    }
    cuda(*calls[wait])
    assert cuda.left() == CAPACITY
    assert _levels(cuda, pool) == (0, _STEP, 0, MIB)


def test_up_to_the_threshold_memory_is_held(cuda: Cuda) -> None:
    pool = cuda.pool()
    cuda.set_attribute(pool, RELEASE_THRESHOLD, 2 * _STEP)
    pointers = [cuda.alloc_async(_STEP) for _ in range(4)]
    for pointer in pointers:
        cuda.free_async(pointer)
    cuda.synchronize()
    assert cuda.attribute(pool, RESERVED) == 2 * _STEP
    cuda.set_attribute(pool, RELEASE_THRESHOLD, _KEEP_ALL)
    pointers = [cuda.alloc_async(_STEP) for _ in range(4)]
    for pointer in pointers:
        cuda.free_async(pointer)
    cuda.synchronize()
    assert cuda.attribute(pool, RESERVED) == 4 * _STEP
    cuda.set_attribute(pool, RELEASE_THRESHOLD, _STEP)
    cuda.synchronize()
    assert cuda.attribute(pool, RESERVED) == _STEP


def test_a_chunk_that_is_larger_than_the_threshold_goes_back_whole(cuda: Cuda) -> None:
    pool = cuda.pool()
    cuda.set_attribute(pool, RELEASE_THRESHOLD, _STEP)
    cuda.free_async(cuda.alloc_async(100 * MIB))
    cuda.synchronize()
    assert cuda.attribute(pool, RESERVED) == 0


def test_trimming_keeps_at_least_the_given_size(cuda: Cuda) -> None:
    pool = cuda.pool()
    cuda.set_attribute(pool, RELEASE_THRESHOLD, _KEEP_ALL)
    pointers = [cuda.alloc_async(_STEP) for _ in range(4)]
    for pointer in pointers[1:]:
        cuda.free_async(pointer)
    cuda.synchronize()
    for keep, left in [(4 * _STEP, 4), (3 * _STEP - 1, 3), (2 * _STEP, 2), (0, 1)]:
        cuda("cuMemPoolTrimTo", pool, keep)
        assert cuda.attribute(pool, RESERVED) == left * _STEP, keep
    assert CAPACITY - cuda.left() == _STEP


def test_what_the_gpu_has_not_passed_yet_is_not_trimmed(cuda: Cuda) -> None:
    pool, stream = cuda.pool(), cuda.stream()
    pointer = cuda.alloc_async(MIB, stream)
    cuda.occupy(stream, 200)
    cuda.free_async(pointer, stream)
    cuda("cuMemPoolTrimTo", pool, 0)
    assert cuda.attribute(pool, RESERVED) == _STEP
    cuda("cuStreamSynchronize", stream)
    assert cuda.attribute(pool, RESERVED) == 0


def test_high_watermarks_are_reset_to_zero_and_to_nothing_else(cuda: Cuda) -> None:
    pool = cuda.pool()
    cuda.free_async(cuda.alloc_async(40 * MIB))
    cuda.synchronize()
    assert _levels(cuda, pool) == (0, 2 * _STEP, 0, 40 * MIB)
    for which in (RESERVED_HIGH, USED_HIGH):
        assert cuda.code("cuMemPoolSetAttribute", pool, which, pointer_to(struct.pack("Q", 5))) == INVALID_VALUE
        cuda.set_attribute(pool, which, 0)
    assert _levels(cuda, pool) == (0, 0, 0, 0)
    for which in (RESERVED, USED, 99):
        assert cuda.code("cuMemPoolSetAttribute", pool, which, pointer_to(bytes(8))) == INVALID_VALUE
    assert cuda.code("cuMemPoolGetAttribute", pool, 99, room(8)) == INVALID_VALUE


def test_cu_mem_free_takes_pooled_memory_too(cuda: Cuda) -> None:
    pointer = cuda.alloc_async(1000)
    cuda.free(pointer)
    assert cuda.attribute(cuda.pool(), USED) == 0
    assert cuda.code("cuMemFreeAsync", pointer, 0) == INVALID_VALUE


def test_plain_memory_cannot_be_freed_in_a_stream(cuda: Cuda) -> None:
    pointer = cuda.alloc(1000)
    assert cuda.code("cuMemFreeAsync", pointer, 0) == INVALID_VALUE
    cuda.free(pointer)


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_pooled_memory_holds_bytes(cuda: Cuda, suffix: str) -> None:
    stream = cuda.stream()
    pointer = cuda.get("cuMemAllocAsync" + suffix, 5000, stream)
    cuda("cuMemcpyHtoDAsync_v2" + suffix, pointer + 4990, pointer_to(b"last bytes"), 10, stream)
    assert cuda.read(pointer + 4990, 10) == b"last bytes"
    assert cuda.code("cuMemcpyDtoH_v2", room(11), pointer + 4990, 11) == INVALID_VALUE
    cuda("cuMemFreeAsync" + suffix, pointer, stream)
    assert cuda.code("cuMemAllocAsync" + suffix, room(8), 0, stream) == INVALID_VALUE
    assert cuda.code("cuMemAllocAsync" + suffix, None, 1, stream) == INVALID_VALUE


def test_a_pool_of_ones_own_lives_until_its_last_allocation(cuda: Cuda) -> None:
    pool = _pool(cuda)
    pointer = cuda.get("cuMemAllocFromPoolAsync", 1000, pool, 0)
    cuda("cuMemPoolDestroy", pool)
    assert cuda.code("cuMemAllocFromPoolAsync", room(8), 1, pool, 0) == INVALID_VALUE
    assert CAPACITY - cuda.left() == _STEP
    cuda.write(pointer, b"alive")
    cuda.free_async(pointer)
    cuda.synchronize()
    assert cuda.left() == CAPACITY


def test_a_pool_does_not_exceed_its_greatest_size(cuda: Cuda) -> None:
    pool = _pool(cuda, most=40 * MIB)
    first = cuda.get("cuMemAllocFromPoolAsync", 30 * MIB, pool, 0)
    cuda.get("cuMemAllocFromPoolAsync", 6 * MIB, pool, 0)
    assert cuda.code("cuMemAllocFromPoolAsync", room(8), 20 * MIB, pool, 0) == OUT_OF_MEMORY
    cuda.free_async(first)
    assert cuda.get("cuMemAllocFromPoolAsync", 20 * MIB, pool, 0) == first


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (pool_properties(DEVICE, 3), INVALID_VALUE),
        (pool_properties(0), INVALID_VALUE),
        (pool_properties(HOST_NUMA_CURRENT), INVALID_VALUE),
        (pool_properties(HOST, 0, POSIX_FD), INVALID_VALUE),
        (pool_properties(DEVICE, 0, FABRIC), NOT_SUPPORTED),
        (pool_properties(DEVICE, 0, POSIX_FD), 0),
        (pool_properties(HOST), 0),
    ],
)
def test_a_pools_properties_say_where_and_how(cuda: Cuda, properties: bytes, code: int) -> None:
    assert cuda.code("cuMemPoolCreate", room(8), pointer_to(properties)) == code


def test_a_host_pool_costs_the_gpu_nothing_and_the_cpu_sees_it(cuda: Cuda) -> None:
    pool = _pool(cuda, kind=HOST)
    pointer = cuda.get("cuMemAllocFromPoolAsync", 1000, pool, 0)
    cuda.poke(pointer, b"cpu")
    assert cuda.read(pointer, 3) == b"cpu"
    assert cuda.left() == CAPACITY
    cuda.free_async(pointer)


def test_the_current_pool_is_the_default_one_unless_another_is_chosen_and_exists(cuda: Cuda) -> None:
    default, mine = cuda.pool(), _pool(cuda)
    assert cuda.get("cuDeviceGetMemPool", 0) == default
    cuda("cuDeviceSetMemPool", 0, mine)
    assert cuda.get("cuDeviceGetMemPool", 0) == mine
    assert cuda.get("cuDeviceGetDefaultMemPool", 0) == default
    pointer = cuda.alloc_async(1000)
    assert cuda.attribute(mine, USED) == 1024
    cuda.free_async(pointer)
    cuda("cuMemPoolDestroy", mine)
    assert cuda.get("cuDeviceGetMemPool", 0) == default
    assert cuda.code("cuMemPoolDestroy", default) == INVALID_VALUE


def test_a_device_takes_pools_of_its_own_alone(machine: Machine) -> None:
    cuda = start(machine, gpus=2)
    assert cuda.code("cuDeviceSetMemPool", 0, _pool(cuda, number=1)) == INVALID_VALUE
    assert cuda.code("cuDeviceSetMemPool", 0, 12345) == INVALID_VALUE
    assert cuda.code("cuDeviceSetMemPool", 9, _pool(cuda)) == INVALID_DEVICE
    assert cuda.code("cuDeviceGetMemPool", room(8), 9) == INVALID_DEVICE


def test_cuda_13_asks_for_pools_by_location(cuda: Cuda) -> None:
    here, host = pointer_to(location(DEVICE)), pointer_to(location(HOST))
    assert cuda.get("cuMemGetDefaultMemPool", here, PINNED) == cuda.pool()
    mine = _pool(cuda)
    cuda("cuMemSetMemPool", here, PINNED, mine)
    assert cuda.get("cuMemGetMemPool", here, PINNED) == cuda.get("cuDeviceGetMemPool", 0) == mine
    on_host = cuda.get("cuMemGetDefaultMemPool", host, PINNED)
    assert cuda.get("cuMemGetMemPool", host, PINNED) == on_host != mine
    assert cuda.code("cuMemSetMemPool", host, PINNED, mine) == INVALID_VALUE
    assert cuda.code("cuMemGetMemPool", room(8), pointer_to(location(0)), PINNED) == INVALID_VALUE
    assert cuda.code("cuMemGetDefaultMemPool", room(8), here, MANAGED) == NOT_SUPPORTED


def test_access_to_a_pool_is_its_devices_own_and_peers_on_request(machine: Machine) -> None:
    cuda = start(machine, gpus=2)
    pool = cuda.pool()

    def flags(number: int) -> int:
        return int.from_bytes(
            cuda("cuMemPoolGetAccess", room(4), pool, pointer_to(location(DEVICE, number)))[0], "little"
        )

    assert (flags(0), flags(1)) == (READ_WRITE, 0)
    assert cuda.code("cuMemPoolSetAccess", pool, pointer_to(access(DEVICE, 0, 0)), 1) == INVALID_VALUE
    assert cuda.code("cuMemPoolSetAccess", pool, pointer_to(access(DEVICE, 9)), 1) == INVALID_DEVICE
    can = int.from_bytes(cuda("cuDeviceCanAccessPeer", room(4), 1, 0)[0], "little")
    code = cuda.code("cuMemPoolSetAccess", pool, pointer_to(access(DEVICE, 1)), 1)
    assert (code, flags(1)) == ((0, READ_WRITE) if can else (INVALID_DEVICE, 0))


def test_a_pool_of_another_device_can_be_used_in_a_stream_of_this_one(machine: Machine) -> None:
    cuda = start(machine, gpus=2)
    there = _pool(cuda, number=1)
    cuda.get("cuMemAllocFromPoolAsync", MIB, there, 0)
    assert cuda.left() == CAPACITY
    cuda.begin(1)
    assert CAPACITY - cuda.left() == _STEP


def test_out_of_memory_leaves_the_pool_usable(cuda: Cuda) -> None:
    held = cuda.alloc_async(CAPACITY // 2)
    assert cuda.code("cuMemAllocAsync", room(8), CAPACITY, 0) == OUT_OF_MEMORY
    cuda.free_async(held)
    # what waits is waited for and given up where only that makes room
    pointer = cuda.alloc_async(CAPACITY // UNIT * UNIT)
    assert cuda.left() < UNIT
    cuda.free_async(pointer)
    cuda.synchronize()
    assert cuda.left() == CAPACITY


def test_many_sizes_at_once_do_not_overlap(cuda: Cuda) -> None:
    sizes = [1, 512, 513, 100 * KIB, 5 * MIB, 33 * MIB] * 5
    spans = sorted((cuda.alloc_async(size), size) for size in sizes)
    for (pointer, size), (later, _) in pairwise(spans):
        assert pointer + size <= later
