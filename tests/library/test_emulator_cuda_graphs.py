"""Graphs ("CUDA Driver API, Graph Management"): their form, and how long a launch takes on the emulated GPU."""

import struct

import pytest

from tests.library.cuda_client import (
    FULL,
    INVALID_VALUE,
    NOT_READY,
    SUCCESS,
    Process,
    pointer_to,
    room,
)
from tests.library.cuda_graphs import MS, Graph, about, pack

pytestmark = pytest.mark.thorough


def test_a_launch_takes_the_critical_path(process: Process) -> None:
    graph = Graph(process)
    root = graph.kernel(10 * MS)
    left, right = graph.kernel(20 * MS, root), graph.kernel(50 * MS, root)
    graph.kernel(10 * MS, left, right)
    assert graph.milliseconds() == about(70.0)


def test_independent_kernels_that_fill_the_gpu_follow_each_other(process: Process) -> None:
    graph = Graph(process)
    for _ in range(3):
        graph.kernel(20 * MS, shape=FULL)
    assert graph.milliseconds() == about(60.0)


def test_independent_small_kernels_overlap(process: Process) -> None:
    graph = Graph(process)
    for _ in range(3):
        graph.kernel(20 * MS)
    assert graph.milliseconds() == about(20.0)


def test_a_child_graph_lies_between_what_is_before_and_behind_it(process: Process) -> None:
    child, graph = Graph(process), Graph(process)
    child.kernel(20 * MS)
    child.kernel(30 * MS)
    first = graph.kernel(10 * MS)
    graph.kernel(10 * MS, graph.child(child, first))
    assert graph.milliseconds() == about(50.0)
    child.kernel(500 * MS)  # it was copied
    assert graph.milliseconds() == about(50.0)


def test_launches_of_one_graph_follow_each_other_in_whatever_stream(process: Process) -> None:
    """cuGraphLaunch: ordered behind earlier work of the stream and earlier launches of the graph."""
    graph = Graph(process)
    graph.kernel(30 * MS)
    executable, one, other = process.instantiate(graph.handle), process.stream(), process.stream()
    process.launch(one, 300 * MS)
    before = process.record(one)
    process("cuGraphLaunch", executable, one)
    process("cuGraphLaunch", executable, other)
    assert process.settled(before, process.record(other)) == about(60.0)


def test_a_captured_graph_takes_as_long_as_the_work_in_streams(process: Process) -> None:
    origin, fork = process.stream(), process.stream()
    process.capture(origin)
    process.launch(origin, 10 * MS)
    process("cuStreamWaitEvent", fork, process.record(origin), 0)
    process.launch(fork, 40 * MS)
    process.launch(origin, 20 * MS)
    process("cuStreamWaitEvent", origin, process.record(fork), 0)
    process.launch(origin, 10 * MS)
    assert process.graph_time(process.instantiate(process.end_capture(origin)), origin) == about(60.0)


def test_a_graph_launched_into_a_capture_becomes_a_child(process: Process) -> None:
    inner = Graph(process)
    inner.kernel(20 * MS)
    executable, stream = process.instantiate(inner.handle), process.stream()
    process.capture(stream)
    process.launch(stream, 10 * MS)
    process("cuGraphLaunch", executable, stream)
    outer = process.end_capture(stream)
    assert len(process.nodes(outer)) == 2
    assert process.graph_time(process.instantiate(outer), stream) == about(30.0)


def test_host_functions_run_between_what_they_depend_on_and_what_depends_on_them(process: Process, stream: int) -> None:
    process.capture(stream)
    process.launch(stream, 20 * MS)
    process("cuLaunchHostFunc", stream, {"note": 30}, 3)
    process.launch(stream, 20 * MS)
    executable = process.instantiate(process.end_capture(stream))
    begin = process.record(stream)
    process("cuGraphLaunch", executable, stream)
    end = process.record(stream)
    assert process.code("cuEventQuery", end) == NOT_READY
    process("cuGraphExecDestroy", executable)  # what was launched still runs
    assert 70.0 <= process.settled(begin, end) < 130.0
    assert process.notes == [3]


def test_every_way_to_instantiate(process: Process) -> None:
    graph = Graph(process)
    graph.kernel(10 * MS)
    stream, log = process.stream(), room(16)
    params = struct.pack("QQQi4x", 2, stream, 0, 9)
    made = [
        process.get("cuGraphInstantiate", graph.handle, room(8), log, 16),
        process.get("cuGraphInstantiate_v2", graph.handle, None, None, 0),
        process.get("cuGraphInstantiateWithFlags", graph.handle, 1),
        process.get("cuGraphInstantiateWithParams", graph.handle, pointer_to(params)),
        process.get("cuGraphInstantiateWithParams_ptsz", graph.handle, pointer_to(params)),
    ]
    for executable in made:
        process("cuGraphUpload", executable, stream)
        process("cuGraphLaunch", executable, stream)
    process("cuStreamSynchronize", stream)
    flags = [int.from_bytes(process("cuGraphExecGetFlags", executable, room(8))[0], "little") for executable in made]
    assert flags == [0, 0, 1, 2, 2]
    assert process.code("cuGraphInstantiateWithFlags", room(8), graph.handle, 1 << 20) == INVALID_VALUE


def test_a_cycle_cannot_be_instantiated(process: Process) -> None:
    graph = Graph(process)
    one = graph.empty()
    other = graph.empty(one)
    process("cuGraphAddDependencies", graph.handle, pack(other), pack(one), 1)
    made, wrong, _ = process.ask(call="cuGraphInstantiate", args=[room(8), graph.handle, room(8), room(16), 16])["outs"]
    assert process.code("cuGraphInstantiateWithFlags", room(8), graph.handle, 0) == INVALID_VALUE
    assert int.from_bytes(bytes.fromhex(made), "little") == 0
    assert int.from_bytes(bytes.fromhex(wrong), "little") in (one, other)


def test_dependencies_are_of_the_same_graph_and_given_once(process: Process) -> None:
    graph, elsewhere = Graph(process), Graph(process)
    one, other, foreign = graph.empty(), graph.empty(), elsewhere.empty()
    add = "cuGraphAddDependencies"
    assert process.code(add, graph.handle, pack(one), pack(other), 1) == SUCCESS
    assert process.code(add, graph.handle, pack(one), pack(other), 1) == INVALID_VALUE
    assert process.code(add, graph.handle, pack(one), pack(one), 1) == INVALID_VALUE
    assert process.code(add, graph.handle, pack(foreign), pack(one), 1) == INVALID_VALUE
    assert process.code("cuGraphAddEmptyNode", room(8), graph.handle, pack(one, one), 2) == INVALID_VALUE
    assert process.code("cuGraphAddEmptyNode", room(8), graph.handle, pack(foreign), 1) == INVALID_VALUE
    assert process.code("cuGraphAddEmptyNode", room(8), graph.handle, None, 1) == INVALID_VALUE


def test_dependencies_added_later_count(process: Process) -> None:
    graph = Graph(process)
    one, other = graph.kernel(20 * MS), graph.kernel(30 * MS)
    process("cuGraphAddDependencies_v2", graph.handle, pack(other), pack(one), None, 1)
    assert graph.milliseconds() == about(50.0)


def test_a_clone_is_a_graph_of_its_own(process: Process) -> None:
    graph = Graph(process)
    first = graph.kernel(10 * MS)
    graph.kernel(10 * MS, first)
    clone = process.get("cuGraphClone", graph.handle)
    process("cuGraphDestroy", graph.handle)
    assert len(process.nodes(clone)) == 2
    assert process.code("cuGraphDestroy", graph.handle) == INVALID_VALUE
    assert process.graph_time(process.instantiate(clone), process.stream()) == about(20.0)


def test_a_destroyed_node_takes_its_edges_with_it(process: Process) -> None:
    graph = Graph(process)
    first = graph.kernel(10 * MS)
    middle = graph.kernel(100 * MS, first)
    last = graph.kernel(10 * MS, middle)
    process("cuGraphDestroyNode", middle)
    assert process.nodes(graph.handle) == [first, last]
    assert graph.milliseconds() == about(10.0)


def test_an_empty_graph_takes_no_time(process: Process) -> None:
    graph = Graph(process)
    assert graph.milliseconds() == 0.0
