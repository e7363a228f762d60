"""Memory that processes share by IPC handles, exported objects, pools: the same bytes, paid for once."""

from pathlib import Path

import pytest

from tests.library.machine import Machine
from tests.library.memory_client import (
    CAPACITY,
    CONTEXT_MIB,
    DEVICE,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    MAP_FAILED,
    MIB,
    POSIX_FD,
    UNIT,
    Cuda,
    allocation_properties,
    pointer_to,
    pool_properties,
    room,
    start,
)

pytestmark = pytest.mark.thorough

_LAZY_PEERS = 1
_OF_ONE_MORE = CONTEXT_MIB * MIB  # what a second process takes for its context


def _handle(cuda: Cuda, pointer: int) -> dict[str, str]:
    return {"value": cuda("cuIpcGetMemHandle", room(64), pointer)[0].hex()}


def _open(cuda: Cuda, handle: dict[str, str]) -> int:
    return cuda.get("cuIpcOpenMemHandle_v2", handle, _LAZY_PEERS)


def _hand_over(fd: int, giver: Cuda, taker: Cuda, directory: Path) -> int:
    path = directory / "hand"
    taker.tell(receive=str(path))
    taker.listen()
    giver.ask(send=[str(path), fd])
    taken = int(taker.listen()["value"])
    path.unlink()
    return taken


def _export(cuda: Cuda, handle: int) -> int:
    return int.from_bytes(cuda("cuMemExportToShareableHandle", room(4), handle, POSIX_FD, 0)[0], "little")


def _import(cuda: Cuda, fd: int) -> int:
    return cuda.get("cuMemImportFromShareableHandle", fd, POSIX_FD)


def _mapped(cuda: Cuda, handle: int) -> int:
    address = cuda.reserve(UNIT)
    cuda.map(address, UNIT, handle)
    cuda.allow(address, UNIT)
    return address


def _files(machine: Machine) -> list[str]:
    directory = Path(f"{machine.state}.memory")
    return [file.name for file in directory.iterdir()] if directory.exists() else []


def _shareable(cuda: Cuda) -> int:
    return cuda.create(UNIT, allocation_properties(DEVICE, 0, POSIX_FD))


@pytest.mark.parametrize("size", [100, 5 * MIB])
def test_an_opened_handle_is_the_same_bytes_in_both_directions(machine: Machine, size: int) -> None:
    owner, opener = start(machine), start(machine)
    owner.alloc(1000)
    pointer = owner.alloc(size)
    owner.write(pointer, b"written before")
    opened = _open(opener, _handle(owner, pointer))
    assert opener.read(opened, 14) == b"written before"
    owner.write(pointer + 50, b"written after")
    assert opener.read(opened + 50, 13) == b"written after"
    opener.write(opened + 50, b"by the other!")
    assert owner.read(pointer + 50, 13) == b"by the other!"
    opener("cuIpcCloseMemHandle", opened)
    assert opener.code("cuMemcpyDtoH_v2", room(1), opened, 1) == INVALID_VALUE
    assert owner.read(pointer + 50, 13) == b"by the other!"


def test_the_opener_pays_nothing(machine: Machine) -> None:
    owner, opener = start(machine), start(machine)
    handle = _handle(owner, owner.alloc(100 * MIB))
    assert opener.left() == CAPACITY - _OF_ONE_MORE - 100 * MIB
    opened = _open(opener, handle)
    assert opener.left() == CAPACITY - _OF_ONE_MORE - 100 * MIB
    opener("cuIpcCloseMemHandle", opened)


def test_opening_twice_is_one_pointer_and_is_closed_twice(machine: Machine) -> None:
    owner, opener = start(machine), start(machine)
    handle = _handle(owner, owner.alloc(1000))
    opened = _open(opener, handle)
    assert _open(opener, handle) == opened
    opener("cuIpcCloseMemHandle", opened)
    opener.write(opened, b"open")
    opener("cuIpcCloseMemHandle", opened)
    assert opener.code("cuIpcCloseMemHandle", opened) == INVALID_VALUE


def test_neighbours_in_a_slab_are_opened_side_by_side(machine: Machine) -> None:
    owner, opener = start(machine), start(machine)
    pointers = [owner.alloc(1000) for _ in range(3)]
    for number, pointer in enumerate(pointers):
        owner.write(pointer, bytes([number]) * 1000)
    opened = [_open(opener, _handle(owner, pointer)) for pointer in pointers]
    assert [opener.read(one, 1000) for one in opened] == [bytes([number]) * 1000 for number in range(3)]
    assert len(_files(machine)) == 1


def test_a_process_does_not_open_its_own_handles(cuda: Cuda) -> None:
    handle = _handle(cuda, cuda.alloc(1000))
    assert cuda.code("cuIpcOpenMemHandle_v2", room(8), handle, _LAZY_PEERS) == INVALID_CONTEXT


def test_what_is_no_handle_opens_nothing(machine: Machine) -> None:
    owner, opener = start(machine), start(machine)
    handle = _handle(owner, owner.alloc(1000))
    assert opener.code("cuIpcOpenMemHandle_v2", room(8), {"value": "5a" * 64}, _LAZY_PEERS) == INVALID_HANDLE
    assert opener.code("cuIpcOpenMemHandle_v2", room(8), handle, 0) == INVALID_VALUE
    forged = {"value": handle["value"][:16] + "5a" * 56}
    assert opener.code("cuIpcOpenMemHandle_v2", room(8), forged, _LAZY_PEERS) == MAP_FAILED


def test_only_plain_device_memory_has_handles(cuda: Cuda) -> None:
    pointers = [cuda.alloc_async(1000), cuda.get("cuMemAllocManaged", 1000, 1), cuda.get("cuMemHostAlloc", 1000, 0)]
    pointers += [_mapped(cuda, cuda.create(UNIT)), cuda.alloc(1000) + 512]
    for pointer in pointers:
        assert cuda.code("cuIpcGetMemHandle", room(64), pointer) == INVALID_VALUE


def test_a_handle_outlives_neither_its_memory_nor_its_process(machine: Machine) -> None:
    owner, killed, opener = start(machine), start(machine), start(machine)
    pointer = owner.alloc(5 * MIB)
    freed, orphaned = _handle(owner, pointer), _handle(killed, killed.alloc(5 * MIB))
    assert len(_files(machine)) == 2
    owner.free(pointer)
    killed.kill()
    for handle in (freed, orphaned):
        assert opener.code("cuIpcOpenMemHandle_v2", room(8), handle, _LAZY_PEERS) == MAP_FAILED
    assert _files(machine) == []


def test_a_process_that_ends_leaves_no_file(machine: Machine) -> None:
    owner = start(machine)
    _handle(owner, owner.alloc(5 * MIB))
    assert len(_files(machine)) == 1
    owner.__exit__()
    assert (owner.process.returncode, _files(machine)) == (0, [])


def test_an_opened_handle_survives_the_death_of_its_owner(machine: Machine) -> None:
    owner, opener = start(machine), start(machine)
    pointer = owner.alloc(5 * MIB)
    owner.write(pointer, b"last words")
    opened = _open(opener, _handle(owner, pointer))
    owner.kill()
    assert opener.read(opened, 10) == b"last words"
    assert opener.left() == CAPACITY


def test_an_exported_object_is_the_same_bytes_and_is_paid_for_once(machine: Machine, short_tmp: Path) -> None:
    owner, importer = start(machine), start(machine)
    handle = _shareable(owner)
    here = _mapped(owner, handle)
    owner.write(here, b"before the export")
    fd = _export(owner, handle)
    taken = _import(importer, _hand_over(fd, owner, importer, short_tmp))
    there = _mapped(importer, taken)
    assert importer.read(there, 17) == b"before the export"
    importer.write(there, b"and back")
    assert owner.read(here, 8) == b"and back"
    assert owner.left() == CAPACITY - _OF_ONE_MORE - UNIT
    properties = importer("cuMemGetAllocationPropertiesFromHandle", room(32), taken)[0]
    assert properties == allocation_properties(DEVICE, 0, POSIX_FD)


def test_an_exported_object_lives_while_anybody_can_reach_it(machine: Machine, short_tmp: Path) -> None:
    owner, importer = start(machine), start(machine)
    held = CAPACITY - _OF_ONE_MORE - UNIT
    handle = _shareable(owner)
    fd = _export(owner, handle)
    owner("cuMemRelease", handle)
    assert owner.left() == held  # the descriptor
    arrived = _hand_over(fd, owner, importer, short_tmp)
    owner.ask(close=fd)
    assert owner.left() == held  # the one that travelled
    taken = _import(importer, arrived)
    importer.ask(close=arrived)
    assert owner.left() == held  # the importer's handle
    there = _mapped(importer, taken)
    importer("cuMemRelease", taken)
    assert owner.left() == held  # the importer's mapping
    importer("cuMemUnmap", there, UNIT)
    assert owner.left() == CAPACITY - _OF_ONE_MORE


def test_nvml_counts_what_waits_for_its_last_descriptor(machine: Machine, short_tmp: Path) -> None:
    """No process of its list has it."""
    owner, importer = start(machine), start(machine)
    [gpu] = machine.show()["gpus"]
    handle = _shareable(owner)
    fd = _export(owner, handle)
    _hand_over(fd, owner, importer, short_tmp)
    owner.ask(close=fd)
    assert machine.show()["gpus"][0]["used_mib"] == gpu["used_mib"] + UNIT // MIB
    owner("cuMemRelease", handle)
    [kept] = machine.show()["gpus"]
    assert (kept["used_mib"], kept["processes"]) == (gpu["used_mib"] + UNIT // MIB, gpu["processes"])
    nvml = machine.nvml()
    told = nvml.call("nvmlDeviceGetMemoryInfo", nvml.devices()[0])["used"]
    assert told == (kept["used_mib"] + kept["reserved_mib"]) * MIB
    importer.kill()
    assert machine.show()["gpus"][0]["used_mib"] == gpu["used_mib"] - CONTEXT_MIB


def test_an_importer_that_is_killed_lets_go(machine: Machine, short_tmp: Path) -> None:
    owner, importer = start(machine), start(machine)
    handle = _shareable(owner)
    fd = _export(owner, handle)
    _import(importer, _hand_over(fd, owner, importer, short_tmp))
    owner.ask(close=fd)
    owner("cuMemRelease", handle)
    assert owner.left() == CAPACITY - _OF_ONE_MORE - UNIT
    importer.kill()
    assert owner.left() == CAPACITY


def test_memory_that_waits_for_others_is_reclaimed_when_it_is_wanted(cuda: Cuda) -> None:
    handle = _shareable(cuda)
    fd = _export(cuda, handle)
    cuda("cuMemRelease", handle)
    cuda.ask(close=fd)
    cuda.alloc(CAPACITY)


def test_importing_in_the_same_process_is_another_reference(cuda: Cuda) -> None:
    handle = _shareable(cuda)
    fd = _export(cuda, handle)
    again = _import(cuda, fd)
    cuda.ask(close=fd)
    cuda("cuMemRelease", handle)
    assert cuda.left() == CAPACITY - UNIT
    cuda("cuMemRelease", again)
    assert cuda.left() == CAPACITY


def test_only_what_was_made_for_it_is_exported(cuda: Cuda) -> None:
    private, shareable = cuda.create(UNIT), _shareable(cuda)
    assert cuda.code("cuMemExportToShareableHandle", room(4), private, POSIX_FD, 0) == INVALID_VALUE
    assert cuda.code("cuMemExportToShareableHandle", room(4), shareable, POSIX_FD, 1) == INVALID_VALUE
    assert cuda.code("cuMemExportToShareableHandle", None, shareable, POSIX_FD, 0) == INVALID_VALUE
    assert cuda.code("cuMemImportFromShareableHandle", room(8), 0, POSIX_FD) == INVALID_VALUE
    assert cuda.code("cuMemImportFromShareableHandle", room(8), 999, POSIX_FD) == INVALID_VALUE


def _exported_pool(owner: Cuda, importer: Cuda, directory: Path) -> tuple[int, int]:
    pool = owner.get("cuMemPoolCreate", pointer_to(pool_properties(DEVICE, 0, POSIX_FD)))
    fd = int.from_bytes(owner("cuMemPoolExportToShareableHandle", room(4), pool, POSIX_FD, 0)[0], "little")
    taken = _hand_over(fd, owner, importer, directory)
    return pool, importer.get("cuMemPoolImportFromShareableHandle", taken, POSIX_FD, 0)


def test_pointers_of_a_shared_pool_are_the_same_bytes(machine: Machine, short_tmp: Path) -> None:
    owner, importer = start(machine), start(machine)
    pool, imported = _exported_pool(owner, importer, short_tmp)
    pointer = owner.get("cuMemAllocFromPoolAsync", 1000, pool, 0)
    owner.write(pointer, b"pooled")
    data = pointer_to(owner("cuMemPoolExportPointer", room(64), pointer)[0])
    held = importer.left()
    there = importer.get("cuMemPoolImportPointer", imported, data)
    assert importer.read(there, 6) == b"pooled"
    assert importer.left() == held
    importer("cuMemFreeAsync", there, 0)
    assert importer.code("cuMemFreeAsync", there, 0) == INVALID_VALUE
    assert owner.read(pointer, 6) == b"pooled"


def test_an_imported_pool_allocates_nothing_and_takes_pointers_of_its_own_alone(
    machine: Machine, short_tmp: Path
) -> None:
    owner, importer = start(machine), start(machine)
    first, imported = _exported_pool(owner, importer, short_tmp)
    second, _ = _exported_pool(owner, importer, short_tmp)
    assert importer.code("cuMemAllocFromPoolAsync", room(8), 1000, imported, 0) == INVALID_VALUE
    assert importer.code("cuDeviceSetMemPool", 0, imported) == INVALID_VALUE
    pointer = owner.get("cuMemAllocFromPoolAsync", 1000, second, 0)
    data = pointer_to(owner("cuMemPoolExportPointer", room(64), pointer)[0])
    assert importer.code("cuMemPoolImportPointer", room(8), imported, data) == INVALID_VALUE
    plain = owner.alloc_async(1000)
    assert owner.code("cuMemPoolExportPointer", room(64), plain) == INVALID_VALUE
    assert owner.code("cuMemPoolExportToShareableHandle", room(4), owner.pool(), POSIX_FD, 0) == INVALID_VALUE
    owner("cuMemPoolDestroy", first)


def test_a_device_is_the_same_gpu_whatever_each_process_calls_it(machine: Machine) -> None:
    owner = start(machine, gpus=2)
    owner.begin(1)
    opener = start(machine, gpus=2, CUDA_VISIBLE_DEVICES="1")
    pointer = owner.alloc(1000)
    owner.write(pointer, b"second GPU")
    opened = _open(opener, _handle(owner, pointer))
    assert opener.read(opened, 10) == b"second GPU"
    ordinal = opener("cuPointerGetAttribute", room(4), 9, opened)[0]
    assert int.from_bytes(ordinal, "little") == 0
