"""Copies and fills move real bytes, refuse what lies outside of memory, and take their time on the stream.

Of rows, rectangles and boxes, from and to arrays and between contexts.
"""

import struct
from dataclasses import dataclass
from itertools import product

import pytest

from tests.library.machine import Machine
from tests.library.memory_client import INVALID_CONTEXT, INVALID_VALUE, KIB, MIB, UNIT, Cuda, pointer_to, room, start

pytestmark = pytest.mark.thorough

_NOT_READY, _IMPLICIT, _RELAXED = 600, 906, 2
_BYTES = bytes(range(256)) * 16


@pytest.mark.parametrize("ptds", ["", "_ptds"])
def test_bytes_come_back_as_they_went(cuda: Cuda, ptds: str) -> None:
    first, second = cuda.alloc(4096), cuda.alloc(8192)
    for size in (1, 255, 4096):
        cuda("cuMemcpyHtoD_v2" + ptds, first, pointer_to(_BYTES), size)
        cuda("cuMemcpyDtoD_v2" + ptds, second + 100, first, size)
        assert cuda("cuMemcpyDtoH_v2" + ptds, room(size), second + 100, size)[0] == _BYTES[:size]


@pytest.mark.parametrize("ptsz", ["", "_ptsz"])
@pytest.mark.parametrize("own_stream", [False, True])
def test_bytes_of_asynchronous_copies_are_there_after_a_synchronisation(
    cuda: Cuda, ptsz: str, own_stream: bool
) -> None:
    stream = cuda.stream() if own_stream else 0
    first, second = cuda.alloc(4096), cuda.alloc(4096)
    cuda("cuMemcpyHtoDAsync_v2" + ptsz, first, pointer_to(_BYTES), 4096, stream)
    cuda("cuMemcpyDtoDAsync_v2" + ptsz, second, first, 4096, stream)
    back = cuda.ask(call="cuMemcpyDtoHAsync_v2" + ptsz, args=[{"keep": room(4096)}, second, 4096, stream])
    cuda("cuStreamSynchronize" + ptsz, stream)
    assert bytes.fromhex(back["outs"][0]) == _BYTES


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


def test_device_pointers_are_nothing_to_the_cpu(plain_machine: Machine) -> None:
    cuda = start(plain_machine)
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
    cuda.write(here, _BYTES)
    cuda.begin(1)
    there = cuda.alloc(4096)
    cuda("cuMemcpyDtoD_v2", there, here, 4096)
    assert cuda.read(there, 4096) == _BYTES


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


# ---- rectangles and boxes ----


_HOST, _DEVICE, _ARRAY, _UNIFIED = 1, 2, 3, 4  # CUmemorytype
_RELAXED_MODE = 2
_ROWS, _PITCH = 8, 16
_DATA = bytes(range(_ROWS * _PITCH))


@dataclass(frozen=True)
class _Side:
    """One side of a copy; `at` is an address, or the handle of an array."""

    kind: int
    at: int
    pitch: int = 0
    rows: int = 0
    x: int = 0
    y: int = 0
    z: int = 0

    @property
    def _places(self) -> list[int]:
        return [self.at if self.kind in kinds else 0 for kinds in ((_HOST,), (_DEVICE, _UNIFIED), (_ARRAY,))]

    def flat(self) -> bytes:
        return struct.pack("QQI4xQQQQ", self.x, self.y, self.kind, *self._places, self.pitch)

    def deep(self) -> bytes:
        return struct.pack(
            "QQQQI4xQQQQQQ", self.x, self.y, self.z, 0, self.kind, *self._places, 0, self.pitch, self.rows
        )


def _rectangle(source: _Side, target: _Side, width: int, height: int) -> dict[str, str]:
    return pointer_to(source.flat() + target.flat() + struct.pack("QQ", width, height))


def _box(source: _Side, target: _Side, *extents: int) -> dict[str, str]:
    return pointer_to(source.deep() + target.deep() + struct.pack("QQQ", *extents))


def _with_data(cuda: Cuda) -> int:
    """Page-locked memory of the host that holds _DATA."""
    pinned = cuda.get("cuMemHostAlloc", len(_DATA), 0)
    cuda.poke(pinned, _DATA)
    return pinned


def _array(cuda: Cuda, *extents: int) -> int:
    """Of single bytes."""
    return cuda.get("cuArray3DCreate_v2", pointer_to(struct.pack("QQQIII4x", *extents, 1, 1, 0)))


def test_a_rectangle_arrives_where_it_belongs(cuda: Cuda) -> None:
    expected = bytearray(b"\xff" * 256)
    for row in range(4):
        start_of_row = (row + 2) * _PITCH + 1
        expected[(row + 1) * 32 + 3 : (row + 1) * 32 + 8] = _DATA[start_of_row : start_of_row + 5]
    pinned, device, stream = _with_data(cuda), cuda.alloc(256), cuda.stream()
    copy = _rectangle(_Side(_HOST, pinned, _PITCH, x=1, y=2), _Side(_DEVICE, device, 32, x=3, y=1), 5, 4)
    found = {}
    for name in ("2D_v2", "2D_v2_ptds", "2DUnaligned_v2", "2DUnaligned_v2_ptds", "2DAsync_v2", "2DAsync_v2_ptsz"):
        cuda("cuMemsetD8_v2", device, 0xFF, 256)
        cuda(f"cuMemcpy{name}", copy, *([stream] if "Async" in name else []))
        cuda.synchronize()
        found[name] = cuda.read(device, 256)
    assert found == dict.fromkeys(found, bytes(expected))


@pytest.mark.parametrize(
    "name", ["cuMemcpy3D_v2", "cuMemcpy3D_v2_ptds", "cuMemcpy3DAsync_v2", "cuMemcpy3DAsync_v2_ptsz"]
)
def test_a_box_goes_through_an_array_and_comes_back(cuda: Cuda, name: str) -> None:
    pinned, array, back = _with_data(cuda), _array(cuda, 16, 4, 2), cuda.alloc(128)
    stream = [cuda.stream()] if "Async" in name else []
    cuda(name, _box(_Side(_UNIFIED, pinned, _PITCH, 4), _Side(_ARRAY, array), 16, 4, 2), *stream)
    cuda(name, _box(_Side(_ARRAY, array, x=2, y=1), _Side(_DEVICE, back, 14, 3), 14, 3, 2), *stream)
    cuda.synchronize()
    rows = [_DATA[row * _PITCH + 2 : (row + 1) * _PITCH] for layer in (0, 4) for row in range(layer + 1, layer + 4)]
    assert cuda.read(back, 6 * 14) == b"".join(rows)


def test_rows_of_arrays(cuda: Cuda) -> None:
    pinned, first, second, device = _with_data(cuda), _array(cuda, 128, 0, 0), _array(cuda, 128, 0, 0), cuda.alloc(128)
    cuda("cuMemcpyHtoA_v2", first, 8, pinned, 64)
    cuda("cuMemcpyAtoA_v2", second, 0, first, 8, 64)
    cuda("cuMemcpyAtoD_v2", device, second, 1, 63)
    cuda("cuMemcpyDtoA_v2_ptds", first, 100, device, 20)
    assert cuda("cuMemcpyAtoH_v2", room(20), first, 100, 20)[0] == _DATA[1:21]
    stream = cuda.stream()
    cuda("cuMemcpyHtoAAsync_v2", first, 0, pinned + 50, 10, stream)
    cuda("cuMemcpyAtoHAsync_v2_ptsz", pinned, first, 0, 10, stream)
    cuda.synchronize()
    assert cuda.peek(pinned, 10) == _DATA[50:60]


def test_a_batch_is_all_of_its_copies(cuda: Cuda) -> None:
    pinned, device, stream = _with_data(cuda), cuda.alloc(64), cuda.stream()
    targets, sources = struct.pack("QQ", device, device + 16), struct.pack("QQ", pinned, pinned + 100)
    lists = [pointer_to(one) for one in (targets, sources, struct.pack("QQ", 16, 4))]
    cuda("cuMemcpyBatchAsync_v2", *lists, 2, None, None, 0, stream)
    cuda.synchronize()
    assert cuda.read(device, 20) == _DATA[:16] + _DATA[100:104]
    assert cuda.code("cuMemcpyBatchAsync", *lists, 2, None, None, 0, None, 0) == INVALID_VALUE  # the default stream


@pytest.mark.parametrize("name", ["cuMemcpyPeer", "cuMemcpyPeer_ptds", "cuMemcpyPeerAsync"])
def test_copies_between_contexts(machine: Machine, name: str) -> None:
    cuda = start(machine, gpus=2)
    here, there = cuda.begin(0), cuda.begin(1)
    target = cuda.alloc(4096)
    cuda("cuCtxSetCurrent", here)
    source = cuda.alloc(4096)
    cuda.write(source, _DATA)
    stream = [0] if name.endswith("Async") else []
    cuda(name, target, there, source, here, len(_DATA), *stream)
    cuda.synchronize()
    assert cuda.read(target, len(_DATA)) == _DATA
    assert cuda.code(name, target, 0, source, here, 1, *stream) == INVALID_CONTEXT


def test_a_filled_rectangle(cuda: Cuda) -> None:
    device, stream = cuda.alloc(256), cuda.stream()
    for bits, kind in product((8, 16, 32), ("_v2", "_v2_ptds", "Async", "Async_ptsz")):
        cuda("cuMemsetD8_v2", device, 0xFF, 256)
        value = 0x01020304 & (1 << bits) - 1
        cuda(f"cuMemsetD2D{bits}{kind}", device + 8, 64, value, 3, 2, *([stream] if "Async" in kind else []))
        cuda.synchronize()
        expected = bytearray(b"\xff" * 256)
        for row in (8, 72):
            expected[row : row + 3 * bits // 8] = value.to_bytes(bits // 8, "little") * 3
        assert cuda.read(device, 256) == bytes(expected), (bits, kind)


def test_what_lies_outside_of_memory_is_refused(cuda: Cuda) -> None:
    device, other = cuda.alloc(4096), cuda.alloc(4096)
    inside = _Side(_DEVICE, device, 64)
    for outside in (
        _Side(_DEVICE, other, 64, y=1),
        _Side(_DEVICE, other, 63),
        _Side(_DEVICE, 0, 64),
        _Side(9, other, 64),
    ):
        assert cuda.code("cuMemcpy2D_v2", _rectangle(inside, outside, 64, 64)) == INVALID_VALUE
        assert cuda.code("cuMemcpy2DAsync_v2", _rectangle(outside, inside, 64, 64), 0) == INVALID_VALUE
    assert cuda.code("cuMemcpy2D_v2", None) == INVALID_VALUE
    assert cuda.code("cuMemcpy3D_v2", None) == INVALID_VALUE
    assert cuda.code("cuMemsetD2D8_v2", device, 64, 0, 64, 65) == INVALID_VALUE
    assert cuda.code("cuMemsetD2D32_v2", device, 65, 0, 1, 2) == INVALID_VALUE
    cuda("cuMemcpy2D_v2", _rectangle(inside, _Side(_DEVICE, 0), 0, 64))
    cuda("cuMemsetD2D8_v2", 0, 64, 0, 64, 0)


def test_a_rectangle_takes_its_time_on_the_stream(cuda: Cuda) -> None:
    side = _Side(_DEVICE, cuda.alloc(16 * MIB), 4096)
    stream = cuda.stream()

    def four_copies() -> None:
        for _ in range(4):
            cuda("cuMemcpy2DAsync_v2", _rectangle(side, side, 4096, 4096), stream)

    assert cuda.milliseconds(stream, four_copies) == pytest.approx(4 * (2000 + 16 * MIB / 1000) / 1e6, rel=0.02)


def test_in_a_capture_a_rectangle_is_a_node(cuda: Cuda) -> None:
    pinned, device, stream = _with_data(cuda), cuda.alloc(256), cuda.stream()
    cuda("cuMemsetD8_v2", device, 0xFF, 256)
    cuda("cuStreamBeginCapture_v2", stream, _RELAXED_MODE)
    cuda("cuMemcpy2DAsync_v2", _rectangle(_Side(_HOST, pinned, _PITCH), _Side(_DEVICE, device, _PITCH), 16, 2), stream)
    cuda("cuMemsetD2D8Async", device, 16, 7, 4, 1, stream)
    graph = int.from_bytes(cuda("cuStreamEndCapture", stream, room(8))[0], "little")
    assert cuda.read(device, 1) == b"\xff"
    executable = cuda.get("cuGraphInstantiateWithFlags", graph, 0)
    cuda("cuGraphLaunch", executable, stream)
    cuda("cuStreamSynchronize", stream)
    assert cuda.read(device, 32) == bytes([7] * 4) + _DATA[4:32]
