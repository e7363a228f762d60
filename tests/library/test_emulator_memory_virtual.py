"""Virtual memory management: reservations, objects, mappings, access, and how long memory lives."""

import pytest

from tests.library.machine import Machine
from tests.library.memory_client import (
    CAPACITY,
    DEVICE,
    FABRIC,
    GIB,
    HOST,
    HOST_NUMA,
    HOST_NUMA_CURRENT,
    INVALID_DEVICE,
    INVALID_VALUE,
    MANAGED,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    POSIX_FD,
    READ_WRITE,
    UNIT,
    Cuda,
    access,
    allocation_properties,
    location,
    pointer_to,
    room,
    start,
)

pytestmark = pytest.mark.thorough


def _mapped(cuda: Cuda, pieces: int = 1) -> tuple[int, list[int]]:
    address = cuda.reserve(pieces * UNIT)
    handles = [cuda.create(UNIT) for _ in range(pieces)]
    for position, handle in enumerate(handles):
        cuda.map(address + position * UNIT, UNIT, handle)
    return address, handles


def test_addresses_cost_no_memory(cuda: Cuda) -> None:
    address = cuda.reserve(1 << 38)
    assert address % UNIT == 0
    assert cuda.left() == CAPACITY
    cuda("cuMemAddressFree", address, 1 << 38)


def test_a_reservation_is_aligned_as_wished(cuda: Cuda) -> None:
    cuda.reserve(UNIT)
    alignments = (0, 4096, UNIT, 64 * UNIT, GIB)
    assert {each: cuda.reserve(UNIT, each) % max(each, UNIT) for each in alignments} == dict.fromkeys(alignments, 0)


def test_a_reservation_wants_pages_and_powers_of_two(cuda: Cuda) -> None:
    wrong = [(0, 0, 0, 0), (100, 0, 0, 0), (UNIT, 3, 0, 0), (UNIT, 0, 1, 0), (UNIT, 0, 0, 1)]
    assert [cuda.code("cuMemAddressReserve", room(8), *asked) for asked in wrong] == [INVALID_VALUE] * len(wrong)


def test_a_hint_is_followed_where_it_can_be(cuda: Cuda) -> None:
    address = cuda.reserve(4 * UNIT)
    cuda("cuMemAddressFree", address, 4 * UNIT)
    assert cuda.reserve(UNIT, hint=address + UNIT) == address + UNIT
    assert cuda.reserve(UNIT, hint=address + UNIT) != address + UNIT


def test_a_reservation_is_freed_as_it_was_made_and_empty(cuda: Cuda) -> None:
    address, handles = _mapped(cuda, 2)
    assert cuda.code("cuMemAddressFree", address, 2 * UNIT) == INVALID_VALUE
    cuda("cuMemUnmap", address, 2 * UNIT)
    assert cuda.code("cuMemAddressFree", address, UNIT) == INVALID_VALUE
    assert cuda.code("cuMemAddressFree", address + UNIT, UNIT) == INVALID_VALUE
    cuda("cuMemAddressFree", address, 2 * UNIT)
    assert cuda.code("cuMemMap", address, UNIT, 0, handles[0], 0) == INVALID_VALUE


def test_the_granularity_is_two_mebibytes(cuda: Cuda) -> None:
    for kind in (DEVICE, HOST_NUMA):
        properties = pointer_to(allocation_properties(kind))
        assert [cuda.get("cuMemGetAllocationGranularity", properties, option) for option in (0, 1)] == [UNIT, UNIT]


def test_an_object_is_whole_units(cuda: Cuda) -> None:
    sizes, properties = (0, 1, 4096, UNIT - 1, UNIT + 4096, 3 * UNIT // 2), pointer_to(allocation_properties())
    assert {size: cuda.code("cuMemCreate", room(8), size, properties, 0) for size in sizes} == dict.fromkeys(
        sizes, INVALID_VALUE
    )


def test_properties_say_where_and_how(cuda: Cuda) -> None:
    codes = {
        allocation_properties(DEVICE, 7): INVALID_DEVICE,
        allocation_properties(DEVICE, -1): INVALID_DEVICE,
        allocation_properties(0): INVALID_VALUE,
        allocation_properties(HOST_NUMA_CURRENT): INVALID_VALUE,
        allocation_properties(HOST, 0, POSIX_FD): INVALID_VALUE,
        allocation_properties(DEVICE, 0, FABRIC): NOT_SUPPORTED,
        allocation_properties(allocation=MANAGED): INVALID_VALUE,
        allocation_properties(allocation=0): INVALID_VALUE,
        allocation_properties(DEVICE, 0, POSIX_FD): 0,
        allocation_properties(HOST): 0,
        allocation_properties(HOST_NUMA, 0, POSIX_FD): 0,
    }
    assert {each: cuda.code("cuMemCreate", room(8), UNIT, pointer_to(each), 0) for each in codes} == codes


def test_nulls_and_flags_are_invalid(cuda: Cuda) -> None:
    properties = pointer_to(allocation_properties())
    assert cuda.code("cuMemCreate", None, UNIT, properties, 0) == INVALID_VALUE
    assert cuda.code("cuMemCreate", room(8), UNIT, None, 0) == INVALID_VALUE
    assert cuda.code("cuMemCreate", room(8), UNIT, properties, 1) == INVALID_VALUE
    assert cuda.code("cuMemRelease", 999) == INVALID_VALUE


def test_device_objects_are_charged_when_they_are_made_and_host_objects_never(cuda: Cuda) -> None:
    device = cuda.create(100 * UNIT)
    host = cuda.create(100 * UNIT, allocation_properties(HOST))
    assert CAPACITY - cuda.left() == 100 * UNIT
    assert cuda.code("cuMemCreate", room(8), CAPACITY, pointer_to(allocation_properties()), 0) == OUT_OF_MEMORY
    cuda("cuMemRelease", host)
    cuda("cuMemRelease", device)
    assert cuda.left() == CAPACITY


def test_memory_lives_until_its_last_mapping_is_gone(cuda: Cuda) -> None:
    address, (handle,) = _mapped(cuda)
    cuda.allow(address, UNIT)
    cuda("cuMemRelease", handle)
    cuda.write(address, b"still here")
    assert CAPACITY - cuda.left() == UNIT
    assert cuda.code("cuMemRelease", handle) == INVALID_VALUE
    assert cuda.read(address, 10) == b"still here"
    cuda("cuMemUnmap", address, UNIT)
    assert cuda.left() == CAPACITY


def test_memory_lives_until_its_last_handle_is_gone(cuda: Cuda) -> None:
    address, (handle,) = _mapped(cuda)
    assert cuda.get("cuMemRetainAllocationHandle", address + 100) == handle
    cuda("cuMemUnmap", address, UNIT)
    cuda("cuMemRelease", handle)
    assert CAPACITY - cuda.left() == UNIT
    cuda("cuMemRelease", handle)
    assert cuda.left() == CAPACITY
    assert cuda.code("cuMemRetainAllocationHandle", room(8), address) == INVALID_VALUE


def test_one_object_mapped_twice_is_the_same_bytes(cuda: Cuda) -> None:
    address, handle = cuda.reserve(2 * UNIT), cuda.create(UNIT)
    cuda.map(address, UNIT, handle)
    cuda.map(address + UNIT, UNIT, handle)
    cuda.allow(address, 2 * UNIT)
    cuda.write(address + 77, b"twice")
    assert cuda.read(address + UNIT + 77, 5) == b"twice"
    assert CAPACITY - cuda.left() == UNIT


def test_a_mapping_stays_inside_object_and_reservation_and_over_nothing_else(cuda: Cuda) -> None:
    address, handle = cuda.reserve(4 * UNIT), cuda.create(2 * UNIT)
    cuda.map(address + UNIT, UNIT, handle)
    for start_at, size, offset, flags in [
        (address + UNIT, UNIT, 0, 0),  # taken
        (address, 2 * UNIT, 0, 0),  # reaches into what is taken
        (address + 2 * UNIT, 3 * UNIT, 0, 0),  # larger than the object
        (address + 3 * UNIT, 2 * UNIT, 0, 0),  # past the reservation
        (address + 4096, UNIT, 0, 0),
        (address + 2 * UNIT, 4096, 0, 0),
        (address + 2 * UNIT, UNIT, UNIT, 0),  # an offset must be zero
        (address + 2 * UNIT, UNIT, 0, 1),
        (address + 2 * UNIT, 0, 0, 0),
    ]:
        assert cuda.code("cuMemMap", start_at, size, offset, handle, flags) == INVALID_VALUE
    cuda.map(address + 2 * UNIT, 2 * UNIT, handle)


def test_what_is_unmapped_is_whole_mappings(cuda: Cuda) -> None:
    address, _ = _mapped(cuda, 3)
    assert cuda.code("cuMemUnmap", address, UNIT // 2) == INVALID_VALUE
    assert cuda.code("cuMemUnmap", address + 4096, UNIT) == INVALID_VALUE
    cuda("cuMemUnmap", address + UNIT, UNIT)
    assert cuda.code("cuMemUnmap", address, 3 * UNIT) == INVALID_VALUE  # a hole
    cuda("cuMemUnmap", address, UNIT)
    cuda("cuMemUnmap", address + 2 * UNIT, UNIT)


def test_a_mapping_begins_without_access(cuda: Cuda) -> None:
    address, _ = _mapped(cuda, 2)
    here = pointer_to(location(DEVICE))
    assert cuda.code("cuMemcpyHtoD_v2", address, pointer_to(b"x"), 1) == INVALID_VALUE
    assert int.from_bytes(cuda("cuMemGetAccess", room(8), here, address)[0], "little") == 0
    cuda.allow(address, 2 * UNIT)
    assert int.from_bytes(cuda("cuMemGetAccess", room(8), here, address + UNIT)[0], "little") == READ_WRITE
    cuda.write(address, b"x")
    cuda.allow(address, UNIT, access(DEVICE, 0, 0))
    assert cuda.code("cuMemcpyHtoD_v2", address, pointer_to(b"x"), 1) == INVALID_VALUE


def test_access_is_of_whole_mappings_and_of_places_that_exist(cuda: Cuda) -> None:
    address, _ = _mapped(cuda)
    give = "cuMemSetAccess"
    assert cuda.code(give, address, 2 * UNIT, pointer_to(access(DEVICE)), 1) == INVALID_VALUE
    assert cuda.code(give, address + UNIT, UNIT, pointer_to(access(DEVICE)), 1) == INVALID_VALUE
    assert cuda.code(give, address, UNIT, pointer_to(access(DEVICE, 5)), 1) == INVALID_DEVICE
    assert cuda.code(give, address, UNIT, pointer_to(access(DEVICE, 0, 2)), 1) == INVALID_VALUE
    assert cuda.code(give, address, UNIT, pointer_to(access(HOST)), 1) == INVALID_VALUE  # device memory
    assert cuda.code(give, address, UNIT, None, 1) == INVALID_VALUE
    assert cuda.code("cuMemGetAccess", room(8), pointer_to(location(DEVICE)), address + UNIT) == INVALID_VALUE


def test_host_objects_are_seen_by_the_cpu_once_it_has_access(cuda: Cuda) -> None:
    address, handle = cuda.reserve(2 * UNIT), cuda.create(UNIT, allocation_properties(HOST_NUMA))
    cuda.map(address, UNIT, handle)
    cuda.allow(address, UNIT, access(DEVICE), access(HOST_NUMA))
    cuda.poke(address + 5, b"cpu")
    assert cuda.read(address + 5, 3) == b"cpu"
    cuda.write(address + 100, b"copy")
    assert cuda.peek(address + 100, 4) == b"copy"
    cuda("cuMemUnmap", address, UNIT)
    cuda("cuMemRelease", handle)


def test_peers_reach_each_others_memory_and_each_pays_its_own(machine: Machine) -> None:
    cuda = start(machine, gpus=2)
    address, handle = cuda.reserve(UNIT), cuda.create(UNIT, allocation_properties(DEVICE, 1))
    assert cuda.left() == CAPACITY
    cuda.map(address, UNIT, handle)
    can = int.from_bytes(cuda("cuDeviceCanAccessPeer", room(4), 0, 1)[0], "little")
    code = cuda.code("cuMemSetAccess", address, UNIT, pointer_to(access(DEVICE, 0)), 1)
    assert code == (0 if can else INVALID_DEVICE)
    cuda.begin(1)
    assert CAPACITY - cuda.left() == UNIT


def test_a_handle_tells_its_properties(cuda: Cuda) -> None:
    properties = allocation_properties(DEVICE, 0, POSIX_FD)
    handle = cuda.create(UNIT, properties)
    assert cuda("cuMemGetAllocationPropertiesFromHandle", room(32), handle)[0] == properties
    assert cuda.code("cuMemGetAllocationPropertiesFromHandle", room(32), handle + 1) == INVALID_VALUE
