"""cuStreamWaitValue and cuStreamWriteValue: streams that wait for words of memory, and write them."""

import struct
from functools import partial

import pytest

from tests.library.memory_client import INVALID_VALUE, Cuda, room
from tests.waiting import eventually

pytestmark = pytest.mark.thorough

_NOT_READY, _CAPTURE_UNSUPPORTED = 600, 900
_AT_LEAST, _EQUAL, _ANY_OF, _NOT_ALL_OF = range(4)
_BITS = {32: (1 << 32) - 1, 64: (1 << 64) - 1}


def _is_idle(cuda: Cuda, stream: int) -> bool:
    code = cuda.code("cuStreamQuery", stream)
    assert code in (0, _NOT_READY)
    return code == 0


def _word(cuda: Cuda, value: int) -> int:
    """Page-locked memory with a word of 64 bits."""
    pinned = cuda.get("cuMemHostAlloc", 8, 0)
    cuda.poke(pinned, struct.pack("<Q", value))
    return pinned


_ENOUGH = {  # how and for what a stream waits, and what is too little: what is enough
    (_AT_LEAST, 5, 4): 6,
    (_AT_LEAST, 5, -1): 5,
    (_EQUAL, 5, 6): 5,
    (_ANY_OF, 6, 9): 2,
    (_NOT_ALL_OF, 1, -1): -3,
}


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("version", ["", "_ptsz", "_v2", "_v2_ptsz"])
def test_a_stream_waits_for_a_word(cuda: Cuda, bits: int, version: str) -> None:
    idle = {}
    for (how, value, too_little), enough in _ENOUGH.items():
        stream, word = cuda.stream(), _word(cuda, too_little & _BITS[bits])
        cuda(f"cuStreamWaitValue{bits}{version}", stream, word, value, how)
        before = _is_idle(cuda, stream)
        cuda.poke(word, struct.pack("<Q", enough & _BITS[bits]))
        idle[how, value, too_little] = before, eventually(partial(_is_idle, cuda, stream))
    assert idle == dict.fromkeys(_ENOUGH, (False, True))


@pytest.mark.parametrize("bits", [32, 64])
def test_a_word_is_written_when_its_stream_gets_there(cuda: Cuda, bits: int) -> None:
    writing, waiting, word, device = cuda.stream(), cuda.stream(), _word(cuda, 0), cuda.alloc(64)
    cuda(f"cuStreamWaitValue{bits}_v2", writing, word, 1, _EQUAL)
    cuda(f"cuStreamWriteValue{bits}_v2", writing, device + 8, 7, 0)
    cuda(f"cuStreamWaitValue{bits}_v2", waiting, device + 8, 7, _EQUAL)
    assert cuda.read(device + 8, 1) == b"\0"
    assert not _is_idle(cuda, waiting)
    cuda.poke(word, b"\1")
    assert eventually(lambda: _is_idle(cuda, waiting))
    assert cuda.read(device + 8, bits // 8 + 1) == struct.pack("<QB", 7, 0)[: bits // 8] + b"\0"


def test_kernels_behind_a_wait_begin_when_it_is_over(cuda: Cuda) -> None:
    stream, word = cuda.stream(), _word(cuda, 0)
    begin, end = cuda.get("cuEventCreate", 0), cuda.get("cuEventCreate", 0)
    cuda("cuStreamWaitValue32_v2", stream, word, 1, _EQUAL)
    cuda("cuEventRecord", begin, stream)
    cuda.occupy(stream, 3)
    cuda("cuEventRecord", end, stream)
    cuda.poke(word, b"\1")
    cuda("cuStreamSynchronize", stream)
    (milliseconds,) = struct.unpack("f", cuda("cuEventElapsedTime", room(4), begin, end)[0])
    assert milliseconds == pytest.approx(3, rel=0.01)


def test_what_cannot_be_waited_for_is_refused(cuda: Cuda) -> None:
    stream, word = cuda.stream(), cuda.alloc(8)
    for address, flags in ((0, 0), (word + 1, 0), (word + 2**40, 0), (word, 4)):
        assert cuda.code("cuStreamWaitValue32_v2", stream, address, 0, flags) == INVALID_VALUE
        assert cuda.code("cuStreamWriteValue32_v2", stream, address, 0, flags) == INVALID_VALUE
    assert cuda.code("cuStreamWaitValue64_v2", stream, word + 4, 0, 0) == INVALID_VALUE
    assert _is_idle(cuda, stream)
    cuda("cuStreamBeginCapture_v2", stream, 2)
    assert cuda.code("cuStreamWriteValue32_v2", stream, word, 0, 0) == _CAPTURE_UNSUPPORTED
