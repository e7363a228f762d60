"""cuMemPrefetchAsync: managed memory, and the application's own on a machine where GPUs can use all memory."""

import pytest

from tests.library.machine import Machine
from tests.library.memory_client import CAPACITY, INVALID_DEVICE, INVALID_VALUE, KIB, MIB, UNIT, Cuda, room, start

pytestmark = pytest.mark.thorough

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
