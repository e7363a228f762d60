"""Every way to get device memory: up to the limit and not beyond it, given back when it is freed, whatever the way."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.memory_client import (
    DEVICE,
    GIB,
    HOST,
    HOST_NUMA,
    INVALID_VALUE,
    KIB,
    MIB,
    OUT_OF_MEMORY,
    UNIT,
    Cuda,
    allocation_properties,
    pointer_to,
    pool_properties,
    room,
)

FLOAT, BYTE = 0x20, 0x01  # CUarray_format
LAYERED, CUBEMAP, SPARSE, DEFERRED = 0x1, 0x4, 0x40, 0x80
STEP = 32 * MIB  # of a pool's growth


def array(width: int, height: int = 0, depth: int = 0, *, form: int = BYTE, channels: int = 1, flags: int = 0) -> bytes:
    """CUDA_ARRAY3D_DESCRIPTOR."""
    return struct.pack("QQQIII4x", width, height, depth, form, channels, flags)


@dataclass(frozen=True)
class Family:
    """One entry point that allocates `size` bytes, and the one that frees them."""

    name: str
    ask: Callable[[int], list[int | dict[str, object] | None]]
    free: str
    grain: int = UNIT

    def code(self, cuda: Cuda, size: int) -> int:
        return cuda.code(self.name, *self.ask(size))

    def make(self, cuda: Cuda, size: int) -> int:
        return int.from_bytes(cuda(self.name, *self.ask(size))[0], "little")

    def end(self, cuda: Cuda, made: int) -> None:
        stream = (0,) if "Async" in self.free else ()
        cuda(self.free, made, *stream)


def _rows(size: int) -> list[int | dict[str, object] | None]:
    """As rows of 64 KiB."""
    return [room(8), pointer_to(array(64 * KIB, size // (64 * KIB)))]


def _flat_rows(size: int) -> list[int | dict[str, object] | None]:
    """The same as a CUDA_ARRAY_DESCRIPTOR."""
    return [room(8), pointer_to(struct.pack("QQII", 64 * KIB, size // (64 * KIB), BYTE, 1))]


FAMILIES = [
    Family("cuMemAlloc_v2", lambda size: [room(8), size], "cuMemFree_v2"),
    Family("cuMemAlloc", lambda size: [room(8), size], "cuMemFree"),
    Family("cuMemAllocManaged", lambda size: [room(8), size, 1], "cuMemFree_v2"),
    Family("cuMemAllocPitch_v2", lambda size: [room(8), room(8), MIB - 100, size // MIB, 4], "cuMemFree_v2"),
    Family("cuMemAllocPitch", lambda size: [room(8), room(8), MIB - 511, size // MIB, 8], "cuMemFree"),
    Family("cuArray3DCreate_v2", _rows, "cuArrayDestroy"),
    Family("cuArrayCreate_v2", _flat_rows, "cuArrayDestroy"),
    Family("cuMipmappedArrayCreate", lambda size: [*_rows(size), 1], "cuMipmappedArrayDestroy"),
    Family("cuMemAllocAsync", lambda size: [room(8), size, 0], "cuMemFreeAsync", STEP),
    Family("cuMemAllocAsync_ptsz", lambda size: [room(8), size, 0], "cuMemFreeAsync_ptsz", STEP),
    Family("cuMemCreate", lambda size: [room(8), size, pointer_to(allocation_properties()), 0], "cuMemRelease"),
]
by_name = pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])


@by_name
def test_up_to_the_limit_and_not_beyond_it(gpu_slice: GpuSlice, user: Cuda, family: Family) -> None:
    for size in (gpu_slice.room - family.grain, gpu_slice.room):
        made = family.make(user, size)
        assert gpu_slice.use(user).used == size
        family.end(user, made)
        user.synchronize()
        assert eventually(lambda: gpu_slice.used() == 0)
    assert family.code(user, gpu_slice.room + family.grain) == OUT_OF_MEMORY
    assert (gpu_slice.used(), gpu_slice.counters().refusals) == (0, 1)
    assert gpu_slice.counters().peak == gpu_slice.limit
    assert gpu_slice.errors.read_text() == ""


@by_name
def test_what_the_driver_refuses_is_not_charged(gpu_slice: GpuSlice, family: Family) -> None:
    cuda = gpu_slice.start(VCUDA_EMULATOR_FAIL=f"{family.name.removesuffix('_ptsz')}:1")
    assert family.code(cuda, family.grain) == OUT_OF_MEMORY
    assert (gpu_slice.used(), gpu_slice.counters().refusals) == (0, 0)
    assert family.code(cuda, family.grain) == 0


@by_name
def test_small_pieces_fill_the_slice_to_the_last(gpu_slice: GpuSlice, user: Cuda, family: Family) -> None:
    pieces = gpu_slice.room // STEP
    made = [family.make(user, STEP) for _ in range(pieces)]
    assert family.code(user, STEP) == OUT_OF_MEMORY
    family.end(user, made[3])
    user.synchronize()
    assert family.code(user, STEP) == 0
    assert gpu_slice.total() == gpu_slice.limit


def test_a_request_beyond_64_bits_is_refused(gpu_slice: GpuSlice, user: Cuda) -> None:
    told = {family.name: (family.code(user, (1 << 63) - UNIT), gpu_slice.total()) for family in FAMILIES}
    assert [name for name, (code, _) in told.items() if code not in (OUT_OF_MEMORY, INVALID_VALUE)] == []
    assert {name: total for name, (_, total) in told.items() if total != CONTEXT} == {}


def test_a_null_argument_is_the_drivers_to_answer(gpu_slice: GpuSlice, user: Cuda) -> None:
    told = {}
    for family in FAMILIES:
        asked = [None if isinstance(argument, dict) else argument for argument in family.ask(STEP)]
        told[family.name] = user.code(family.name, *asked), gpu_slice.total()
    assert told == {family.name: (INVALID_VALUE, CONTEXT) for family in FAMILIES}


def test_one_byte_more_than_the_limit(gpu_slice: GpuSlice, user: Cuda) -> None:
    for name in ("cuMemAlloc_v2", "cuMemAllocAsync"):
        assert user.code(name, room(8), gpu_slice.room + 1, 0) == OUT_OF_MEMORY
    assert gpu_slice.used() == 0


def test_an_explicit_pool_counts_as_the_default_one(gpu_slice: GpuSlice, user: Cuda) -> None:
    mine = user.get("cuMemPoolCreate", pointer_to(pool_properties(DEVICE, 0)))
    for pool in (mine, user.pool()):
        for name in ("cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"):
            assert user.code(name, room(8), gpu_slice.room + STEP, pool, 0) == OUT_OF_MEMORY
            pointer = user.get(name, gpu_slice.room, pool, 0)
            assert gpu_slice.used() == gpu_slice.room
            user.free_async(pointer)
            user.synchronize()
            assert eventually(lambda: gpu_slice.used() == 0)


def test_a_pitched_allocation_is_charged_by_its_real_pitch(gpu_slice: GpuSlice, user: Cuda) -> None:
    told, charged, before = {}, {}, 0
    for width in (1, 511, 512, 513, 100_000):
        _, pitch = user("cuMemAllocPitch_v2", room(8), room(8), width, 5, 4)
        told[width] = int.from_bytes(pitch, "little") * 5
        charged[width], before = gpu_slice.used() - before, gpu_slice.used()
    assert charged == told


def test_sizes_of_small_allocations_are_rounded_as_the_driver_does(gpu_slice: GpuSlice, user: Cuda) -> None:
    for size, charged in ((1, 512), (512, 512), (513, 1024), (MIB + 1, 2 * MIB), (2 * MIB + 1, 4 * MIB)):
        pointer = user.alloc(size)
        assert gpu_slice.used() == charged
        user.free(pointer)
    assert gpu_slice.used() == 0


ARRAYS = {
    "one row of bytes": (array(1024), 1024),
    "one row of four floats": (array(1024, form=FLOAT, channels=4), 16 * KIB),
    "height 0 is one row, not none": (array(64 * KIB, 0, form=FLOAT), 256 * KIB),
    "a plane": (array(1024, 64, form=FLOAT), 256 * KIB),
    "a volume": (array(256, 64, 8, form=FLOAT), 512 * KIB),
    "layers of rows": (array(1024, 0, 3, flags=LAYERED), 3 * KIB),
    "layers of planes": (array(1024, 16, 3, flags=LAYERED), 48 * KIB),
    "a cube": (array(64, 64, 6, form=FLOAT, flags=CUBEMAP), 96 * KIB),
    "blocks of BC1": (array(1024, 64, form=0x91, channels=4), 32 * KIB),
    "channels in the format's name": (array(1024, 8, form=0xC2, channels=4), 32 * KIB),
    "memory that comes later": (array(1024, 1024, form=FLOAT, flags=SPARSE), 0),
    "memory that is mapped later": (array(1024, 1024, form=FLOAT, flags=DEFERRED), 0),
}


def test_an_array_is_charged_by_what_its_elements_take(gpu_slice: GpuSlice, user: Cuda) -> None:
    told = {}
    for what, (descriptor, _) in ARRAYS.items():
        made = user.get("cuArray3DCreate_v2", pointer_to(descriptor))
        charged = gpu_slice.used()
        user("cuArrayDestroy", made)
        told[what] = charged, gpu_slice.used()
    assert told == {what: (charged, 0) for what, (_, charged) in ARRAYS.items()}


def test_a_mipmap_is_charged_with_all_its_levels(gpu_slice: GpuSlice, user: Cuda) -> None:
    made = user.get("cuMipmappedArrayCreate", pointer_to(array(64, 64, form=FLOAT)), 3)
    assert gpu_slice.used() == (64 * 64 + 32 * 32 + 16 * 16) * 4
    user("cuMipmappedArrayDestroy", made)
    assert gpu_slice.used() == 0


@pytest.mark.parametrize("name", ["cuArrayCreate", "cuArray3DCreate"])
def test_arrays_of_the_first_interface(gpu_slice: GpuSlice, user: Cuda, name: str) -> None:
    flat, deep = struct.pack("IIII", 1024, 8, BYTE, 1), struct.pack("IIIIII", 1024, 8, 0, BYTE, 1, 0)
    made = user.get(name, pointer_to(flat if name == "cuArrayCreate" else deep))
    assert gpu_slice.used() == 8 * KIB
    user("cuArrayDestroy", made)
    assert gpu_slice.used() == 0


def test_a_second_free_is_the_drivers_to_answer(gpu_slice: GpuSlice, user: Cuda) -> None:
    pointer, kept = user.alloc(MIB), user.alloc(MIB)
    user.free(pointer)
    assert user.code("cuMemFree_v2", pointer) == INVALID_VALUE
    assert user.code("cuMemFree_v2", kept + 512) == INVALID_VALUE
    assert user.code("cuMemFree_v2", 0) == 0
    assert gpu_slice.used() == 2 * MIB
    user.free(kept)
    assert gpu_slice.used() == 0


def test_memory_may_be_freed_by_the_other_familys_call(gpu_slice: GpuSlice, user: Cuda) -> None:
    user.free(user.alloc_async(STEP))
    user.synchronize()
    assert eventually(lambda: gpu_slice.used() == 0)


def test_memory_of_the_host_is_not_charged(gpu_slice: GpuSlice, user: Cuda) -> None:
    user.get("cuMemHostAlloc", MIB, 0)
    user.create(GIB, allocation_properties(HOST_NUMA))
    pool = user.get("cuMemPoolCreate", pointer_to(pool_properties(HOST)))
    user.get("cuMemAllocFromPoolAsync", GIB, pool, 0)
    assert gpu_slice.total() == CONTEXT


def test_another_gpu_without_a_limit_is_not_charged(gpu_slice: GpuSlice) -> None:
    user = gpu_slice.start_beside_another()
    user.begin(1)
    user.free(user.alloc(GIB))
    user.free_async(user.alloc_async(GIB))
    user("cuMemRelease", user.create(GIB, allocation_properties(DEVICE, 1)))
    assert user.code("cuMemCreate", room(8), GIB, pointer_to(allocation_properties(DEVICE, 0)), 0) == OUT_OF_MEMORY
    assert gpu_slice.total() == CONTEXT


def test_without_a_context_the_driver_says_what_is_wrong(gpu_slice: GpuSlice, user: Cuda) -> None:
    user("cuCtxSetCurrent", 0)
    for name in ("cuMemAlloc_v2", "cuMemAllocAsync"):
        assert user.code(name, room(8), MIB, 0) == 201
    assert gpu_slice.used() == 0
    user("cuMemRelease", user.create(UNIT))


@pytest.mark.parametrize("create", ["cuCtxCreate_v2", "primary"])
def test_a_context_takes_its_memory_with_it(gpu_slice: GpuSlice, user: Cuda, create: str) -> None:
    kept = user.alloc(3 * UNIT)
    if create != "primary":
        context = user.get(create, 0, 0)
    user.alloc(5 * UNIT)
    user.get("cuArray3DCreate_v2", pointer_to(array(1024, 1024)))
    user.get("cuMemAllocManaged", UNIT, 1)
    if create == "primary":
        user("cuDevicePrimaryCtxReset_v2", 0)
        assert gpu_slice.used() == 0
    else:
        user("cuCtxDestroy_v2", context)
        assert gpu_slice.used() == 3 * UNIT
        user("cuCtxSetCurrent", user.get("cuDevicePrimaryCtxRetain", 0))
        user.free(kept)
        assert gpu_slice.used() == 0


def test_a_primary_context_that_others_hold_keeps_its_memory(gpu_slice: GpuSlice, user: Cuda) -> None:
    user.get("cuDevicePrimaryCtxRetain", 0)
    user.alloc(UNIT)
    user("cuDevicePrimaryCtxRelease_v2", 0)
    assert gpu_slice.used() == UNIT
    user("cuDevicePrimaryCtxRelease_v2", 0)
    assert gpu_slice.used() == 0


def test_limits_that_cannot_be_read_give_nothing(gpu_slice: GpuSlice) -> None:
    gpu_slice.container.write_limits(b"garbage")
    cuda = gpu_slice.start(context=False)
    cuda.begin()
    for family in FAMILIES:
        assert family.code(cuda, STEP) == OUT_OF_MEMORY
    assert cuda.code("cuMemAllocFromPoolAsync", room(8), STEP, cuda.pool(), 0) == OUT_OF_MEMORY
    assert cuda.code("cuMemHostAlloc", room(8), MIB, 0) == 0
    assert "limits" in gpu_slice.errors.read_text()


def test_without_limits_nothing_is_counted(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start(context=False, VCUDA_DIR=str(gpu_slice.container.root / "nothing"))
    cuda.begin()
    for family in FAMILIES:
        family.end(cuda, family.make(cuda, gpu_slice.limit))
    assert gpu_slice.container.slots() == {}
    assert gpu_slice.errors.read_text() == ""


def test_a_limit_that_changes_is_followed(gpu_slice: GpuSlice, user: Cuda) -> None:
    kept = user.alloc(gpu_slice.room)
    gpu_slice.change_limit(2 * gpu_slice.limit, 2)
    assert eventually(lambda: user.total() == gpu_slice.limit)
    more = user.alloc(gpu_slice.room - 7 * 64 * MIB)
    gpu_slice.change_limit(gpu_slice.limit // 2, 3)
    assert eventually(lambda: user.total() == gpu_slice.limit)
    assert user.code("cuMemAlloc_v2", room(8), 1) == OUT_OF_MEMORY
    assert user.left() == 0
    user.free(more)
    user.free(kept)
    assert user.left() == gpu_slice.room
