"""What the driver says of a pointer, for every family that a pointer can come from."""

import pytest

from tests.library.machine import Machine
from tests.library.memory_client import (
    DEVICE,
    INVALID_CONTEXT,
    INVALID_VALUE,
    MIB,
    NOT_SUPPORTED,
    POSIX_FD,
    UNIT,
    Cuda,
    allocation_properties,
    pointer_to,
    room,
    start,
)

pytestmark = pytest.mark.thorough

_CONTEXT, _TYPE, _DEVICE_POINTER, _HOST_POINTER, _TOKENS, _SYNC, _ID, _MANAGED, _ORDINAL = range(1, 10)
_IPC, _START, _SIZE, _MAPPED, _HANDLES, _RDMA, _ACCESS, _POOL, _MAPPING_SIZE, _MAPPING_BASE, _BLOCK = range(10, 21)
_HOST_MEMORY, _DEVICE_MEMORY = 1, 2


def _attribute(cuda: Cuda, which: int, pointer: int) -> int:
    return int.from_bytes(cuda("cuPointerGetAttribute", room(8), which, pointer)[0], "little")


def _pointers(cuda: Cuda) -> dict[str, int]:
    address = cuda.reserve(2 * UNIT)
    cuda.map(address, UNIT, cuda.create(UNIT, allocation_properties(DEVICE, 0, POSIX_FD)))
    cuda.allow(address, UNIT)
    return {
        "linear": cuda.alloc(10_000),
        "managed": cuda.get("cuMemAllocManaged", 10_000, 1),
        "host": cuda.get("cuMemHostAlloc", 10_000, 0),
        "pooled": cuda.alloc_async(10_000),
        "virtual": address,
    }


def test_every_family_is_distinguished(cuda: Cuda) -> None:
    pointers = _pointers(cuda)
    told = {
        name: tuple(_attribute(cuda, which, pointer + 5) for which in (_TYPE, _MANAGED, _IPC, _HANDLES))
        for name, pointer in pointers.items()
    }
    assert told == {
        "linear": (_DEVICE_MEMORY, 0, 1, 0),
        "managed": (_DEVICE_MEMORY, 1, 0, 0),
        "host": (_HOST_MEMORY, 0, 0, 0),
        "pooled": (_DEVICE_MEMORY, 0, 0, 0),
        "virtual": (_DEVICE_MEMORY, 0, 0, POSIX_FD),
    }
    for name, pointer in pointers.items():
        assert _attribute(cuda, _DEVICE_POINTER, pointer + 5) == pointer + 5
        assert _attribute(cuda, _ORDINAL, pointer) == 0
        assert _attribute(cuda, _ACCESS, pointer) == 3
        on_host = name in ("managed", "host")
        assert cuda.code("cuPointerGetAttribute", room(8), _HOST_POINTER, pointer) == (0 if on_host else INVALID_VALUE)


def test_memory_of_contexts_knows_its_context_and_memory_of_devices_has_none(machine: Machine) -> None:
    cuda = start(machine, context=False)
    context = cuda.begin()
    pointers = _pointers(cuda)
    told = {name: _attribute(cuda, _CONTEXT, pointer) for name, pointer in pointers.items()}
    assert told == {"linear": context, "managed": context, "host": context, "pooled": 0, "virtual": 0}


def test_ids_are_never_used_again(cuda: Cuda) -> None:
    seen = set()
    for _ in range(5):
        pointer = cuda.alloc(MIB)
        seen.add(_attribute(cuda, _ID, pointer))
        cuda.free(pointer)
    assert len(seen) == 5


def test_neighbours_of_a_slab_are_one_physical_block(cuda: Cuda) -> None:
    first, second, apart = cuda.alloc(100), cuda.alloc(100), cuda.alloc(4 * MIB)
    assert _attribute(cuda, _BLOCK, first) == _attribute(cuda, _BLOCK, second) != _attribute(cuda, _BLOCK, apart)


def test_a_range_is_the_allocation_or_the_whole_reservation(cuda: Cuda) -> None:
    pointers = _pointers(cuda)
    linear, virtual, pooled = pointers["linear"], pointers["virtual"], pointers["pooled"]
    assert [_attribute(cuda, which, linear + 9) for which in (_START, _SIZE, _MAPPED)] == [linear, 10_000, 1]
    assert [_attribute(cuda, which, virtual + 9) for which in (_START, _SIZE, _MAPPED)] == [virtual, 2 * UNIT, 1]
    assert [_attribute(cuda, which, virtual + UNIT) for which in (_START, _SIZE, _MAPPED)] == [virtual, 2 * UNIT, 0]
    assert [_attribute(cuda, which, virtual + 9) for which in (_MAPPING_BASE, _MAPPING_SIZE)] == [virtual, UNIT]
    assert _attribute(cuda, _POOL, pooled) == cuda.pool()
    assert _attribute(cuda, _POOL, linear) == 0


def test_an_unallocated_address_is_invalid(cuda: Cuda) -> None:
    gone = cuda.alloc(4 * MIB)
    cuda.free(gone)
    for nobodys in (gone, 0, 4096):
        asked = (_CONTEXT, _TYPE, _DEVICE_POINTER, _ID, _MANAGED, _START, _MAPPED)
        codes = [cuda.code("cuPointerGetAttribute", room(8), which, nobodys) for which in asked]
        assert codes == [INVALID_VALUE] * len(asked)


def _attributes(cuda: Cuda, which: list[int], pointer: int) -> list[int]:
    words = pointer_to(b"".join(one.to_bytes(4, "little") for one in which))
    places = [cuda.get("cuMemHostAlloc", 8, 0) for _ in which]
    data = pointer_to(b"".join(place.to_bytes(8, "little") for place in places))
    cuda("cuPointerGetAttributes", len(which), words, data, pointer)
    return [int.from_bytes(cuda.peek(place, 8), "little") for place in places]


def test_several_at_once_say_nothing_of_an_unknown_pointer(cuda: Cuda) -> None:
    pointer = cuda.alloc(100)
    which = [_TYPE, _MANAGED, _DEVICE_POINTER, _HOST_POINTER, _SIZE]
    assert _attributes(cuda, which, pointer) == [_DEVICE_MEMORY, 0, pointer, 0, 100]
    assert _attributes(cuda, which, 4096) == [0, 0, 0, 0, 0]


def test_bad_questions_are_refused(cuda: Cuda) -> None:
    pointer = cuda.alloc(100)
    assert cuda.code("cuPointerGetAttribute", None, _TYPE, pointer) == INVALID_VALUE
    assert cuda.code("cuPointerGetAttribute", room(8), 99, pointer) == INVALID_VALUE
    assert cuda.code("cuPointerGetAttribute", room(16), _TOKENS, pointer) == NOT_SUPPORTED
    assert cuda.code("cuPointerGetAttributes", 0, room(4), room(8), pointer) == INVALID_VALUE
    cuda("cuCtxSetCurrent", 0)
    assert cuda.code("cuPointerGetAttributes", 1, pointer_to(b"\2\0\0\0"), room(8), pointer) == INVALID_CONTEXT
