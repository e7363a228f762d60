"""Page-locked host memory: the application's own or allocated by the driver, and none of it the GPU's."""

import pytest

from tests.library.memory_client import (
    ALREADY_REGISTERED,
    CAPACITY,
    GIB,
    INVALID_VALUE,
    MIB,
    NOT_REGISTERED,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    Cuda,
    room,
)

pytestmark = pytest.mark.thorough

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
