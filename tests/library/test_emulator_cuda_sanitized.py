"""The CUDA half with every memory error and undefined behaviour fatal: each part once, begun and ended."""

import struct

import pytest

from tests.library.cuda_client import (
    DISABLE_TIMING,
    INTERPROCESS,
    INVALIDATED,
    SMALL,
    SUCCESS,
    WORK,
    Process,
    pointer_to,
    room,
    start,
)
from tests.library.machine import Machine

pytestmark = pytest.mark.thorough

_MS = 1_000_000


def _captured(process: Process) -> int:
    origin, fork = process.stream(), process.stream()
    process.capture(origin)
    process.launch(origin, _MS)
    process("cuStreamWaitEvent", fork, process.record(origin), 0)
    process.launch(fork, _MS)
    process("cuLaunchHostFunc", fork, {"note": 1}, 1)
    process("cuStreamWaitEvent", origin, process.record(fork), 0)
    return process.end_capture(origin)


def test_streams_events_and_host_functions(sanitized_machine: Machine) -> None:
    process = start(sanitized_machine)
    streams = [process.stream(flags) for flags in (0, 1, 0)]
    for stream in (*streams, 0):
        process.launch(stream, _MS)
        process("cuLaunchHostFunc", stream, {"note": 2}, 1)
        event = process.record(stream)
        process("cuStreamWaitEvent", streams[0], event, 0)
        process("cuEventDestroy_v2", event)
    process("cuStreamDestroy_v2", streams[2])
    process("cuCtxSynchronize")
    assert process.notes == [1] * 4
    process("cuDevicePrimaryCtxRelease_v2", 0)


def test_graphs_and_captures(sanitized_machine: Machine) -> None:
    process = start(sanitized_machine)
    graph, stream = _captured(process), process.stream()
    clone = process.get("cuGraphClone", graph)
    outer = process.get("cuGraphCreate", 0)
    first = process.get("cuGraphAddEmptyNode", outer, None, 0)
    process.get("cuGraphAddChildGraphNode", outer, pointer_to(struct.pack("Q", first)), 1, clone)
    executable = process.instantiate(outer)
    for _ in range(3):
        process("cuGraphLaunch", executable, stream)
    other = process.instantiate(graph)
    process("cuGraphExecUpdate_v2", other, clone, room(24))
    process("cuGraphLaunch", other, stream)
    process("cuGraphExecDestroy", executable)
    process("cuGraphExecDestroy", other)
    for handle in (graph, clone, outer):
        process("cuGraphDestroy", handle)
    process("cuStreamSynchronize", stream)
    assert process.notes == [1] * 4


def test_a_capture_that_fails(sanitized_machine: Machine) -> None:
    process = start(sanitized_machine)
    one, other = process.stream(), process.stream()
    process.capture(one)
    process.launch(one, 1)
    event = process.record(one)
    process("cuStreamWaitEvent", other, event, 0)
    assert process.code("cuStreamQuery", other) != SUCCESS
    assert process.code("cuStreamEndCapture", one, room(8)) == INVALIDATED
    process.capture(one)
    process.launch(one, 1)
    process("cuStreamDestroy_v2", one)
    process("cuEventDestroy_v2", event)


def test_modules_libraries_and_contexts(sanitized_machine: Machine) -> None:
    process = start(sanitized_machine)
    library = process.get("cuLibraryLoadData", pointer_to(WORK), None, None, 0, None, None, 0)
    kernel = int.from_bytes(process("cuLibraryGetKernel", room(8), library, pointer_to(b"work\0"))[0], "little")
    context = process.get("cuCtxCreate_v2", 0, 1)
    function = process.function(WORK, "work")
    for handle in (kernel, function):
        process("cuLaunchKernel", handle, *SMALL, 0, 0, {"pointers": [struct.pack("Q", _MS).hex()]}, None)
    process("cuCtxDestroy_v2", context)
    process("cuLibraryUnload", library)
    for text in (b"\0", b".version 7.0 .target sm_80 .entry a(.param .u64 x[", b".version 7.0 .target sm_80 .func f {"):
        assert process.code("cuModuleLoadData", room(8), pointer_to(text + b"\0")) != SUCCESS


def test_processes_that_share_a_gpu_and_die(sanitized_machine: Machine) -> None:
    one, other = start(sanitized_machine), start(sanitized_machine)
    event = other.event(INTERPROCESS | DISABLE_TIMING)
    opened = one.get("cuIpcOpenEventHandle", {"value": other("cuIpcGetEventHandle", room(64), event)[0].hex()})
    stream = other.stream()
    other.launch(stream, 3_600_000 * _MS)
    other("cuEventRecord", event, stream)
    one.launch(one.stream(), 10 * _MS)
    assert len(sanitized_machine.show()["gpus"][0]["processes"]) == 2
    other.kill()
    one("cuCtxSynchronize")
    one("cuEventSynchronize", opened)
    assert len(sanitized_machine.show()["gpus"][0]["processes"]) == 1
