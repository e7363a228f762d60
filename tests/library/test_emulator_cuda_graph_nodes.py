"""Nodes of graphs ("CUDA Driver API, Graph Management"): their parameters, their memory, and nodes of any type."""

import struct

import pytest

from tests.library.cuda_client import (
    INVALID_VALUE,
    NOT_PERMITTED,
    NOT_SUPPORTED,
    SUCCESS,
    UPDATE_FAILURE,
    Process,
    pointer_to,
    room,
)
from tests.library.cuda_graphs import MS, Graph, about, pack

pytestmark = pytest.mark.thorough


def test_an_executable_graph_takes_new_parameters(process: Process) -> None:
    graph = Graph(process)
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


def test_the_parameters_of_a_kernel_node_can_be_read(process: Process) -> None:
    graph = Graph(process)
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


def test_what_a_node_of_any_type_does_not_use_is_zero(process: Process) -> None:
    graph = Graph(process)
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
