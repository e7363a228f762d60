"""A tour through every family of memory, with each memory error and each undefined behaviour fatal."""

import struct
from pathlib import Path

import pytest

from tests.library.machine import Machine
from tests.library.memory_client import (
    CAPACITY,
    DEVICE,
    HOST_NUMA,
    INVALID_VALUE,
    MIB,
    POSIX_FD,
    UNIT,
    Cuda,
    access,
    allocation_properties,
    location,
    pointer_to,
    pool_properties,
    room,
    start,
)

pytestmark = pytest.mark.thorough


def _linear(cuda: Cuda) -> None:
    pointers = [cuda.alloc(size) for size in (1, 1000, MIB, 3 * MIB)]
    pointers.append(cuda.get("cuMemAllocManaged", 1000, 1))
    pointers.append(int.from_bytes(cuda("cuMemAllocPitch_v2", room(8), room(8), 100, 10, 4)[0], "little"))
    pinned = cuda.get("cuMemHostAlloc", 5000, 0)
    for pointer in (*pointers, pinned):
        for attribute in range(1, 22):
            cuda.code("cuPointerGetAttribute", room(16), attribute, pointer)
        cuda("cuMemsetD8_v2", pointer, 1, 1)
    cuda("cuMemcpy", pinned, pointers[1], 1000)
    for pointer in pointers:
        cuda.free(pointer)
        assert cuda.code("cuMemFree_v2", pointer) == INVALID_VALUE
    cuda("cuMemFreeHost", pinned)


def _virtual(cuda: Cuda) -> None:
    address = cuda.reserve(8 * UNIT)
    device, host = cuda.create(2 * UNIT), cuda.create(UNIT, allocation_properties(HOST_NUMA))
    cuda.map(address, 2 * UNIT, device)
    cuda.map(address + 2 * UNIT, UNIT, host)
    cuda.allow(address, 2 * UNIT)
    cuda.allow(address + 2 * UNIT, UNIT, access(HOST_NUMA), access(DEVICE))
    cuda("cuMemsetD32_v2", address + UNIT, 7, (2 * UNIT) // 4)
    cuda("cuMemGetAccess", room(8), pointer_to(location(DEVICE)), address)
    cuda("cuMemRelease", cuda.get("cuMemRetainAllocationHandle", address + UNIT))
    cuda("cuMemRelease", device)
    cuda("cuMemUnmap", address, 3 * UNIT)
    cuda("cuMemRelease", host)
    cuda("cuMemAddressFree", address, 8 * UNIT)


def _pools(cuda: Cuda) -> None:
    streams = [cuda.stream() for _ in range(3)]
    mine = cuda.get("cuMemPoolCreate", pointer_to(pool_properties(most=100 * MIB)))
    for stream in streams:
        pointers = [cuda.get("cuMemAllocFromPoolAsync", size, mine, stream) for size in (1, MIB, 40 * MIB)]
        for pointer in pointers:
            cuda("cuMemsetD8Async", pointer, 0, 1, stream)
            cuda.free_async(pointer, stream)
    for attribute in range(1, 15):
        cuda("cuMemPoolGetAttribute", mine, attribute, room(8))
    cuda("cuMemPoolDestroy", mine)
    cuda.free(cuda.alloc_async(1000))
    cuda.synchronize()


def _arrays(cuda: Cuda) -> None:
    array = cuda.get("cuArray3DCreate_v2", pointer_to(struct.pack("QQQIII4x", 100, 30, 8, 0x20, 2, 0)))
    cuda("cuArray3DGetDescriptor_v2", room(40), array)
    cuda("cuArrayDestroy", array)
    mipmap = cuda.get("cuMipmappedArrayCreate", pointer_to(struct.pack("QQQIII4x", 100, 30, 8, 1, 1, 0)), 7)
    for level in range(7):
        cuda("cuArray3DGetDescriptor_v2", room(40), cuda.get("cuMipmappedArrayGetLevel", mipmap, level))
    cuda("cuMipmappedArrayDestroy", mipmap)


def _graphs(cuda: Cuda) -> None:
    stream = cuda.stream()
    cuda("cuStreamBeginCapture_v2", stream, 0)
    pointer, kept = cuda.alloc_async(1000, stream), cuda.alloc_async(1000, stream)
    cuda("cuMemsetD8Async", pointer, 3, 1000, stream)
    cuda("cuMemcpyDtoDAsync_v2", kept, pointer, 1000, stream)
    cuda.free_async(pointer, stream)
    graph = int.from_bytes(cuda("cuStreamEndCapture", stream, room(8))[0], "little")
    launched = cuda.get("cuGraphInstantiateWithFlags", graph, 0)
    cuda("cuGraphLaunch", launched, stream)
    cuda("cuGraphExecDestroy", launched)
    cuda("cuGraphDestroy", graph)
    assert cuda.read(kept, 1000) == b"\3" * 1000
    cuda.free_async(kept, stream)
    cuda.synchronize()
    cuda("cuDeviceGraphMemTrim", 0)


def _contexts(cuda: Cuda) -> None:
    context = cuda.get("cuCtxCreate_v2", 0, 0)
    cuda.alloc(1000)
    cuda.alloc(5 * MIB)
    cuda.get("cuMemAllocManaged", 1000, 1)
    cuda.get("cuMemHostAlloc", 1000, 0)
    cuda.get("cuMipmappedArrayCreate", pointer_to(struct.pack("QQQIII4x", 64, 64, 0, 1, 1, 0)), 3)
    cuda("cuCtxDestroy_v2", context)
    cuda("cuCtxSetCurrent", cuda.get("cuDevicePrimaryCtxRetain", 0))


def _errors(machine: Machine) -> str:
    return machine.errors.read_text()


def test_every_family_in_one_process(sanitized_machine: Machine) -> None:
    cuda = start(sanitized_machine)
    for family in (_linear, _virtual, _pools, _arrays, _graphs, _contexts):
        family(cuda)
        assert cuda.left() == CAPACITY, family.__name__
    cuda.__exit__()
    assert (cuda.process.returncode, _errors(sanitized_machine)) == (0, "")


def test_sharing_between_processes(sanitized_machine: Machine) -> None:
    owner, other = start(sanitized_machine), start(sanitized_machine)
    pointer = owner.alloc(1000)
    owner.write(pointer, b"shared")
    handle = {"value": owner("cuIpcGetMemHandle", room(64), pointer)[0].hex()}
    opened = other.get("cuIpcOpenMemHandle_v2", handle, 1)
    assert other.read(opened, 6) == b"shared"
    other("cuIpcCloseMemHandle", opened)
    exported = owner.create(UNIT, allocation_properties(DEVICE, 0, POSIX_FD))
    fd = int.from_bytes(owner("cuMemExportToShareableHandle", room(4), exported, POSIX_FD, 0)[0], "little")
    again = owner.get("cuMemImportFromShareableHandle", fd, POSIX_FD)
    for reference in (exported, again):
        owner("cuMemRelease", reference)
    owner.ask(close=fd)
    for cuda in (other, owner):
        cuda.__exit__()
        assert cuda.process.returncode == 0, _errors(sanitized_machine)
    assert _errors(sanitized_machine) == ""
    assert list(Path(f"{sanitized_machine.state}.memory").iterdir()) == []  # a process that ends in order cleans up
