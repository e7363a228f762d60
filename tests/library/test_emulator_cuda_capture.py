"""What stream capture takes and what it forbids.

Rules: "CUDA Driver API, Stream Management" (cuStreamBeginCapture, cuThreadExchangeStreamCaptureMode) and "CUDA C++
Programming Guide, Creating a Graph Using Stream Capture" (cross-stream dependencies, prohibited calls, invalidation).
"""

import struct
from collections.abc import Callable
from itertools import product

import pytest

from tests.library.cuda_client import (
    CAPTURED_EVENT,
    CAPTURING,
    GLOBAL,
    ILLEGAL_STATE,
    IMPLICIT,
    INVALID_VALUE,
    INVALIDATED,
    ISOLATION,
    MERGE,
    NON_BLOCKING,
    NOT_READY,
    RELAXED,
    SUCCESS,
    THREAD_LOCAL,
    UNJOINED,
    UNMATCHED,
    WORK,
    WRONG_THREAD,
    Process,
    pointer_to,
    room,
)

pytestmark = pytest.mark.thorough

_MS = 1_000_000
_NONE, _ACTIVE, _INVALID = 0, 1, 2


def _end_code(process: Process, stream: int, thread: str = "") -> int:
    return process.code("cuStreamEndCapture", stream, room(8), thread=thread)


def _types(process: Process, graph: int) -> list[int]:
    return [int.from_bytes(process("cuGraphNodeGetType", node, room(4))[0], "little") for node in process.nodes(graph)]


def test_captured_launches_do_not_run_and_become_nodes(process: Process, stream: int) -> None:
    process.capture(stream)
    assert process.status(stream) == _ACTIVE
    for _ in range(3):
        process.launch(stream, 3_600_000 * _MS)
    graph = process.end_capture(stream)
    assert process.status(stream) == _NONE
    assert _types(process, graph) == [0, 0, 0]
    assert process.code("cuStreamQuery", stream) == SUCCESS
    assert process.violations == 0


def test_copies_and_sets_become_nodes_and_move_bytes_when_the_graph_is_launched(process: Process, stream: int) -> None:
    one, other = process.get("cuMemAlloc_v2", 4096), process.get("cuMemAlloc_v2", 4096)
    process("cuMemsetD8_v2", other, 0, 4096)
    process.capture(stream)
    process("cuMemsetD8Async", one, 7, 4096, stream)
    process("cuMemcpyDtoDAsync_v2", other, one, 4096, stream)
    process("cuLaunchHostFunc", stream, {"note": 0}, 5)
    graph = process.end_capture(stream)
    assert _types(process, graph) == [2, 1, 3]
    assert process("cuMemcpyDtoH_v2", room(4), other, 4)[0] == bytes(4)
    process("cuGraphLaunch", process.instantiate(graph), stream)
    process("cuStreamSynchronize", stream)
    assert process("cuMemcpyDtoH_v2", room(4), other, 4)[0] == b"\7" * 4
    assert process.notes == [5]


def test_stream_ordered_memory_becomes_nodes(process: Process, stream: int) -> None:
    process.capture(stream)
    pointer = process.get("cuMemAllocAsync", 1 << 20, stream)
    process("cuMemsetD8Async", pointer, 1, 1 << 20, stream)
    process("cuMemFreeAsync", pointer, stream)
    graph = process.end_capture(stream)
    assert _types(process, graph) == [10, 2, 11]
    executable = process.instantiate(graph)
    for _ in range(2):
        process("cuGraphLaunch", executable, stream)
    process("cuStreamSynchronize", stream)


def test_a_fork_by_event_is_captured_and_must_be_joined(process: Process) -> None:
    origin, fork = process.stream(), process.stream()
    process.capture(origin)
    process.launch(origin, 1)
    forked = process.record(origin)
    process("cuStreamWaitEvent", fork, forked, 0)
    assert process.status(fork) == _ACTIVE
    process.launch(fork, 1)
    process.launch(origin, 1)
    joined = process.record(fork)
    process("cuStreamWaitEvent", origin, joined, 0)
    process.launch(origin, 1)
    graph = process.end_capture(origin)
    assert process.status(fork) == _NONE
    assert len(process.nodes(graph)) == 4


def test_work_that_was_not_joined_ends_the_capture_with_an_error(process: Process) -> None:
    origin, fork = process.stream(), process.stream()
    process.capture(origin)
    process("cuStreamWaitEvent", fork, process.record(origin), 0)
    process.launch(fork, 1)
    assert _end_code(process, origin) == UNJOINED
    assert process.status(origin) == process.status(fork) == _NONE


def test_a_capture_ends_in_the_stream_it_began_in(process: Process) -> None:
    origin, fork = process.stream(), process.stream()
    process.capture(origin)
    process("cuStreamWaitEvent", fork, process.record(origin), 0)
    assert _end_code(process, fork) == UNMATCHED


def test_only_a_relaxed_capture_ends_in_another_thread(process: Process) -> None:
    process("cuCtxSetCurrent", process.context, thread="other")
    codes = {}
    for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
        stream = process.stream()
        process.capture(stream, mode)
        codes[mode] = _end_code(process, stream, thread="other")
        _end_code(process, stream)
    assert codes == {GLOBAL: WRONG_THREAD, THREAD_LOCAL: WRONG_THREAD, RELAXED: SUCCESS}


def test_where_a_capture_may_not_begin_or_end(process: Process, stream: int) -> None:
    assert process.code("cuStreamBeginCapture_v2", 0, GLOBAL) == CAPTURING
    assert process.code("cuStreamBeginCapture_v2", stream, 3) == INVALID_VALUE
    assert _end_code(process, stream) == ILLEGAL_STATE
    process.capture(stream)
    assert process.code("cuStreamBeginCapture_v2", stream, GLOBAL) == ILLEGAL_STATE


def test_asking_for_the_state_of_what_is_captured_invalidates_in_every_mode(process: Process) -> None:
    """Programming Guide, prohibited operations: to wait for or ask a captured stream, or the context around it."""
    told = {}
    for call, mode in product(
        ("cuStreamSynchronize", "cuStreamQuery", "cuCtxSynchronize"), (GLOBAL, THREAD_LOCAL, RELAXED)
    ):
        stream, before = process.stream(), process.violations
        process.capture(stream, mode)
        process.launch(stream, 1)
        code = process.code(call, *([] if call == "cuCtxSynchronize" else [stream]))
        status, launch, end = process.status(stream), process.launch_code(stream, 1), _end_code(process, stream)
        told[call, mode] = (code, status, launch, end, process.status(stream), process.violations - before)
    assert told == dict.fromkeys(told, (CAPTURING, _INVALID, INVALIDATED, INVALIDATED, _NONE, 1))


@pytest.mark.parametrize("call", ["cuEventQuery", "cuEventSynchronize"])
def test_a_captured_event_cannot_be_asked(process: Process, stream: int, call: str) -> None:
    process.capture(stream, RELAXED)
    event = process.record(stream)
    assert process.code(call, event) == CAPTURED_EVENT
    assert _end_code(process, stream) == INVALIDATED
    assert process.code(call, event) == CAPTURED_EVENT  # until it is recorded again
    process("cuEventRecord", event, stream)
    assert process.code("cuEventSynchronize", event) == SUCCESS


def test_the_legacy_stream_may_not_depend_on_a_captured_blocking_stream(process: Process) -> None:
    """Calls that work in it implicitly, such as a synchronous copy, as well."""
    pointer, event = process.get("cuMemAlloc_v2", 64), process.event()
    calls: dict[str, list[int | dict[str, object]]] = {
        "cuMemcpyHtoD_v2": [pointer, {"bytes": "00"}, 1],
        "cuMemsetD8_v2": [pointer, 0, 1],
        "cuStreamSynchronize": [0],
        "cuEventRecord": [event, 0],
        "cuLaunchHostFunc": [0, {"note": 0}, 0],
    }
    told = {}
    for call, arguments in calls.items():
        stream = process.stream(0)
        process.capture(stream, RELAXED)
        told[call] = process.code(call, *arguments), process.status(stream), _end_code(process, stream)
    assert told == dict.fromkeys(calls, (IMPLICIT, _INVALID, INVALIDATED))


def test_a_captured_stream_that_is_not_blocking_leaves_the_legacy_stream_alone(process: Process) -> None:
    stream, pointer = process.stream(NON_BLOCKING), process.get("cuMemAlloc_v2", 64)
    process.capture(stream, RELAXED)
    process("cuMemcpyHtoD_v2", pointer, pointer_to(b"x"), 1)
    process.launch(0, 1)
    process("cuStreamSynchronize", 0)
    assert process.status(stream) == _ACTIVE
    assert _end_code(process, stream) == SUCCESS


def test_asking_whether_the_legacy_stream_captures_harms_no_capture(process: Process) -> None:
    """cuStreamIsCapturing: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, and the blocking stream's capture stays valid."""
    stream = process.stream(0)
    process.capture(stream, RELAXED)
    assert process.code("cuStreamIsCapturing", 0, room(4)) == IMPLICIT
    assert process.status(stream) == _ACTIVE


_UNSAFE: dict[str, Callable[[Process], list[int | dict[str, object] | None]]] = {
    "cuMemAlloc_v2": lambda _: [room(8), 4096],
    "cuMemFree_v2": lambda process: [process.get("cuMemAlloc_v2", 4096)],
    "cuMemHostAlloc": lambda _: [room(8), 4096, 0],
    "cuEventQuery": lambda process: [process.record(process.stream())],
    "cuEventSynchronize": lambda process: [process.record(process.stream())],
    "cuStreamSynchronize": lambda process: [process.stream()],
    "cuModuleLoadData": lambda _: [room(8), pointer_to(WORK)],
}


_SAME, _ANOTHER = "", "other"  # thread
_ALLOWED = {  # by the capture's mode, and the mode and the name of the thread that calls
    (GLOBAL, GLOBAL, _SAME): False,
    (GLOBAL, GLOBAL, _ANOTHER): False,
    (GLOBAL, THREAD_LOCAL, _SAME): False,
    (GLOBAL, THREAD_LOCAL, _ANOTHER): True,
    (GLOBAL, RELAXED, _SAME): True,
    (GLOBAL, RELAXED, _ANOTHER): True,
    (THREAD_LOCAL, GLOBAL, _SAME): False,
    (THREAD_LOCAL, GLOBAL, _ANOTHER): True,
    (RELAXED, GLOBAL, _SAME): True,
    (RELAXED, GLOBAL, _ANOTHER): True,
}


@pytest.mark.parametrize(("capture", "mode", "thread"), _ALLOWED)
def test_potentially_unsafe_calls_by_mode_of_capture_and_thread(
    process: Process, capture: int, mode: int, thread: str
) -> None:
    """cuThreadExchangeStreamCaptureMode.

    GLOBAL: forbidden while the thread itself captures in another mode than RELAXED, or any other thread does in mode
    GLOBAL. THREAD_LOCAL: other threads' captures do not matter. RELAXED: nothing is forbidden.
    """
    process("cuCtxSetCurrent", process.context, thread=thread)
    before, told = [], {}
    for call, arguments in {call: ask(process) for call, ask in _UNSAFE.items()}.items():
        stream, violations = process.stream(), process.violations
        process.capture(stream, capture)
        exchanged = process("cuThreadExchangeStreamCaptureMode", pointer_to(struct.pack("i", mode)), thread=thread)[0]
        before.append(struct.unpack("i", exchanged)[0])
        code = process.code(call, *arguments, thread=thread)
        told[call] = code, process.status(stream), process.violations - violations
        _end_code(process, stream)
    assert before == [GLOBAL, *[mode] * (len(_UNSAFE) - 1)]
    allowed = _ALLOWED[capture, mode, thread]
    assert told == dict.fromkeys(_UNSAFE, (SUCCESS, _ACTIVE, 0) if allowed else (CAPTURING, _INVALID, 1))


def test_calls_that_are_safe_in_every_mode(process: Process) -> None:
    stream, elsewhere = process.stream(), process.stream()
    pointer = process.get("cuMemAlloc_v2", 4096)
    process.capture(stream, GLOBAL)
    process.launch(elsewhere, 1)
    process.record(elsewhere)
    process("cuMemcpyDtoDAsync_v2", pointer, pointer + 1024, 64, elsewhere)
    process("cuMemGetInfo_v2", room(8), room(8))
    process.event()
    process("cuThreadExchangeStreamCaptureMode", pointer_to(struct.pack("i", RELAXED)))
    assert process.status(stream) == _ACTIVE
    assert process.violations == 0


def test_a_dependency_across_the_border_of_a_capture_is_an_isolation_error(process: Process) -> None:
    stream, outside = process.stream(), process.stream()
    event = process.record(outside)
    process.capture(stream)
    assert process.code("cuStreamWaitEvent", stream, event, 0) == ISOLATION
    assert _end_code(process, stream) == INVALIDATED


def test_two_captures_cannot_become_one(process: Process) -> None:
    one, other = process.stream(), process.stream()
    process.capture(one)
    process.capture(other)
    process.launch(one, 1)
    event = process.record(one)
    assert process.code("cuStreamWaitEvent", other, event, 0) == MERGE
    assert [process.status(stream) for stream in (one, other)] == [_INVALID, _INVALID]


def test_an_external_record_and_wait_become_nodes(process: Process) -> None:
    """cuEventRecordWithFlags: CU_EVENT_RECORD_EXTERNAL makes an event record node; outside of a capture invalid."""
    stream, event = process.stream(), process.event()
    assert process.code("cuEventRecordWithFlags", event, stream, 1) == INVALID_VALUE
    process.capture(stream)
    process.launch(stream, 100 * _MS)
    process("cuEventRecordWithFlags", event, stream, 1)
    process("cuStreamWaitEvent", stream, event, 1)
    graph = process.end_capture(stream)
    assert _types(process, graph) == [0, 7, 6]
    executable = process.instantiate(graph)
    process("cuGraphLaunch", executable, stream)
    assert process.code("cuEventQuery", event) == NOT_READY
    process("cuEventSynchronize", event)


def test_what_a_capture_says_of_itself(process: Process, stream: int) -> None:
    outs = process("cuStreamGetCaptureInfo_v2", stream, room(4), room(8), room(8), room(8), room(8))
    assert int.from_bytes(outs[0], "little") == _NONE
    process.capture(stream)
    process.launch(stream, 1)
    status, number, graph, _, count = process(
        "cuStreamGetCaptureInfo_v2", stream, room(4), room(8), room(8), room(8), room(8)
    )
    assert [int.from_bytes(out, "little") for out in (status, count)] == [_ACTIVE, 1]
    assert int.from_bytes(process("cuStreamGetCaptureInfo", stream, room(4), room(8))[1], "little") == int.from_bytes(
        number, "little"
    )
    assert process.end_capture(stream) == int.from_bytes(graph, "little")


def test_a_capture_can_add_to_a_graph_that_is_there(process: Process) -> None:
    stream, graph = process.stream(), process.get("cuGraphCreate", 0)
    first = process.get("cuGraphAddEmptyNode", graph, None, 0)
    process("cuStreamBeginCaptureToGraph", stream, graph, pointer_to(struct.pack("Q", first)), None, 1, GLOBAL)
    process.launch(stream, 1)
    assert process.end_capture(stream) == graph
    assert _types(process, graph) == [5, 0]


def test_the_first_generation_of_begin_captures_too(process: Process, stream: int) -> None:
    process("cuStreamBeginCapture", stream)
    process.launch(stream, 1)
    assert len(process.nodes(process.end_capture(stream))) == 1


def test_destroying_a_stream_ends_its_capture(process: Process, stream: int) -> None:
    process.capture(stream)
    process.launch(stream, 1)
    process("cuStreamDestroy_v2", stream)
    assert process.code("cuMemAlloc_v2", room(8), 64) == SUCCESS
