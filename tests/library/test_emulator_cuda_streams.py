"""Order and time ("CUDA Driver API": Stream Management, Event Management, Stream Memory Operations)."""

import struct
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.library.compiler import compiled
from tests.library.cuda_client import (
    DISABLE_TIMING,
    FULL,
    INTERPROCESS,
    INVALID_HANDLE,
    INVALID_VALUE,
    LEGACY,
    NON_BLOCKING,
    NOT_PERMITTED,
    NOT_READY,
    PER_THREAD,
    SUCCESS,
    WORK,
    Process,
    room,
    start,
)
from tests.library.machine import Machine
from tests.library.memory_client import Cuda
from tests.waiting import eventually

pytestmark = pytest.mark.thorough

_MS = 1_000_000
_GATE = 1000 * _MS  # so long is a stream kept busy, so that what is queued behind has no host time in it
_HOST = 40.0  # milliseconds that this machine may take between two calls


def test_kernels_of_a_stream_follow_each_other(process: Process, stream: int) -> None:
    process.launch(stream, _GATE)
    before = process.record(stream)
    for cost in (1, 2, 3):
        process.launch(stream, cost * _MS)
    assert process.settled(before, process.record(stream)) == 6.0


def test_small_kernels_of_different_streams_overlap(process: Process) -> None:
    one, other = process.stream(), process.stream()
    gate = process.stream()
    process.launch(gate, _GATE)
    opened = process.record(gate)
    for stream in (one, other):
        process("cuStreamWaitEvent", stream, opened, 0)
        process.launch(stream, 10 * _MS)
    ends = [process.record(stream) for stream in (one, other)]
    assert [process.settled(opened, end) for end in ends] == [10.0, 10.0]


def test_kernels_that_fill_the_gpu_queue_behind_each_other(process: Process) -> None:
    one, other, gate = process.stream(), process.stream(), process.stream()
    process.launch(gate, _GATE)
    opened = process.record(gate)
    for stream in (one, other):
        process("cuStreamWaitEvent", stream, opened, 0)
        process.launch(stream, 10 * _MS, FULL)
    assert process.settled(opened, process.record(other)) == 20.0


def test_a_query_tells_work_that_is_not_over(process: Process, stream: int) -> None:
    assert process.code("cuStreamQuery", stream) == SUCCESS
    process.launch(stream, 300 * _MS)
    event = process.record(stream)
    assert process.code("cuStreamQuery", stream) == NOT_READY
    assert process.code("cuEventQuery", event) == NOT_READY
    assert process.code("cuEventElapsedTime", room(4), event, event) == NOT_READY
    process("cuStreamSynchronize", stream)
    assert process.code("cuStreamQuery", stream) == SUCCESS
    assert process.code("cuEventQuery", event) == SUCCESS


@pytest.mark.realtime
@pytest.mark.parametrize("wait", ["cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"])
def test_who_synchronises_waits_for_all_that_was_queued(process: Process, stream: int, wait: str) -> None:
    begin = process.record(stream)
    process.launch(stream, 50 * _MS)
    end = process.record(stream)
    arguments = {"cuStreamSynchronize": [stream], "cuCtxSynchronize": [], "cuEventSynchronize": [end]}[wait]
    process(wait, *arguments)
    assert process.code("cuEventQuery", end) == SUCCESS
    assert 50.0 <= process.elapsed(begin, end) < 50.0 + _HOST


def test_an_event_that_was_never_recorded_is_over_and_has_no_time(process: Process) -> None:
    """cuEventQuery: CUDA_SUCCESS; cuEventElapsedTime: CUDA_ERROR_INVALID_HANDLE."""
    event, stream = process.event(), process.stream()
    assert process.code("cuEventQuery", event) == SUCCESS
    assert process.code("cuEventSynchronize", event) == SUCCESS
    assert process.code("cuStreamWaitEvent", stream, event, 0) == SUCCESS
    assert process.code("cuEventElapsedTime", room(4), event, event) == INVALID_HANDLE


def test_events_without_timing_have_no_time(process: Process, stream: int) -> None:
    with_time, without = process.record(stream), process.record(stream, DISABLE_TIMING)
    process("cuStreamSynchronize", stream)
    assert process.code("cuEventElapsedTime", room(4), with_time, without) == INVALID_HANDLE
    assert process.code("cuEventElapsedTime", room(4), with_time, with_time) == SUCCESS


@pytest.mark.parametrize(
    ("flags", "code"), [(8, INVALID_VALUE), (INTERPROCESS, INVALID_VALUE), (INTERPROCESS | DISABLE_TIMING, SUCCESS)]
)
def test_flags_of_events(process: Process, flags: int, code: int) -> None:
    """cuEventCreate: CU_EVENT_INTERPROCESS goes with CU_EVENT_DISABLE_TIMING alone."""
    assert process.code("cuEventCreate", room(8), flags) == code


def test_elapsed_time_has_a_resolution_of_half_a_microsecond(process: Process, stream: int) -> None:
    """cuEventElapsedTime: resolution of about half a microsecond."""
    process.launch(stream, _GATE)
    before = process.record(stream)
    process.launch(stream, 1234)
    assert process.settled(before, process.record(stream)) == pytest.approx(0.001)


def test_a_destroyed_event_or_stream_is_no_handle_any_more(process: Process) -> None:
    event, stream = process.event(), process.stream()
    process("cuEventDestroy_v2", event)
    process("cuStreamDestroy_v2", stream)
    assert process.code("cuEventQuery", event) == INVALID_HANDLE
    assert process.code("cuStreamQuery", stream) == INVALID_HANDLE
    assert process.launch_code(stream, 1) == INVALID_HANDLE


def test_a_stream_destroyed_with_work_in_it_returns_at_once_and_the_work_is_done(process: Process, stream: int) -> None:
    begin = process.record(stream)
    process.launch(stream, 100 * _MS)
    end = process.record(stream)
    process("cuStreamDestroy_v2", stream)
    assert process.code("cuEventQuery", end) == NOT_READY
    assert process.settled(begin, end) >= 100.0


def test_the_legacy_stream_and_blocking_streams_wait_for_each_other(process: Process) -> None:
    blocking = process.stream(0)
    process.launch(blocking, _GATE)
    first = process.record(blocking)
    process.launch(0, 10 * _MS)
    legacy = process.record(0)
    process.launch(blocking, 5 * _MS)
    last = process.record(blocking)
    assert process.settled(first, legacy) == 10.0
    assert process.settled(legacy, last) == 5.0


def test_a_non_blocking_stream_waits_for_no_other(process: Process) -> None:
    free = process.stream(NON_BLOCKING)
    process.launch(0, 200 * _MS)
    process.launch(free, 1 * _MS)
    process("cuStreamSynchronize", free)
    assert process.code("cuStreamQuery", 0) == NOT_READY
    assert process.code("cuStreamQuery", LEGACY) == NOT_READY


def test_each_thread_has_a_default_stream_of_its_own(process: Process) -> None:
    for thread in ("a", "b"):
        process("cuCtxSetCurrent", process.context, thread=thread)
    process.launch(0, 300 * _MS, variant="_ptsz", thread="a")
    assert process.code("cuStreamQuery_ptsz", 0, thread="a") == NOT_READY
    assert process.code("cuStreamQuery", PER_THREAD, thread="a") == NOT_READY
    assert process.code("cuStreamQuery_ptsz", 0, thread="b") == SUCCESS
    assert process.code("cuStreamQuery", 0) == NOT_READY  # the legacy stream waits for it


def test_work_behind_an_event_begins_when_it_is_over(process: Process) -> None:
    one, other = process.stream(), process.stream()
    process.launch(one, _GATE)
    event = process.record(one)
    process("cuStreamWaitEvent", other, event, 0)
    process.launch(other, 3 * _MS)
    assert process.settled(event, process.record(other)) == 3.0


def test_a_wait_is_for_the_record_before_it(process: Process) -> None:
    """cuStreamWaitEvent: for the last record before the call; later ones change nothing."""
    one, other, event = process.stream(), process.stream(), process.event()
    process.launch(one, _GATE)
    process("cuEventRecord", event, one)
    first = process.record(one)
    process("cuStreamWaitEvent", other, event, 0)
    process.launch(one, 60 * _MS)
    process("cuEventRecord", event, one)
    process.launch(other, 1 * _MS)
    assert process.settled(first, process.record(other)) == 1.0


@pytest.mark.realtime
def test_an_event_of_another_gpu_is_waited_for(process: Process) -> None:
    here = process.stream()
    begin = process.record(here)
    context = process.get("cuDevicePrimaryCtxRetain", 1)
    process("cuCtxPushCurrent_v2", context)
    there = process.stream()
    there_work = process.function(WORK, "work")
    process(
        "cuLaunchKernel", there_work, 1, 1, 1, 1, 1, 1, 0, there, {"pointers": [struct.pack("Q", 50 * _MS).hex()]}, None
    )
    event = process.record(there)
    process("cuCtxPopCurrent_v2", room(8))
    process("cuStreamWaitEvent", here, event, 0)
    process.launch(here, 1 * _MS)
    end = process.record(here)
    assert process.code("cuStreamQuery", here) == NOT_READY
    process("cuStreamSynchronize", here)
    assert process.code("cuEventQuery", event) == SUCCESS
    assert 45.0 < process.elapsed(begin, end) < 51.0 + 2 * _HOST


# ---- host functions ----


@pytest.mark.realtime
def test_a_host_function_runs_behind_the_work_before_it_and_work_behind_waits_for_it(
    process: Process, stream: int
) -> None:
    """cuLaunchHostFunc: after what is queued already, before what is queued later."""
    process.launch(stream, 20 * _MS)
    before = process.record(stream)
    process("cuLaunchHostFunc", stream, {"note": 50}, 42)
    process.launch(stream, 10 * _MS)
    after = process.record(stream)
    assert process.notes == []
    assert process.code("cuEventQuery", after) == NOT_READY
    process("cuStreamSynchronize", stream)
    assert process.notes == [42]
    assert 60.0 <= process.elapsed(before, after) < 60.0 + 2 * _HOST


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_callback_is_a_host_function_that_is_told_its_stream(process: Process, stream: int, suffix: str) -> None:
    process.launch(stream, 20 * _MS)
    process(f"cuStreamAddCallback{suffix}", stream, {"note": 0}, 42, 0)
    assert process.notes == []
    process("cuStreamSynchronize", stream)
    assert process.notes == [stream]
    assert process.code("cuStreamAddCallback", stream, {"note": 0}, 42, 1) == INVALID_VALUE
    assert process.code("cuStreamAddCallback", stream, None, 42, 0) == INVALID_VALUE


def test_host_functions_run_in_order_and_hold_up_streams_that_wait(process: Process) -> None:
    one, other = process.stream(), process.stream()
    for number in range(5):
        process("cuLaunchHostFunc", one, {"note": 5}, number)
    event = process.record(one)
    process("cuStreamWaitEvent", other, event, 0)
    process("cuLaunchHostFunc", other, {"note": 0}, 99)
    process("cuStreamSynchronize", other)
    assert process.notes == [0, 1, 2, 3, 4, 99]
    assert process.code("cuEventQuery", event) == SUCCESS


def test_the_legacy_stream_waits_for_host_functions_of_blocking_streams(process: Process) -> None:
    blocking = process.stream(0)
    process("cuLaunchHostFunc", blocking, {"note": 80}, 1)
    process.launch(0, 1 * _MS)
    assert process.code("cuStreamQuery", 0) == NOT_READY
    process("cuStreamSynchronize", 0)
    assert process.notes == [1]


def test_a_host_function_must_not_call_cuda(process: Process, stream: int) -> None:
    """cuLaunchHostFunc: CUDA calls in it may answer CUDA_ERROR_NOT_PERMITTED, and here always do."""
    process("cuLaunchHostFunc", stream, {"asks": "cuCtxSynchronize"}, 0)
    process("cuStreamSynchronize", stream)
    assert process.notes == [NOT_PERMITTED]


def test_a_context_waits_for_host_functions_too(process: Process) -> None:
    process("cuLaunchHostFunc", process.stream(), {"note": 50}, 7)
    process("cuCtxSynchronize")
    assert process.notes == [7]


@pytest.mark.realtime
def test_a_launch_far_ahead_is_held_up_until_the_queue_has_room(process: Process, stream: int) -> None:
    """A stream takes 1,024 launches; the next one waits for the first to end."""
    begin = process.record(stream)
    process.launch(stream, 3000 * _MS)  # longer than 1,023 launches take
    for _ in range(1023):
        process.launch(stream, 1000)
    assert process.code("cuStreamQuery", stream) == NOT_READY
    process.launch(stream, 1000)
    held = process.event()
    process("cuEventRecord", held, process.stream())
    assert process.settled(begin, held) >= 3000.0


@pytest.mark.parametrize(("asked", "got"), [(0, 0), (-5, -5), (-99, -5), (7, 0)])
def test_priorities_are_clamped_to_the_range(process: Process, asked: int, got: int) -> None:
    least, greatest = process("cuCtxGetStreamPriorityRange", room(4), room(4))
    assert struct.unpack("ii", least + greatest) == (0, -5)
    stream = process.get("cuStreamCreateWithPriority", NON_BLOCKING, asked & (2**64 - 1))
    assert struct.unpack("i", process("cuStreamGetPriority", stream, room(4))[0]) == (got,)


def test_what_a_stream_says_of_itself(process: Process) -> None:
    stream, other = process.stream(NON_BLOCKING), process.stream(0)
    assert int.from_bytes(process("cuStreamGetFlags", stream, room(4))[0], "little") == NON_BLOCKING
    assert int.from_bytes(process("cuStreamGetCtx", stream, room(8))[0], "little") == process.context
    ids = [process("cuStreamGetId", one, room(8))[0] for one in (stream, other, 0)]
    assert len(set(ids)) == 3
    assert process.code("cuStreamCreate", room(8), 2) == INVALID_VALUE


def test_an_interprocess_event_is_waited_for_in_another_process(machine: Machine) -> None:
    """cuIpcOpenEventHandle: as if made here with CU_EVENT_DISABLE_TIMING."""
    owner, guest = start(machine), start(machine)
    stream = owner.stream()
    event = owner.event(INTERPROCESS | DISABLE_TIMING)
    handle = owner("cuIpcGetEventHandle", room(64), event)[0]
    opened = guest.get("cuIpcOpenEventHandle", {"value": handle.hex()})
    assert guest.code("cuEventQuery", opened) == SUCCESS
    owner.launch(stream, 200 * _MS)
    owner("cuEventRecord", event, stream)
    assert guest.code("cuEventQuery", opened) == NOT_READY
    guest("cuEventSynchronize", opened)
    assert owner.code("cuEventQuery", event) == SUCCESS
    assert owner.code("cuIpcGetEventHandle", room(64), owner.event()) == INVALID_HANDLE


def test_an_interprocess_event_of_a_dead_process_is_over(machine: Machine) -> None:
    owner, guest = start(machine), start(machine)
    event = owner.event(INTERPROCESS | DISABLE_TIMING)
    opened = guest.get("cuIpcOpenEventHandle", {"value": owner("cuIpcGetEventHandle", room(64), event)[0].hex()})
    stream = owner.stream()
    owner.launch(stream, 3_600_000 * _MS)
    owner("cuEventRecord", event, stream)
    assert guest.code("cuEventQuery", opened) == NOT_READY
    owner.kill()
    guest("cuEventSynchronize", opened)


# ---- streams that wait for words of memory, and write them ----


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


# ---- many threads at once ----


_SOURCE = Path(__file__).parent / "native/cuda_threads.c"


@pytest.mark.parametrize("kind", ["machine", "plain_machine"])
def test_threads_lose_nothing(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    machine: Machine = request.getfixturevalue(kind)
    machine.describe("hgx-a100")
    program = compiled(tmp_path / "cuda_threads", _SOURCE, machine.build / "libcuda.so.1")
    environment = machine.environment | {"LD_LIBRARY_PATH": str(machine.build)}
    done = subprocess.run(
        [program, "16", "300"], env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all done\n"), done.stderr
