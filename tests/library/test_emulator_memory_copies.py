"""Copies and fills move real bytes, refuse what lies outside of memory, and take their time on the stream."""

import struct

import pytest

from tests.library.machine import Machine
from tests.library.memory_client import INVALID_VALUE, KIB, MIB, UNIT, Cuda, pointer_to, room, start

pytestmark = pytest.mark.thorough

_NOT_READY, _IMPLICIT, _RELAXED = 600, 906, 2
_DATA = bytes(range(256)) * 16


@pytest.mark.parametrize("ptds", ["", "_ptds"])
def test_bytes_come_back_as_they_went(cuda: Cuda, ptds: str) -> None:
    first, second = cuda.alloc(4096), cuda.alloc(8192)
    for size in (1, 255, 4096):
        cuda("cuMemcpyHtoD_v2" + ptds, first, pointer_to(_DATA), size)
        cuda("cuMemcpyDtoD_v2" + ptds, second + 100, first, size)
        assert cuda("cuMemcpyDtoH_v2" + ptds, room(size), second + 100, size)[0] == _DATA[:size]


@pytest.mark.parametrize("ptsz", ["", "_ptsz"])
@pytest.mark.parametrize("own_stream", [False, True])
def test_bytes_of_asynchronous_copies_are_there_after_a_synchronisation(
    cuda: Cuda, ptsz: str, own_stream: bool
) -> None:
    stream = cuda.stream() if own_stream else 0
    first, second = cuda.alloc(4096), cuda.alloc(4096)
    cuda("cuMemcpyHtoDAsync_v2" + ptsz, first, pointer_to(_DATA), 4096, stream)
    cuda("cuMemcpyDtoDAsync_v2" + ptsz, second, first, 4096, stream)
    back = cuda.ask(call="cuMemcpyDtoHAsync_v2" + ptsz, args=[{"keep": room(4096)}, second, 4096, stream])
    cuda("cuStreamSynchronize" + ptsz, stream)
    assert bytes.fromhex(back["outs"][0]) == _DATA


def _any_to_any(cuda: Cuda, target: int, source: int, size: int) -> None:
    cuda("cuMemcpy", target, source, size)
    cuda("cuMemcpyAsync", target, source, size, 0)
    cuda.synchronize()


def test_one_address_space_serves_host_and_device(cuda: Cuda) -> None:
    device, pinned = cuda.alloc(100), cuda.get("cuMemHostAlloc", 100, 0)
    managed = cuda.get("cuMemAllocManaged", 100, 1)
    cuda.poke(pinned, b"x" * 100)
    _any_to_any(cuda, device, pinned, 100)
    _any_to_any(cuda, managed, device, 100)
    assert cuda.peek(managed, 100) == b"x" * 100


def test_nothing_moves_outside_of_an_allocation(cuda: Cuda) -> None:
    pointer, other = cuda.alloc(4096), cuda.alloc(MIB)
    cuda.alloc(4096)
    for offset, size in ((0, 4097), (1, 4096), (-1, 1), (0, 1 << 40)):
        codes = [
            cuda.code("cuMemcpyDtoD_v2", pointer + offset, other, size),
            cuda.code("cuMemcpyDtoD_v2", other, pointer + offset, size),
            cuda.code("cuMemsetD8_v2", pointer + offset, 0, size),
            cuda.code("cuMemcpyDtoDAsync_v2", pointer + offset, other, size, 0),
        ]
        assert codes == [INVALID_VALUE] * 4, (offset, size)


def test_a_copy_to_where_nothing_is_is_invalid(cuda: Cuda) -> None:
    freed = cuda.alloc(10 * MIB)
    cuda.free(freed)
    for nowhere in (freed, freed + 5, 0):
        assert cuda.code("cuMemcpyHtoD_v2", nowhere, pointer_to(b"x"), 1) == INVALID_VALUE
        assert cuda.code("cuMemcpyDtoH_v2", room(1), nowhere, 1) == INVALID_VALUE


def test_copying_nothing_succeeds(cuda: Cuda) -> None:
    cuda("cuMemcpyHtoD_v2", cuda.alloc(1), pointer_to(b""), 0)
    cuda("cuMemsetD8_v2", cuda.alloc(1), 0, 0)


def test_fills_write_bytes_and_words(cuda: Cuda) -> None:
    pointer = cuda.alloc(4096)
    cuda("cuMemsetD8_v2", pointer, 0xAB, 4096)
    cuda("cuMemsetD32_v2", pointer + 8, 0x01020304, 2)
    cuda("cuMemsetD8Async", pointer + 4000, 1, 3, 0)
    cuda("cuMemsetD32Async_ptsz", pointer + 64, 0xFFFFFFFF, 1, 0)
    cuda.synchronize()
    expected = bytearray(b"\xab" * 4096)
    expected[8:16] = struct.pack("<II", 0x01020304, 0x01020304)
    expected[4000:4003] = b"\1\1\1"
    expected[64:68] = b"\xff" * 4
    assert cuda.read(pointer, 4096) == bytes(expected)
    assert cuda.code("cuMemsetD32_v2", pointer + 2, 0, 1) == INVALID_VALUE
    assert cuda.code("cuMemsetD32_v2", pointer, 0, 1025) == INVALID_VALUE


def test_memory_that_was_given_back_comes_again_as_zeros(cuda: Cuda) -> None:
    for size in (4 * MIB, 100):
        pointer = cuda.alloc(size)
        cuda("cuMemsetD8_v2", pointer, 0xFF, size)
        cuda.free(pointer)
        again = cuda.alloc(size)
        assert again == pointer
        assert cuda.read(again + size // 2, 50) == bytes(50)
        cuda.free(again)


def test_device_pointers_are_nothing_to_the_cpu(cuda: Cuda) -> None:
    pointer = cuda.alloc(4096)
    cuda.tell(peek=[pointer, 1])
    assert cuda.process.wait(timeout=10) < 0  # a segmentation fault, as on a machine with a GPU


@pytest.mark.parametrize(
    ("function", "bytes_per_ns", "to_start"),
    [("cuMemcpyHtoDAsync_v2", 25, 5000), ("cuMemcpyDtoDAsync_v2", 1000, 2000), ("cuMemsetD8Async", 2000, 2000)],
)
def test_a_copy_takes_its_time_on_the_stream(cuda: Cuda, function: str, bytes_per_ns: int, to_start: int) -> None:
    size = 16 * MIB
    target, source = cuda.alloc(size), cuda.alloc(size)
    if function.startswith("cuMemcpyHtoD"):
        source = cuda.get("cuMemHostAlloc", size, 0)
    stream = cuda.stream()

    def four_copies() -> None:
        for _ in range(4):
            cuda(function, target, 7 if function == "cuMemsetD8Async" else source, size, stream)

    assert cuda.milliseconds(stream, four_copies) == pytest.approx(4 * (to_start + size / bytes_per_ns) / 1e6, rel=0.02)


def test_a_synchronous_copy_waits_for_the_stream_before_it_returns(cuda: Cuda) -> None:
    pointer, legacy = cuda.alloc(16), cuda.stream(0)
    cuda.occupy(legacy, 150)
    cuda("cuMemsetD8_v2", pointer, 1, 16)
    assert cuda.code("cuStreamQuery", legacy) == _NOT_READY
    cuda.read(pointer, 16)
    assert cuda.code("cuStreamQuery", legacy) == 0


@pytest.mark.parametrize(("flags", "code"), [(0, _IMPLICIT), (1, 0)])
def test_the_legacy_stream_does_nothing_while_a_blocking_stream_is_captured(cuda: Cuda, flags: int, code: int) -> None:
    stream, pointer = cuda.stream(flags), cuda.alloc(16)
    cuda("cuStreamBeginCapture_v2", stream, _RELAXED)
    assert cuda.code("cuMemcpyHtoD_v2", pointer, pointer_to(bytes(16)), 16) == code
    assert cuda.code("cuMemcpyHtoDAsync_v2", pointer, pointer_to(bytes(16)), 16, stream) == (901 if code else 0)


def test_copies_between_devices(machine: Machine) -> None:
    cuda = start(machine, gpus=2)
    here = cuda.alloc(4096)
    cuda.write(here, _DATA)
    cuda.begin(1)
    there = cuda.alloc(4096)
    cuda("cuMemcpyDtoD_v2", there, here, 4096)
    assert cuda.read(there, 4096) == _DATA


def test_a_copy_may_span_neighbours_of_virtual_memory(cuda: Cuda) -> None:
    address = cuda.reserve(4 * UNIT)
    for piece in range(3):
        cuda.map(address + piece * UNIT, UNIT, cuda.create(UNIT))
    cuda.allow(address, 3 * UNIT)
    size = 2 * UNIT + KIB
    cuda("cuMemsetD32_v2", address + 512, 0x11223344, size // 4)
    assert cuda.read(address + UNIT - 4, 8) == struct.pack("<II", 0x11223344, 0x11223344)
    cuda.write(address + 2 * UNIT - 100, b"y" * 200)
    assert cuda.read(address + 2 * UNIT - 100, 200) == b"y" * 200
    assert cuda.code("cuMemcpyHtoD_v2", address + 3 * UNIT - 1, pointer_to(b"ab"), 2) == INVALID_VALUE
