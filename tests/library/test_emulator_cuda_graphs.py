"""Graphs ("CUDA Driver API, Graph Management"): form, time of a launch, parameters, memory, nodes of any type."""

import struct

import pytest

from tests.library.cuda_client import (
    FULL,
    INVALID_VALUE,
    NOT_PERMITTED,
    NOT_READY,
    NOT_SUPPORTED,
    SMALL,
    SUCCESS,
    UPDATE_FAILURE,
    Process,
    pointer_to,
    room,
)

pytestmark = pytest.mark.thorough

MS = 1_000_000


def pack(*nodes: int) -> dict[str, object] | None:
    return pointer_to(struct.pack(f"{len(nodes)}Q", *nodes)) if nodes else None


def kernel_params(process: Process, shape: tuple[int, ...], pointers: int) -> bytes:
    """CUDA_KERNEL_NODE_PARAMS_v2."""
    return struct.pack("Q7I4xQQQQ", process.work, *shape, 0, pointers, 0, 0, 0)


class Graph:
    """A graph that is built node by node. Parameters of kernels lie in page-locked memory that stays."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.handle = process.get("cuGraphCreate", 0)

    def kernel(self, ns: int, *after: int, shape: tuple[int, ...] = SMALL) -> int:
        return self.process.get(
            "cuGraphAddKernelNode_v2", self.handle, pack(*after), len(after), self.params(ns, shape)
        )

    def params(self, ns: int, shape: tuple[int, ...] = SMALL) -> dict[str, object]:
        value = self.process.get("cuMemHostAlloc", 16, 0)
        self.process("cuMemcpy", value + 8, host(self.process, struct.pack("Q", ns)), 8)
        self.process("cuMemcpy", value, host(self.process, struct.pack("Q", value + 8)), 8)
        return pointer_to(kernel_params(self.process, shape, value))

    def empty(self, *after: int) -> int:
        return self.process.get("cuGraphAddEmptyNode", self.handle, pack(*after), len(after))

    def child(self, other: "Graph", *after: int) -> int:
        return self.process.get("cuGraphAddChildGraphNode", self.handle, pack(*after), len(after), other.handle)

    def milliseconds(self) -> float:
        return self.process.graph_time(self.process.instantiate(self.handle), self.process.stream())


def host(process: Process, data: bytes) -> int:
    """The address of page-locked memory that holds the bytes."""
    address = process.get("cuMemHostAlloc", 16, 0)
    process("cuMemcpyDtoH_v2", address, device(process, data), len(data))
    return address


def device(process: Process, data: bytes) -> int:
    pointer = process.get("cuMemAlloc_v2", 16)
    process("cuMemcpyHtoD_v2", pointer, pointer_to(data), len(data))
    return pointer


def about(milliseconds: float) -> object:
    return pytest.approx(milliseconds, abs=0.001)


@pytest.fixture
def graph(process: Process) -> Graph:
    return Graph(process)


def test_a_launch_takes_the_critical_path(graph: Graph) -> None:
    root = graph.kernel(10 * MS)
    left, right = graph.kernel(20 * MS, root), graph.kernel(50 * MS, root)
    graph.kernel(10 * MS, left, right)
    assert graph.milliseconds() == about(70.0)


def test_independent_kernels_that_fill_the_gpu_follow_each_other(graph: Graph) -> None:
    for _ in range(3):
        graph.kernel(20 * MS, shape=FULL)
    assert graph.milliseconds() == about(60.0)


def test_independent_small_kernels_overlap(graph: Graph) -> None:
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


def test_launches_of_one_graph_follow_each_other_in_whatever_stream(graph: Graph, process: Process) -> None:
    """cuGraphLaunch: ordered behind earlier work of the stream and earlier launches of the graph."""
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


def test_every_way_to_instantiate(graph: Graph, process: Process) -> None:
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


def test_a_cycle_cannot_be_instantiated(graph: Graph, process: Process) -> None:
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


def test_dependencies_added_later_count(graph: Graph, process: Process) -> None:
    one, other = graph.kernel(20 * MS), graph.kernel(30 * MS)
    process("cuGraphAddDependencies_v2", graph.handle, pack(other), pack(one), None, 1)
    assert graph.milliseconds() == about(50.0)


def test_a_clone_is_a_graph_of_its_own(graph: Graph, process: Process) -> None:
    first = graph.kernel(10 * MS)
    graph.kernel(10 * MS, first)
    clone = process.get("cuGraphClone", graph.handle)
    process("cuGraphDestroy", graph.handle)
    assert len(process.nodes(clone)) == 2
    assert process.code("cuGraphDestroy", graph.handle) == INVALID_VALUE
    assert process.graph_time(process.instantiate(clone), process.stream()) == about(20.0)


def test_a_destroyed_node_takes_its_edges_with_it(graph: Graph, process: Process) -> None:
    first = graph.kernel(10 * MS)
    middle = graph.kernel(100 * MS, first)
    last = graph.kernel(10 * MS, middle)
    process("cuGraphDestroyNode", middle)
    assert process.nodes(graph.handle) == [first, last]
    assert graph.milliseconds() == about(10.0)


def test_an_empty_graph_takes_no_time(graph: Graph) -> None:
    assert graph.milliseconds() == 0.0


# ---- nodes: their parameters, their memory, and nodes of any type ----


def test_an_executable_graph_takes_new_parameters(graph: Graph, process: Process) -> None:
    node = graph.kernel(10 * MS)
    executable, stream = process.instantiate(graph.handle), process.stream()
    process("cuGraphExecKernelNodeSetParams_v2", executable, node, graph.params(40 * MS))
    assert process.graph_time(executable, stream) == about(40.0)
    assert graph.milliseconds() == about(10.0)
    assert (
        process.code("cuGraphExecKernelNodeSetParams_v2", executable, graph.empty(), graph.params(1)) == INVALID_VALUE
    )


def test_an_update_needs_the_same_form(process: Process) -> None:
    """cuGraphExecUpdate: the result says what differs."""
    graph, same, longer, other = (Graph(process) for _ in range(4))
    graph.kernel(20 * MS, graph.kernel(10 * MS))
    same.kernel(40 * MS, same.kernel(30 * MS))
    longer.kernel(1, longer.kernel(1, longer.kernel(1)))
    other.empty(other.kernel(1))
    executable, stream = process.instantiate(graph.handle), process.stream()
    results = []
    for candidate in (same, longer, other):
        answer = process.ask(call="cuGraphExecUpdate_v2", args=[executable, candidate.handle, room(24)])
        results.append((answer["code"], struct.unpack_from("i", bytes.fromhex(answer["outs"][0]))[0]))
    assert results == [(SUCCESS, 0), (UPDATE_FAILURE, 2), (UPDATE_FAILURE, 3)]
    assert process.graph_time(executable, stream) == about(70.0)
    assert process.code("cuGraphExecUpdate", executable, graph.handle, room(8), room(4)) == SUCCESS
    assert process.graph_time(executable, stream) == about(30.0)


def test_the_parameters_of_a_kernel_node_can_be_read(graph: Graph, process: Process) -> None:
    node = graph.kernel(10 * MS, shape=(4, 1, 1, 64, 1, 1))
    wide = process("cuGraphKernelNodeGetParams_v2", node, room(72))[0]
    function, x, _, _, threads = struct.unpack_from("Q4I", wide)
    assert (function, x, threads) == (process.work, 4, 64)
    narrow = process("cuGraphKernelNodeGetParams", node, room(56))[0]
    assert narrow == wide[:56]
    copy = process.get("cuGraphAddKernelNode", graph.handle, None, 0, pointer_to(narrow))
    assert len(process.nodes(graph.handle)) == 2
    assert copy != node
    assert process.code("cuGraphKernelNodeGetParams_v2", graph.empty(), room(72)) == INVALID_VALUE


def test_allocation_nodes_take_memory_when_the_graph_is_launched(process: Process) -> None:
    graph, size = Graph(process), 64 << 20
    properties = struct.pack("iiii", 1, 0, 1, 0) + bytes(8 + 8 + 56)
    params = properties + struct.pack("QQQQ", 0, 0, size, 0)

    def left() -> int:
        return int.from_bytes(process("cuMemGetInfo_v2", room(8), room(8))[0], "little")

    before = left()
    node, filled = process("cuGraphAddMemAllocNode", room(8), graph.handle, None, 0, pointer_to(params))
    pointer = struct.unpack_from("Q", filled, len(params) - 8)[0]
    assert pointer != 0
    assert left() == before
    executable, stream = process.instantiate(graph.handle), process.stream()
    process("cuGraphLaunch", executable, stream)
    assert before - left() == size
    process("cuMemFreeAsync", pointer, stream)
    process("cuStreamSynchronize", stream)
    process("cuDeviceGraphMemTrim", 0)
    assert left() == before
    child = Graph(process)
    assert process.code("cuGraphAddChildGraphNode", room(8), child.handle, None, 0, graph.handle) == NOT_SUPPORTED
    assert process.code("cuGraphDestroyNode", int.from_bytes(node, "little")) == NOT_SUPPORTED


def test_what_was_instantiated_keeps_the_memory_of_a_graph_that_is_gone(process: Process, stream: int) -> None:
    process.capture(stream)
    pointer = process.get("cuMemAllocAsync", 1 << 20, stream)
    process("cuMemsetD8Async", pointer, 5, 1 << 20, stream)
    process("cuMemFreeAsync", pointer, stream)
    graph = process.end_capture(stream)
    clone = process.get("cuGraphClone", graph)
    executable = process.instantiate(graph)
    process("cuGraphDestroy", graph)
    process("cuGraphDestroy", clone)
    for _ in range(2):
        process("cuGraphLaunch", executable, stream)
    process("cuGraphExecDestroy", executable)
    process("cuStreamSynchronize", stream)
    process("cuDeviceGraphMemTrim", 0)
    assert process.code("cuGraphLaunch", executable, stream) == INVALID_VALUE


_ADD_NODE = ["cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3"]
_KERNEL, _CHILD, _EMPTY, _HOST = 0, 4, 5, 3  # CUgraphNodeType


def _add(process: Process, name: str, graph: int, kind: int, payload: bytes, *after: int) -> tuple[int, int]:
    """Code and node. The payload fills the union of CUgraphNodeParams."""
    params = pointer_to(struct.pack("i12x", kind) + payload.ljust(232, b"\0") + bytes(8))
    edges: list[None] = [] if name == "cuGraphAddNode" else [None]
    answer = process.ask(call=name, args=[room(8), graph, pack(*after), *edges, len(after), params])
    return answer["code"], int.from_bytes(bytes.fromhex(answer["outs"][0]), "little")


@pytest.mark.parametrize("name", _ADD_NODE)
def test_nodes_of_any_type_are_those_of_their_own_functions(process: Process, name: str) -> None:
    """cuGraphAddNode: kernels, empty nodes, child graphs."""
    graph, child = Graph(process), Graph(process)
    child.kernel(30 * MS)
    payload = bytes.fromhex(str(graph.params(20 * MS)["bytes"]))
    code, first = _add(process, name, graph.handle, _KERNEL, payload)
    assert code == SUCCESS
    code, middle = _add(process, name, graph.handle, _EMPTY, b"", first)
    assert code == SUCCESS
    code, last = _add(process, name, graph.handle, _CHILD, struct.pack("Qi", child.handle, 0), middle)
    assert code == SUCCESS
    assert process.nodes(graph.handle) == [first, middle, last]
    kinds = [
        int.from_bytes(process("cuGraphNodeGetType", node, room(4))[0], "little") for node in (first, middle, last)
    ]
    assert kinds == [_KERNEL, _EMPTY, _CHILD]
    assert graph.milliseconds() == about(50.0)


def test_what_a_node_of_any_type_does_not_use_is_zero(graph: Graph, process: Process) -> None:
    assert _add(process, "cuGraphAddNode", graph.handle, _EMPTY, bytes(100) + b"\1")[0] == INVALID_VALUE
    assert process.code("cuGraphAddNode", room(8), graph.handle, None, 0, None) == INVALID_VALUE
    for reserved in (8, 250):
        params = bytearray(struct.pack("i", _EMPTY).ljust(256, b"\0"))
        params[reserved] = 1
        code = process.code("cuGraphAddNode", room(8), graph.handle, None, 0, pointer_to(bytes(params)))
        assert code == INVALID_VALUE
    assert _add(process, "cuGraphAddNode", graph.handle, _HOST, b"")[0] == NOT_SUPPORTED
    assert process.nodes(graph.handle) == []


def test_a_child_graph_that_is_moved_belongs_to_its_node(process: Process) -> None:
    graph, child = Graph(process), Graph(process)
    child.kernel(30 * MS)
    moved = struct.pack("Qi", child.handle, 1)
    assert _add(process, "cuGraphAddNode_v2", graph.handle, _CHILD, moved)[0] == SUCCESS
    child.kernel(20 * MS)  # it is the node's own, not a copy
    assert graph.milliseconds() == about(30.0)
    assert process.code("cuGraphDestroy", child.handle) == NOT_PERMITTED
    assert _add(process, "cuGraphAddNode_v2", Graph(process).handle, _CHILD, moved)[0] == INVALID_VALUE
    assert (
        _add(process, "cuGraphAddNode_v2", graph.handle, _CHILD, struct.pack("Qi", graph.handle, 1))[0] == INVALID_VALUE
    )
    process("cuGraphDestroy", graph.handle)
    assert process.code("cuGraphDestroy", child.handle) == INVALID_VALUE
