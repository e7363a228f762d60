"""Linear memory against what the documentation of the driver API says: of the device, managed, and of the host."""

from itertools import pairwise

import pytest

from tests.library.machine import Machine
from tests.library.memory_client import (
    ALREADY_REGISTERED,
    CAPACITY,
    CONTEXT_MIB,
    GIB,
    GPU_MIB,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_VALUE,
    KIB,
    MIB,
    NOT_FOUND,
    NOT_INITIALIZED,
    NOT_REGISTERED,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    RESERVED_MIB,
    UNIT,
    Cuda,
    CudaError,
    room,
    start,
)

pytestmark = pytest.mark.thorough

_GLOBAL, _ATTACH_HOST, _SINGLE = 1, 2, 4
_NOT_READY = 600


def test_a_pointer_is_aligned_to_512_bytes_and_no_two_share_a_byte(cuda: Cuda) -> None:
    sizes = [1, 255, 256, 257, 511, 512, 513, 4097, 100_000, MIB, MIB + 1, 3 * MIB]
    spans = sorted((cuda.alloc(size), size) for size in sizes)
    assert all(pointer % 512 == 0 for pointer, _ in spans)
    for (pointer, size), (later, _) in pairwise(spans):
        assert pointer + size <= later


def test_small_allocations_share_a_slab_of_two_mebibytes(cuda: Cuda) -> None:
    before = cuda.left()
    first = cuda.alloc(1)
    assert before - cuda.left() == UNIT
    rest = [cuda.alloc(512 * KIB) for _ in range(3)]
    assert before - cuda.left() == UNIT
    one_too_many = cuda.alloc(512 * KIB)
    assert before - cuda.left() == 2 * UNIT
    cuda.free(one_too_many)
    assert before - cuda.left() == UNIT
    for pointer in (first, *rest):
        cuda.free(pointer)
    assert cuda.left() == before


def test_physical_memory_is_charged_in_whole_units(cuda: Cuda) -> None:
    charged = {
        1: UNIT,
        MIB: UNIT,
        MIB + 1: UNIT,
        UNIT: UNIT,
        UNIT + 1: 2 * UNIT,
        100 * MIB: 100 * MIB,
        101 * MIB: 102 * MIB,
    }
    told, before = {}, cuda.left()
    for size in charged:
        pointer = cuda.alloc(size)
        told[size] = before - cuda.left()
        cuda.free(pointer)
        assert cuda.left() == before, size
    assert told == charged


def test_the_whole_gpu_can_be_had_and_one_unit_more_is_out_of_memory(cuda: Cuda) -> None:
    assert cuda.total() == (GPU_MIB - RESERVED_MIB) * MIB
    assert cuda.left() == CAPACITY
    assert cuda.code("cuMemAlloc_v2", room(8), CAPACITY + 1) == OUT_OF_MEMORY
    everything = cuda.alloc(CAPACITY)
    assert cuda.left() == 0
    assert cuda.code("cuMemAlloc_v2", room(8), 1) == OUT_OF_MEMORY
    cuda.free(everything)
    assert cuda.left() == CAPACITY


def test_an_impossible_size_is_out_of_memory(cuda: Cuda) -> None:
    sizes = (1 << 40, (1 << 63) - 1, (1 << 64) - 1)
    assert [cuda.code("cuMemAlloc_v2", room(8), size) for size in sizes] == [OUT_OF_MEMORY] * 3
    assert cuda.left() == CAPACITY


def test_nowhere_and_nothing_are_invalid(cuda: Cuda) -> None:
    asked = [(None, 1), (room(8), 0), (None, 0)]
    assert [cuda.code("cuMemAlloc_v2", where, size) for where, size in asked] == [INVALID_VALUE] * 3


def test_a_failed_call_leaves_its_output_alone(cuda: Cuda) -> None:
    mark = {"bytes": "a5" * 8}
    assert cuda.ask(call="cuMemAlloc_v2", args=[mark, 1 << 40])["outs"] == ["a5" * 8]


def test_freeing_null_is_fine_and_freeing_anything_else_unknown_is_not(cuda: Cuda) -> None:
    pointer = cuda.alloc(4096)
    cuda.free(0)
    for unknown in (pointer + 512, pointer - 512, 4096, 1 << 60):
        assert cuda.code("cuMemFree_v2", unknown) == INVALID_VALUE
    cuda.free(pointer)
    assert cuda.code("cuMemFree_v2", pointer) == INVALID_VALUE


def test_nothing_works_before_the_driver_is_initialised_or_without_a_context(machine: Machine) -> None:
    cuda = start(machine, context=False)
    assert cuda.code("cuMemAlloc_v2", room(8), 1) == NOT_INITIALIZED
    cuda("cuInit", 0)
    assert cuda.code("cuMemAlloc_v2", room(8), 1) == INVALID_CONTEXT
    assert cuda.code("cuMemFree_v2", 0) == INVALID_CONTEXT
    assert cuda.code("cuMemGetInfo_v2", room(8), room(8)) == INVALID_CONTEXT


def test_a_pitch_is_the_width_rounded_up_to_512(cuda: Cuda) -> None:
    for width, pitch in ((1, 512), (512, 512), (513, 1024), (3 * 1024, 3 * 1024)):
        outs = cuda("cuMemAllocPitch_v2", room(8), room(8), width, 10, 4)
        pointer, found = (int.from_bytes(out, "little") for out in outs)
        outs = cuda("cuMemGetAddressRange_v2", room(8), room(8), pointer)
        base, size = (int.from_bytes(out, "little") for out in outs)
        assert (width, found, base, size) == (width, pitch, pointer, pitch * 10)


def test_a_pitched_allocation_needs_extents_and_elements_of_4_8_or_16(cuda: Cuda) -> None:
    asked = [(0, 1, 4), (1, 0, 4), (1, 1, 3), (1, 1, 0), (1, 1, 32)]
    codes = [cuda.code("cuMemAllocPitch_v2", room(8), room(8), *shape) for shape in asked]
    assert codes == [INVALID_VALUE] * len(asked)


def test_a_pitched_allocation_that_overflows_is_out_of_memory(cuda: Cuda) -> None:
    assert cuda.code("cuMemAllocPitch_v2", room(8), room(8), 1 << 40, 1 << 40, 4) == OUT_OF_MEMORY


def test_managed_memory_is_attached_globally_or_to_the_host(cuda: Cuda) -> None:
    codes = {
        flags: cuda.code("cuMemAllocManaged", room(8), 4096, flags) for flags in (_GLOBAL, _ATTACH_HOST, _SINGLE, 0)
    }
    assert codes == {_GLOBAL: 0, _ATTACH_HOST: 0, _SINGLE: INVALID_VALUE, 0: INVALID_VALUE}


def test_the_cpu_and_copies_see_the_same_managed_bytes(cuda: Cuda) -> None:
    pointer = cuda.get("cuMemAllocManaged", 1 << 20, _GLOBAL)
    cuda.poke(pointer + 1000, b"from the host")
    assert cuda.read(pointer + 1000, 13) == b"from the host"
    cuda.write(pointer + 9, b"from a copy")
    assert cuda.peek(pointer + 9, 11) == b"from a copy"
    cuda.free(pointer)


def test_managed_memory_may_exceed_the_gpu_and_is_evicted_for_plain_memory(cuda: Cuda) -> None:
    larger_than_the_gpu = cuda.get("cuMemAllocManaged", 2 * CAPACITY, _GLOBAL)
    assert cuda.left() == CAPACITY
    resident = cuda.get("cuMemAllocManaged", GIB, _GLOBAL)
    assert cuda.left() == CAPACITY - GIB
    cuda.poke(resident, b"kept")
    plain = cuda.alloc(CAPACITY)
    assert cuda.left() == 0
    assert cuda.peek(resident, 4) == b"kept"
    for pointer in (plain, resident, larger_than_the_gpu):
        cuda.free(pointer)
    assert cuda.left() == CAPACITY


def test_an_address_range_is_found_from_any_address_in_it(cuda: Cuda) -> None:
    pointer = cuda.alloc(10_000)
    for inside in (pointer, pointer + 1, pointer + 9_999):
        base, size = cuda("cuMemGetAddressRange_v2", room(8), room(8), inside)
        assert (int.from_bytes(base, "little"), int.from_bytes(size, "little")) == (pointer, 10_000)
    assert cuda.code("cuMemGetAddressRange_v2", None, None, pointer) == 0
    assert cuda.code("cuMemGetAddressRange_v2", room(8), room(8), pointer + 10_000) == NOT_FOUND
    assert cuda.code("cuMemGetAddressRange_v2", room(8), room(8), 4096) == NOT_FOUND


def test_free_and_total_may_be_asked_for_alone(cuda: Cuda) -> None:
    assert int.from_bytes(cuda("cuMemGetInfo_v2", None, room(8))[0], "little") == cuda.total()
    assert int.from_bytes(cuda("cuMemGetInfo_v2", room(8), None)[0], "little") == cuda.left()


def test_functions_older_than_3_2_speak_32_bit_addresses(cuda: Cuda) -> None:
    pointer = int.from_bytes(cuda("cuMemAlloc", room(4), 1000)[0], "little")
    assert 0 < pointer < 1 << 32
    cuda.write(pointer, b"low")
    assert cuda.read(pointer, 3) == b"low"
    base, size = cuda("cuMemGetAddressRange", room(4), room(4), pointer + 5)
    assert (int.from_bytes(base, "little"), int.from_bytes(size, "little")) == (pointer, 1000)
    free, total = (int.from_bytes(out, "little") for out in cuda("cuMemGetInfo", room(4), room(4)))
    assert free <= total <= (1 << 32) - 1
    pitched, pitch = cuda("cuMemAllocPitch", room(4), room(4), 100, 2, 4)
    assert int.from_bytes(pitch, "little") == 512
    cuda("cuMemFree", int.from_bytes(pitched, "little"))
    cuda("cuMemFree", pointer)
    assert cuda.left() == CAPACITY


@pytest.mark.parametrize("function", ["cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocAsync", "cuMemCreate"])
def test_a_failure_can_be_asked_for_by_name_and_count(machine: Machine, function: str) -> None:
    cuda = start(machine, VCUDA_EMULATOR_FAIL=f"cuMemRelease:1,{function}:3")
    calls = {
        "cuMemAlloc_v2": lambda: cuda.alloc(1),
        "cuMemAllocManaged": lambda: cuda.get("cuMemAllocManaged", 1, _GLOBAL),
        "cuMemAllocAsync": lambda: cuda.alloc_async(1),
        "cuMemCreate": lambda: cuda.create(UNIT),
    }
    calls[function]()
    calls[function]()
    with pytest.raises(CudaError) as failed:
        calls[function]()
    assert failed.value.code == OUT_OF_MEMORY
    calls[function]()


def test_a_context_takes_its_memory_with_it(cuda: Cuda) -> None:
    before = cuda.left()
    context = cuda.get("cuCtxCreate_v2", 0, 0)
    for size in (1, MIB, 10 * MIB):
        cuda.alloc(size)
    cuda.get("cuMemAllocManaged", MIB, _GLOBAL)
    outlives = cuda.create(UNIT)
    cuda("cuCtxDestroy_v2", context)
    cuda("cuCtxSetCurrent", cuda.get("cuDevicePrimaryCtxRetain", 0))
    assert before - cuda.left() == UNIT
    cuda("cuMemRelease", outlives)
    assert cuda.left() == before


def test_freeing_plain_memory_waits_for_queued_work_and_freeing_pooled_memory_does_not(cuda: Cuda) -> None:
    stream, plain, pooled = cuda.stream(), cuda.alloc(1000), cuda.alloc_async(1000)
    cuda.occupy(stream, 150)
    cuda.free(pooled)
    assert cuda.code("cuStreamQuery", stream) == _NOT_READY
    cuda.free(plain)
    assert cuda.code("cuStreamQuery", stream) == 0


def test_memory_counts_for_the_gpu_that_it_is_on(machine: Machine) -> None:
    cuda = start(machine, gpus=2)
    first = cuda.get("cuDevicePrimaryCtxRetain", 0)
    second = cuda.begin(1)
    on_second = cuda.alloc(100 * MIB)
    assert CAPACITY - cuda.left() == 100 * MIB
    cuda("cuCtxSetCurrent", first)
    assert cuda.left() == CAPACITY
    cuda.free(on_second)  # any context will do
    cuda("cuCtxSetCurrent", second)
    assert cuda.left() == CAPACITY


def test_a_forked_child_has_no_driver(cuda: Cuda) -> None:
    pointer = cuda.alloc(1000)
    calls = [["cuMemAlloc_v2", [room(8), 1]], ["cuMemFree_v2", [pointer]]]
    assert cuda.ask(fork=calls)["codes"] == [NOT_INITIALIZED] * 2
    cuda.free(pointer)
    assert CAPACITY == cuda.left() == (GPU_MIB - RESERVED_MIB - CONTEXT_MIB) * MIB


# ---- page-locked memory of the host ----


_PORTABLE, _MAPPED, _WRITE_COMBINED, _IO = 1, 2, 4, 4


@pytest.mark.parametrize("function", ["cuMemAllocHost", "cuMemAllocHost_v2", "cuMemHostAlloc"])
def test_it_is_real_memory_and_costs_the_gpu_nothing(cuda: Cuda, function: str) -> None:
    flags = (_PORTABLE | _MAPPED | _WRITE_COMBINED,) if function == "cuMemHostAlloc" else ()
    pointer = cuda.get(function, 10 * MIB, *flags)
    assert cuda.left() == CAPACITY
    cuda.poke(pointer, b"host")
    device = cuda.alloc(4)
    cuda("cuMemcpyHtoD_v2", device, pointer, 4)
    assert cuda.read(device, 4) == b"host"
    assert cuda.get("cuMemHostGetDevicePointer_v2", pointer + 100, 0) == pointer + 100
    cuda("cuMemFreeHost", pointer)
    assert cuda.code("cuMemFreeHost", pointer) == INVALID_VALUE


def test_more_than_the_gpu_has_is_fine_and_more_than_the_machine_has_is_not(cuda: Cuda) -> None:
    cuda("cuMemFreeHost", cuda.get("cuMemHostAlloc", 6 * GIB, 0))
    assert cuda.code("cuMemHostAlloc", room(8), 1 << 50, 0) == OUT_OF_MEMORY


@pytest.mark.parametrize("args", [(None, 1, 0), (room(8), 0, 0), (room(8), 1, 8)])
def test_nowhere_nothing_and_unknown_flags_are_invalid(cuda: Cuda, args: tuple[object, int, int]) -> None:
    assert cuda.code("cuMemHostAlloc", *args) == INVALID_VALUE  # type: ignore[arg-type]


def test_memory_is_registered_once(cuda: Cuda) -> None:
    kept = cuda.ask(call="cuMemcpy", args=[{"keep": room(MIB)}, 0, 0])["kept"]
    theirs = {"of": kept}
    assert cuda.code("cuMemHostRegister_v2", theirs, MIB, _PORTABLE) == 0
    assert cuda.code("cuMemHostRegister_v2", theirs, 100, 0) == ALREADY_REGISTERED
    assert cuda.left() == CAPACITY
    assert cuda.code("cuMemHostGetDevicePointer_v2", room(8), theirs, 0) == 0
    assert cuda.code("cuMemFreeHost", theirs) == INVALID_VALUE
    assert cuda.code("cuMemHostUnregister", theirs) == 0
    assert cuda.code("cuMemHostUnregister", theirs) == NOT_REGISTERED
    assert cuda.code("cuMemHostGetDevicePointer_v2", room(8), theirs, 0) == INVALID_VALUE
    assert cuda.code("cuMemHostRegister", theirs, MIB, 0) == 0


def test_what_the_driver_allocated_cannot_be_registered(cuda: Cuda) -> None:
    pointer = cuda.get("cuMemHostAlloc", MIB, 0)
    assert cuda.code("cuMemHostRegister_v2", pointer + 4096, 4096, 0) == ALREADY_REGISTERED
    assert cuda.code("cuMemHostUnregister", pointer) == NOT_REGISTERED


@pytest.mark.parametrize(
    ("size", "flags", "code"), [(0, 0, INVALID_VALUE), (1, 16, INVALID_VALUE), (1, _IO, NOT_SUPPORTED)]
)
def test_a_registration_needs_a_size_and_known_flags(cuda: Cuda, size: int, flags: int, code: int) -> None:
    assert cuda.code("cuMemHostRegister_v2", room(16), size, flags) == code


@pytest.mark.parametrize("address", [0, 4096, 1 << 46])
def test_addresses_that_nothing_lies_behind_cannot_be_registered(cuda: Cuda, address: int) -> None:
    assert cuda.code("cuMemHostRegister_v2", address, 4096, 0) == INVALID_VALUE


def test_a_device_pointer_takes_no_flags(cuda: Cuda) -> None:
    pointer = cuda.get("cuMemHostAlloc", MIB, 0)
    assert cuda.code("cuMemHostGetDevicePointer_v2", room(8), pointer, 1) == INVALID_VALUE
    assert cuda.code("cuMemHostGetDevicePointer", room(4), pointer, 0) == INVALID_VALUE  # 32 bits are too few


# ---- cuMemPrefetchAsync ----


_CPU, _PAGEABLE_ACCESS = 0xFFFFFFFF, 88  # CUdevice, CUdevice_attribute
_DEVICE_LOCATION, _HOST_LOCATION, _CAPTURE_UNSUPPORTED = 1, 2, 900


def _pageable_access(cuda: Cuda) -> int:
    return int.from_bytes(cuda("cuDeviceGetAttribute", room(4), _PAGEABLE_ACCESS, 0)[0], "little")


@pytest.mark.parametrize("version", ["", "_v2"])
@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_managed_memory_is_charged_already(cuda: Cuda, version: str, suffix: str) -> None:
    managed, name = cuda.get("cuMemAllocManaged", 5 * UNIT, 1), f"cuMemPrefetchAsync{version}{suffix}"
    left, stream = cuda.left(), cuda.stream()
    here, there = ([_DEVICE_LOCATION, 0], [_HOST_LOCATION, 0]) if version else ([0], [_CPU])  # a location is one word
    cuda(name, managed, 5 * UNIT, *here, stream)
    cuda(name, managed + 7, UNIT, *there, stream)
    cuda.synchronize()
    assert cuda.left() == left
    assert cuda.code(name, managed, 6 * UNIT, *here, stream) == INVALID_VALUE
    assert cuda.code(name, cuda.alloc(UNIT), UNIT, *here, stream) == INVALID_VALUE


def test_memory_of_the_application_takes_room_only_where_the_machine_can_move_it(machine: Machine, cuda: Cuda) -> None:
    stream = cuda.stream()
    assert _pageable_access(cuda) == 0
    assert cuda.code("cuMemPrefetchAsync", room(4 * KIB), 4 * KIB, 0, stream) == INVALID_VALUE
    migrating = start(machine, VCUDA_EMULATOR_HMM="1")
    stream = migrating.stream()
    assert _pageable_access(migrating) == 1
    left = migrating.left()
    migrating("cuMemPrefetchAsync", {"keep": room(3 * MIB)}, 3 * MIB, 0, stream)
    assert migrating.left() == left - 2 * UNIT
    migrating("cuMemPrefetchAsync", {"of": 0}, 3 * MIB, 0, stream)
    assert migrating.left() == left - 2 * UNIT
    migrating("cuMemPrefetchAsync", {"of": 0}, 3 * MIB, _CPU, stream)
    assert migrating.left() == left
    migrating("cuMemPrefetchAsync", {"of": 0}, 3 * MIB, 0, stream)
    migrating.kill()
    assert cuda.left() == CAPACITY


def test_what_does_not_fit_stays_where_it_is(machine: Machine) -> None:
    cuda = start(machine, VCUDA_EMULATOR_HMM="1")
    cuda.alloc(CAPACITY - UNIT)
    cuda("cuMemPrefetchAsync", room(3 * MIB), 3 * MIB, 0, cuda.stream())
    assert cuda.left() == UNIT


def test_a_capture_takes_no_prefetch(cuda: Cuda) -> None:
    managed, stream = cuda.get("cuMemAllocManaged", UNIT, 1), cuda.stream()
    assert cuda.code("cuMemPrefetchAsync", managed, UNIT, 9, stream) == INVALID_DEVICE
    cuda("cuStreamBeginCapture_v2", stream, 2)
    assert cuda.code("cuMemPrefetchAsync", managed, UNIT, 0, stream) == _CAPTURE_UNSUPPORTED
