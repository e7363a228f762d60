"""Copies of rectangles and boxes, from and to arrays and between contexts, and fills of rectangles.

They move what CUDA's documentation says, refuse what lies outside of memory, and take their time on the stream.
"""

import struct
from dataclasses import dataclass
from itertools import product

import pytest

from tests.library.machine import Machine
from tests.library.memory_client import INVALID_CONTEXT, INVALID_VALUE, MIB, Cuda, pointer_to, room, start

pytestmark = pytest.mark.thorough

_HOST, _DEVICE, _ARRAY, _UNIFIED = 1, 2, 3, 4  # CUmemorytype
_RELAXED = 2
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
    cuda("cuStreamBeginCapture_v2", stream, _RELAXED)
    cuda("cuMemcpy2DAsync_v2", _rectangle(_Side(_HOST, pinned, _PITCH), _Side(_DEVICE, device, _PITCH), 16, 2), stream)
    cuda("cuMemsetD2D8Async", device, 16, 7, 4, 1, stream)
    graph = int.from_bytes(cuda("cuStreamEndCapture", stream, room(8))[0], "little")
    assert cuda.read(device, 1) == b"\xff"
    executable = cuda.get("cuGraphInstantiateWithFlags", graph, 0)
    cuda("cuGraphLaunch", executable, stream)
    cuda("cuStreamSynchronize", stream)
    assert cuda.read(device, 32) == bytes([7] * 4) + _DATA[4:32]
