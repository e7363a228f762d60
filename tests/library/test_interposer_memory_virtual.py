"""cuMemCreate and those who hold what it made: memory counts until its last handle and its last mapping are gone."""

import struct
from pathlib import Path

import pytest

from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.memory_client import (
    DEVICE,
    INVALID_VALUE,
    MIB,
    OUT_OF_MEMORY,
    POSIX_FD,
    UNIT,
    Cuda,
    allocation_properties,
    pointer_to,
    room,
)


def exportable(cuda: Cuda, size: int) -> tuple[int, int]:
    """A handle, and a descriptor of it."""
    handle = cuda.create(size, allocation_properties(DEVICE, 0, POSIX_FD))
    return handle, int.from_bytes(cuda("cuMemExportToShareableHandle", room(4), handle, POSIX_FD, 0)[0], "little")


def test_released_before_it_is_unmapped(gpu_slice: GpuSlice, user: Cuda) -> None:
    address, handle = user.reserve(4 * UNIT), user.create(4 * UNIT)
    user.map(address, 4 * UNIT, handle)
    user("cuMemRelease", handle)
    assert gpu_slice.used() == 4 * UNIT
    user("cuMemUnmap", address, 4 * UNIT)
    assert gpu_slice.used() == 0


def test_unmapped_before_it_is_released(gpu_slice: GpuSlice, user: Cuda) -> None:
    address, handle = user.reserve(4 * UNIT), user.create(4 * UNIT)
    for _ in range(2):
        user.map(address, 4 * UNIT, handle)
        user("cuMemUnmap", address, 4 * UNIT)
        assert gpu_slice.used() == 4 * UNIT
    user("cuMemRelease", handle)
    assert gpu_slice.used() == 0


def test_mapped_twice(gpu_slice: GpuSlice, user: Cuda) -> None:
    first, second, handle = user.reserve(UNIT), user.reserve(UNIT), user.create(UNIT)
    user.map(first, UNIT, handle)
    user.map(second, UNIT, handle)
    user("cuMemRelease", handle)
    user("cuMemUnmap", first, UNIT)
    assert gpu_slice.used() == UNIT
    user("cuMemUnmap", second, UNIT)
    assert gpu_slice.used() == 0


def test_retained_by_address(gpu_slice: GpuSlice, user: Cuda) -> None:
    address, handle = user.reserve(2 * UNIT), user.create(2 * UNIT)
    user.map(address, 2 * UNIT, handle)
    user("cuMemRelease", handle)
    retained = user.get("cuMemRetainAllocationHandle", address + UNIT)
    user("cuMemUnmap", address, 2 * UNIT)
    assert gpu_slice.used() == 2 * UNIT
    user("cuMemRelease", retained)
    assert gpu_slice.used() == 0


def test_one_call_unmaps_many(gpu_slice: GpuSlice, user: Cuda) -> None:
    count = 200
    address = user.reserve(count * UNIT)
    for i in range(count):
        handle = user.create(UNIT)
        user.map(address + i * UNIT, UNIT, handle)
        user("cuMemRelease", handle)
    assert gpu_slice.used() == count * UNIT
    user("cuMemUnmap", address + 50 * UNIT, 100 * UNIT)
    assert gpu_slice.used() == (count - 100) * UNIT
    user("cuMemUnmap", address, 50 * UNIT)
    user("cuMemUnmap", address + 150 * UNIT, 50 * UNIT)
    assert gpu_slice.used() == 0


def test_calls_that_the_driver_refuses_change_nothing(gpu_slice: GpuSlice, user: Cuda) -> None:
    address, handle = user.reserve(4 * UNIT), user.create(2 * UNIT)
    user.map(address, 2 * UNIT, handle)
    assert user.code("cuMemUnmap", address, UNIT) == INVALID_VALUE
    assert user.code("cuMemMap", address, 2 * UNIT, 0, handle, 0) != 0
    assert user.code("cuMemRelease", handle + 1) != 0
    assert user.code("cuMemRetainAllocationHandle", room(8), address + 3 * UNIT) != 0
    assert user.code("cuMemCreate", room(8), UNIT + 1, pointer_to(allocation_properties()), 0) == INVALID_VALUE
    assert gpu_slice.used() == 2 * UNIT
    user("cuMemRelease", handle)
    user("cuMemUnmap", address, 2 * UNIT)
    assert gpu_slice.used() == 0


def test_the_device_is_the_one_asked_for_not_the_current_one(gpu_slice: GpuSlice) -> None:
    user = gpu_slice.start_beside_another()
    user.begin(1)
    properties = pointer_to(allocation_properties(DEVICE, 0))
    assert user.code("cuMemCreate", room(8), gpu_slice.room + UNIT, properties, 0) == OUT_OF_MEMORY
    user.create(UNIT)
    assert gpu_slice.used() == UNIT


def test_imported_into_its_own_process(gpu_slice: GpuSlice, user: Cuda) -> None:
    handle, fd = exportable(user, 3 * UNIT)
    again = user.get("cuMemImportFromShareableHandle", fd, POSIX_FD)
    assert gpu_slice.used() == 3 * UNIT
    user("cuMemRelease", again)
    assert gpu_slice.used() == 3 * UNIT
    user("cuMemRelease", handle)
    assert gpu_slice.used() == 3 * UNIT
    user.ask(close=fd)
    assert eventually(lambda: gpu_slice.used() == 0)


def test_memory_of_another_process_is_not_charged_here(gpu_slice: GpuSlice, short_tmp: Path) -> None:
    owner, other = gpu_slice.start(), gpu_slice.start()
    path = str(short_tmp / "socket")
    _, fd = exportable(owner, UNIT)
    other.create(UNIT)
    other.tell(receive=path)
    other.listen()
    owner.ask(send=[path, fd])
    imported = other.get("cuMemImportFromShareableHandle", int(other.listen()["value"]), POSIX_FD)
    address = other.reserve(UNIT)
    other.map(address, UNIT, imported)
    assert (gpu_slice.use(owner).used, gpu_slice.use(other).used) == (UNIT, UNIT)
    other("cuMemUnmap", address, UNIT)
    other("cuMemRelease", imported)
    assert (gpu_slice.use(owner).used, gpu_slice.use(other).used) == (UNIT, UNIT)


def test_an_opened_ipc_handle_is_not_charged(gpu_slice: GpuSlice) -> None:
    owner, other = gpu_slice.start(), gpu_slice.start()
    pointer = owner.alloc(3 * MIB)
    handle = {"value": owner("cuIpcGetMemHandle", room(64), pointer)[0].hex()}
    opened = other.get("cuIpcOpenMemHandle_v2", handle, 1)
    assert (gpu_slice.use(owner).used, gpu_slice.use(other).used) == (4 * MIB, 0)
    other("cuIpcCloseMemHandle", opened)
    owner.free(pointer)
    assert gpu_slice.total() == 2 * CONTEXT


def test_a_context_ends_and_the_memory_of_handles_stays(gpu_slice: GpuSlice, user: Cuda) -> None:
    handle = user.create(UNIT)
    user("cuDevicePrimaryCtxReset_v2", 0)
    assert gpu_slice.used() == UNIT
    user("cuMemRelease", handle)
    assert gpu_slice.used() == 0


# ---- memory behind parts of sparse arrays ----

SPARSE = 0x40
MAP, UNMAP = 1, 2


def sparse(cuda: Cuda) -> int:
    return cuda.get("cuArray3DCreate_v2", pointer_to(struct.pack("QQQIII4x", 4096, 4096, 0, 0x20, 1, SPARSE)))


def part(array: int, operation: int, handle: int = 0, x: int = 0, width: int = 512, height: int = 512) -> bytes:
    """A CUarrayMapInfo for a rectangle at the upper edge."""
    level = struct.pack("8I", 0, 0, x, 0, 0, width, height, 1)
    return struct.pack("i4xQi4x", 0, array, 0) + level + struct.pack("iiQQIIII", operation, 0, handle, 0, 1, 0, 0, 0)


def map_parts(cuda: Cuda, *parts: bytes, name: str = "cuMemMapArrayAsync") -> int:
    return cuda.code(name, pointer_to(b"".join(parts)), len(parts), 0)


@pytest.mark.parametrize("name", ["cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz"])
def test_memory_behind_an_array_counts_until_it_is_unmapped(gpu_slice: GpuSlice, user: Cuda, name: str) -> None:
    array, handles = sparse(user), [user.create(UNIT) for _ in range(3)]
    assert map_parts(user, *(part(array, MAP, one, 512 * at) for at, one in enumerate(handles)), name=name) == 0
    for handle in handles:
        user("cuMemRelease", handle)
    assert gpu_slice.used() == 3 * UNIT
    assert map_parts(user, part(array, UNMAP, x=512), name=name) == 0
    assert gpu_slice.used() == 2 * UNIT
    user("cuArrayDestroy", array)
    assert gpu_slice.used() == 0
    assert gpu_slice.total() == CONTEXT


def test_other_memory_in_the_same_place_of_an_array_takes_its_turn(gpu_slice: GpuSlice, user: Cuda) -> None:
    array, first, second = sparse(user), user.create(UNIT), user.create(2 * UNIT)
    for handle in (first, second):
        assert map_parts(user, part(array, MAP, handle)) == 0
        user("cuMemRelease", handle)
    assert gpu_slice.used() == 2 * UNIT
    assert map_parts(user, part(array, UNMAP), part(array, UNMAP)) == 0
    assert gpu_slice.used() == 0


def test_a_mapping_that_the_driver_refuses_changes_nothing(gpu_slice: GpuSlice, user: Cuda) -> None:
    array, handle = sparse(user), user.create(UNIT)
    plain = user.get("cuArray3DCreate_v2", pointer_to(struct.pack("QQQIII4x", 16, 16, 0, 0x20, 1, 0)))
    before = gpu_slice.used()
    assert map_parts(user, part(array, MAP, handle), part(plain, MAP, handle)) == INVALID_VALUE
    user("cuMemRelease", handle)
    assert gpu_slice.used() == before - UNIT


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2", "cuDevicePrimaryCtxReset_v2"])
def test_what_lies_behind_an_array_ends_with_its_context(gpu_slice: GpuSlice, user: Cuda, end: str) -> None:
    argument = user.get("cuCtxCreate_v2", 0, 0) if end == "cuCtxDestroy_v2" else 0
    array, handle = sparse(user), user.create(UNIT)
    assert map_parts(user, part(array, MAP, handle)) == 0
    user("cuMemRelease", handle)
    user(end, argument)
    assert gpu_slice.used() == 0
