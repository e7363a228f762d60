"""cuMemCreate and those who hold what it made: memory counts until its last handle and its last mapping are gone."""

from pathlib import Path

from tests.library.gpu_slice import CONTEXT, GpuSlice
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


def test_released_before_it_is_unmapped(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start()
    address, handle = cuda.reserve(4 * UNIT), cuda.create(4 * UNIT)
    cuda.map(address, 4 * UNIT, handle)
    cuda("cuMemRelease", handle)
    assert gpu_slice.used() == 4 * UNIT
    cuda("cuMemUnmap", address, 4 * UNIT)
    assert gpu_slice.used() == 0


def test_unmapped_before_it_is_released(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start()
    address, handle = cuda.reserve(4 * UNIT), cuda.create(4 * UNIT)
    for _ in range(2):
        cuda.map(address, 4 * UNIT, handle)
        cuda("cuMemUnmap", address, 4 * UNIT)
        assert gpu_slice.used() == 4 * UNIT
    cuda("cuMemRelease", handle)
    assert gpu_slice.used() == 0


def test_mapped_twice(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start()
    first, second, handle = cuda.reserve(UNIT), cuda.reserve(UNIT), cuda.create(UNIT)
    cuda.map(first, UNIT, handle)
    cuda.map(second, UNIT, handle)
    cuda("cuMemRelease", handle)
    cuda("cuMemUnmap", first, UNIT)
    assert gpu_slice.used() == UNIT
    cuda("cuMemUnmap", second, UNIT)
    assert gpu_slice.used() == 0


def test_retained_by_address(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start()
    address, handle = cuda.reserve(2 * UNIT), cuda.create(2 * UNIT)
    cuda.map(address, 2 * UNIT, handle)
    cuda("cuMemRelease", handle)
    retained = cuda.get("cuMemRetainAllocationHandle", address + UNIT)
    cuda("cuMemUnmap", address, 2 * UNIT)
    assert gpu_slice.used() == 2 * UNIT
    cuda("cuMemRelease", retained)
    assert gpu_slice.used() == 0


def test_one_call_unmaps_many(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start()
    count = 200
    address = cuda.reserve(count * UNIT)
    for i in range(count):
        handle = cuda.create(UNIT)
        cuda.map(address + i * UNIT, UNIT, handle)
        cuda("cuMemRelease", handle)
    assert gpu_slice.used() == count * UNIT
    cuda("cuMemUnmap", address + 50 * UNIT, 100 * UNIT)
    assert gpu_slice.used() == (count - 100) * UNIT
    cuda("cuMemUnmap", address, 50 * UNIT)
    cuda("cuMemUnmap", address + 150 * UNIT, 50 * UNIT)
    assert gpu_slice.used() == 0


def test_calls_that_the_driver_refuses_change_nothing(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start()
    address, handle = cuda.reserve(4 * UNIT), cuda.create(2 * UNIT)
    cuda.map(address, 2 * UNIT, handle)
    assert cuda.code("cuMemUnmap", address, UNIT) == INVALID_VALUE
    assert cuda.code("cuMemMap", address, 2 * UNIT, 0, handle, 0) != 0
    assert cuda.code("cuMemRelease", handle + 1) != 0
    assert cuda.code("cuMemRetainAllocationHandle", room(8), address + 3 * UNIT) != 0
    assert cuda.code("cuMemCreate", room(8), UNIT + 1, pointer_to(allocation_properties()), 0) == INVALID_VALUE
    assert gpu_slice.used() == 2 * UNIT
    cuda("cuMemRelease", handle)
    cuda("cuMemUnmap", address, 2 * UNIT)
    assert gpu_slice.used() == 0


def test_the_device_is_the_one_asked_for_not_the_current_one(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start()
    cuda.begin(1)
    properties = pointer_to(allocation_properties(DEVICE, 0))
    assert cuda.code("cuMemCreate", room(8), gpu_slice.room + UNIT, properties, 0) == OUT_OF_MEMORY
    cuda.create(UNIT)
    assert gpu_slice.used() == UNIT


def test_imported_into_its_own_process(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start()
    handle, fd = exportable(cuda, 3 * UNIT)
    again = cuda.get("cuMemImportFromShareableHandle", fd, POSIX_FD)
    assert gpu_slice.used() == 3 * UNIT
    cuda("cuMemRelease", again)
    assert gpu_slice.used() == 3 * UNIT
    cuda("cuMemRelease", handle)
    cuda.ask(close=fd)
    assert gpu_slice.used() == 0


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


def test_a_context_ends_and_the_memory_of_handles_stays(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start()
    handle = cuda.create(UNIT)
    cuda("cuDevicePrimaryCtxReset_v2", 0)
    assert gpu_slice.used() == UNIT
    cuda("cuMemRelease", handle)
    assert gpu_slice.used() == 0
