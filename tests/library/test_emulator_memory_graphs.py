"""Memory of graphs: an address from the node's making on, memory from launch to free, kept for the next launch."""

import struct
from collections.abc import Callable
from itertools import product

import pytest

from tests.library.memory_client import (
    CAPACITY,
    DEVICE,
    INVALID_DEVICE,
    INVALID_VALUE,
    MIB,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    POSIX_FD,
    UNIT,
    Cuda,
    CudaError,
    pointer_to,
    pool_properties,
    room,
)

pytestmark = pytest.mark.thorough

_STEP = 32 * MIB
USED, _USED_HIGH, RESERVED_MEMORY, _RESERVED_HIGH = range(4)  # CUgraphMem_attribute
_GLOBAL, _THREAD_LOCAL, RELAXED = range(3)  # CUstreamCaptureMode
_UNSUPPORTED, _INVALIDATED = 900, 901
_AUTO_FREE = 1
_HOST_MEMORY, _DEVICE_MEMORY, _ARRAY_MEMORY = 1, 2, 3
_POINTER_AT = 88 + 24  # of CUDA_MEM_ALLOC_NODE_PARAMS


def _params(size: int, properties: bytes | None = None) -> dict[str, str]:
    return pointer_to((properties or pool_properties()) + struct.pack("QQQQ", 0, 0, size, 0))


def level(cuda: Cuda, which: int) -> int:
    return int.from_bytes(cuda("cuDeviceGetGraphMemAttribute", 0, which, room(8))[0], "little")


def levels(cuda: Cuda) -> list[int]:
    return [level(cuda, which) for which in (USED, _USED_HIGH, RESERVED_MEMORY, _RESERVED_HIGH)]


def new_graph(cuda: Cuda) -> int:
    return cuda.get("cuGraphCreate", 0)


def add_alloc(cuda: Cuda, graph: int, size: int, *after: int) -> tuple[int, int]:
    """Node and address."""
    before = pointer_to(struct.pack(f"{len(after)}Q", *after)) if after else None
    answer = cuda("cuGraphAddMemAllocNode", room(8), graph, before, len(after), _params(size))
    node, params = answer[0], answer[-1]
    return int.from_bytes(node, "little"), int.from_bytes(params[_POINTER_AT : _POINTER_AT + 8], "little")


def add_free(cuda: Cuda, graph: int, pointer: int, after: int) -> int:
    return cuda.get("cuGraphAddMemFreeNode", graph, pointer_to(struct.pack("Q", after)), 1, pointer)


def instantiate(cuda: Cuda, graph: int, flags: int = 0) -> int:
    return cuda.get("cuGraphInstantiateWithFlags", graph, flags)


def test_an_address_costs_nothing_until_its_graph_is_launched(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    node, pointer = add_alloc(cuda, graph, 10 * MIB)
    assert pointer != 0
    add_free(cuda, graph, pointer, node)
    launched = instantiate(cuda, graph)
    assert cuda.left() == CAPACITY
    assert cuda.code("cuMemcpyHtoD_v2", pointer, pointer_to(b"x"), 1) == INVALID_VALUE
    assert cuda.code("cuMemFree_v2", pointer) == INVALID_VALUE
    cuda("cuGraphLaunch", launched, 0)
    assert levels(cuda) == [0, 10 * MIB, _STEP, _STEP]
    assert CAPACITY - cuda.left() == _STEP


def test_what_a_launch_left_behind_is_the_applications_to_free(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    _, pointer = add_alloc(cuda, graph, 1000)
    launched = instantiate(cuda, graph)
    cuda("cuGraphLaunch", launched, 0)
    cuda.write(pointer, b"graph memory")
    assert cuda.read(pointer, 12) == b"graph memory"
    assert cuda.code("cuGraphLaunch", launched, 0) == INVALID_VALUE
    cuda.free_async(pointer)
    assert cuda.code("cuMemFreeAsync", pointer, 0) == INVALID_VALUE
    cuda("cuGraphLaunch", launched, 0)
    cuda.free(pointer)
    assert level(cuda, USED) == 0


def test_launches_free_what_earlier_ones_left_where_that_was_asked_for(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    _, pointer = add_alloc(cuda, graph, 1000)
    launched = instantiate(cuda, graph, _AUTO_FREE)
    for _ in range(3):
        cuda("cuGraphLaunch", launched, 0)
        cuda.write(pointer, b"there")
    assert level(cuda, USED) == UNIT


def test_graph_memory_is_kept_until_it_is_trimmed(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    node, pointer = add_alloc(cuda, graph, 100 * MIB)
    add_free(cuda, graph, pointer, node)
    launched = instantiate(cuda, graph)
    for _ in range(3):
        cuda("cuGraphLaunch", launched, 0)
        cuda.synchronize()
        assert level(cuda, RESERVED_MEMORY) == 4 * _STEP
    cuda("cuDeviceGraphMemTrim", 0)
    assert levels(cuda) == [0, 100 * MIB, 0, 4 * _STEP]
    assert cuda.left() == CAPACITY
    for which in (_USED_HIGH, _RESERVED_HIGH):
        cuda("cuDeviceSetGraphMemAttribute", 0, which, pointer_to(bytes(8)))
    assert levels(cuda) == [0, 0, 0, 0]


def test_a_trim_takes_nothing_that_is_in_use(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    _, pointer = add_alloc(cuda, graph, 1000)
    cuda("cuGraphLaunch", instantiate(cuda, graph), 0)
    cuda("cuDeviceGraphMemTrim", 0)
    cuda.write(pointer, b"kept")
    assert level(cuda, RESERVED_MEMORY) == _STEP


def test_memory_outlives_its_graph(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    _, pointer = add_alloc(cuda, graph, 1000)
    launched = instantiate(cuda, graph)
    cuda("cuGraphLaunch", launched, 0)
    cuda("cuGraphExecDestroy", launched)
    cuda("cuGraphDestroy", graph)
    cuda.write(pointer, b"still")
    cuda.free(pointer)
    assert cuda.code("cuMemcpyHtoD_v2", pointer, pointer_to(b"x"), 1) == INVALID_VALUE


def test_a_launch_without_room_is_out_of_memory_and_takes_nothing(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    first, _ = add_alloc(cuda, graph, 100 * MIB)
    add_alloc(cuda, graph, CAPACITY, first)
    launched = instantiate(cuda, graph)
    assert cuda.code("cuGraphLaunch", launched, 0) == OUT_OF_MEMORY
    assert level(cuda, USED) == 0
    cuda("cuDeviceGraphMemTrim", 0)
    assert cuda.left() == CAPACITY


def test_a_node_wants_a_size_and_memory_of_a_device(cuda: Cuda) -> None:
    wrong = [
        _params(0),
        _params(1, pool_properties(DEVICE, 5)),
        _params(1, pool_properties(2)),
        _params(1, pool_properties(DEVICE, 0, POSIX_FD)),
    ]
    graph = new_graph(cuda)
    codes = [cuda.code("cuGraphAddMemAllocNode", room(8), graph, None, 0, params) for params in wrong]
    assert codes == [INVALID_VALUE] * len(wrong)


def test_only_what_a_graph_allocated_is_freed_by_one_and_once(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    node, pointer = add_alloc(cuda, graph, 1000)
    plain, pooled = cuda.alloc(1000), cuda.alloc_async(1000)
    for wrong in (plain, pooled, 0, pointer + 512):
        assert cuda.code("cuGraphAddMemFreeNode", room(8), graph, None, 0, wrong) == INVALID_VALUE
    add_free(cuda, graph, pointer, node)
    after = pointer_to(struct.pack("Q", node))
    assert cuda.code("cuGraphAddMemFreeNode", room(8), graph, after, 1, pointer) == INVALID_VALUE


def test_captured_allocations_become_the_graphs(cuda: Cuda) -> None:
    stream = cuda.stream()
    cuda("cuStreamBeginCapture_v2", stream, _GLOBAL)
    pointer = cuda.alloc_async(1000, stream)
    cuda("cuMemsetD8Async", pointer, 0x5A, 1000, stream)
    kept = cuda.alloc_async(1000, stream)
    cuda("cuMemcpyDtoDAsync_v2", kept, pointer, 1000, stream)
    cuda.free_async(pointer, stream)
    graph = int.from_bytes(cuda("cuStreamEndCapture", stream, room(8))[0], "little")
    assert cuda.attribute(cuda.pool(), 5) == 0  # CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    assert cuda.left() == CAPACITY
    launched = instantiate(cuda, graph)
    for _ in range(2):
        cuda("cuGraphLaunch", launched, stream)
        cuda("cuStreamSynchronize", stream)
        assert cuda.read(kept, 1000) == b"\x5a" * 1000
        assert level(cuda, USED) == UNIT
        cuda.free_async(kept, stream)


def test_a_captured_free_is_of_graph_memory_alone(cuda: Cuda) -> None:
    stream, pooled = cuda.stream(), cuda.alloc_async(1000)
    cuda("cuStreamBeginCapture_v2", stream, RELAXED)
    assert cuda.code("cuMemFreeAsync", pooled, stream) == INVALID_VALUE


def test_calls_that_may_synchronise_end_strict_captures(cuda: Cuda) -> None:
    pointers = [cuda.alloc(1000) for _ in range(3)]
    made: dict[str, Callable[[], int]] = {
        "alloc": lambda: cuda.code("cuMemAlloc_v2", room(8), 1000),
        "free": lambda: cuda.code("cuMemFree_v2", pointers.pop()),
        "host": lambda: cuda.code("cuMemHostAlloc", room(8), 1000, 0),
        "array": lambda: cuda.code("cuArrayCreate_v2", room(8), pointer_to(struct.pack("QQII", 16, 16, 1, 1))),
    }
    told = {}
    for mode, call in product((_GLOBAL, _THREAD_LOCAL, RELAXED), made):
        stream = cuda.stream()
        cuda("cuStreamBeginCapture_v2", stream, mode)
        told[mode, call] = made[call](), cuda.code("cuStreamEndCapture", stream, room(8))
    assert told == {each: (0, 0) if each[0] == RELAXED else (_UNSUPPORTED, _INVALIDATED) for each in told}


def test_virtual_memory_may_be_made_inside_a_capture(cuda: Cuda) -> None:
    stream, address = cuda.stream(), cuda.reserve(UNIT)
    cuda("cuStreamBeginCapture_v2", stream, _GLOBAL)
    cuda.map(address, UNIT, cuda.create(UNIT))
    cuda.allow(address, UNIT)
    cuda("cuStreamEndCapture", stream, room(8))


def _copy3d(
    source: tuple[int, int, int, int], target: tuple[int, int, int, int], extents: tuple[int, int, int]
) -> bytes:
    """Sides are (memory type, address or array, pitch, height)."""

    def side(kind: int, where: int, pitch: int, height: int) -> bytes:
        host, device, array = (where if kind == one else 0 for one in (_HOST_MEMORY, _DEVICE_MEMORY, _ARRAY_MEMORY))
        return struct.pack("QQQQI4xQQQQQQ", 0, 0, 0, 0, kind, host, device, array, 0, pitch, height)

    return side(*source) + side(*target) + struct.pack("QQQ", *extents)


def _run(cuda: Cuda, graph: int) -> None:
    cuda("cuGraphLaunch", instantiate(cuda, graph), 0)
    cuda.synchronize()


def test_a_copy_node_moves_a_box_through_an_array(cuda: Cuda) -> None:
    width, height, depth, pitch = 20, 3, 2, 32
    source, target = cuda.alloc(pitch * height * depth), cuda.alloc(pitch * height * depth)
    rows = [bytes([10 * z + y] * width) for z in range(depth) for y in range(height)]
    cuda.write(source, b"".join(row.ljust(pitch, b"\xee") for row in rows))
    cuda("cuMemsetD8_v2", target, 0, pitch * height * depth)
    array = cuda.get("cuArray3DCreate_v2", pointer_to(struct.pack("QQQIII4x", width, height, depth, 1, 1, 0)))
    context = cuda.get("cuCtxGetCurrent")
    graph, extents = new_graph(cuda), (width, height, depth)
    there = _copy3d((_DEVICE_MEMORY, source, pitch, height), (_ARRAY_MEMORY, array, 0, 0), extents)
    back = _copy3d((_ARRAY_MEMORY, array, 0, 0), (_DEVICE_MEMORY, target, pitch, height), extents)
    first = cuda.get("cuGraphAddMemcpyNode", graph, None, 0, pointer_to(there), context)
    after = pointer_to(struct.pack("Q", first))
    cuda("cuGraphAddMemcpyNode", room(8), graph, after, 1, pointer_to(back), context)
    _run(cuda, graph)
    assert cuda.read(target, pitch * height * depth) == b"".join(row.ljust(pitch, b"\0") for row in rows)


def test_a_copy_node_stays_inside_of_memory(cuda: Cuda) -> None:
    source, target, context = cuda.alloc(1000), cuda.alloc(1000), cuda.get("cuCtxGetCurrent")
    for extents, pitch in [((1001, 1, 1), 1001), ((100, 11, 1), 100), ((100, 2, 1), 99), ((10, 10, 11), 10)]:
        params = _copy3d((_DEVICE_MEMORY, source, pitch, 10), (_DEVICE_MEMORY, target, pitch, 10), extents)
        code = cuda.code("cuGraphAddMemcpyNode", room(8), new_graph(cuda), None, 0, pointer_to(params), context)
        assert code == INVALID_VALUE, extents


@pytest.mark.parametrize(("element", "value"), [(1, 0xAB), (2, 0xABCD), (4, 0x01020304)])
def test_a_fill_node_fills_rows(cuda: Cuda, element: int, value: int) -> None:
    pointer, context, graph = cuda.alloc(4 * 64), cuda.get("cuCtxGetCurrent"), new_graph(cuda)
    cuda("cuMemsetD8_v2", pointer, 0, 4 * 64)
    params = struct.pack("QQIIQQ", pointer, 64, value, element, 5, 3)
    cuda("cuGraphAddMemsetNode", room(8), graph, None, 0, pointer_to(params), context)
    _run(cuda, graph)
    row = (value.to_bytes(element, "little") * 5).ljust(64, b"\0")
    assert cuda.read(pointer, 4 * 64) == row * 3 + bytes(64)


def test_a_fill_node_is_checked(cuda: Cuda) -> None:
    pointer, context = cuda.alloc(256), cuda.get("cuCtxGetCurrent")
    for pitch, element, width, height in [(64, 3, 1, 1), (64, 1, 65, 2), (64, 1, 64, 5), (0, 1, 257, 1), (64, 1, 0, 1)]:
        params = pointer_to(struct.pack("QQIIQQ", pointer, pitch, 0, element, width, height))
        code = cuda.code("cuGraphAddMemsetNode", room(8), new_graph(cuda), None, 0, params, context)
        assert code == INVALID_VALUE, (pitch, element, width, height)


def test_devices_that_are_not_there_have_no_graph_memory(cuda: Cuda) -> None:
    assert cuda.code("cuDeviceGetGraphMemAttribute", 3, USED, room(8)) == INVALID_DEVICE
    assert cuda.code("cuDeviceGraphMemTrim", 3) == INVALID_DEVICE
    assert cuda.code("cuDeviceSetGraphMemAttribute", 0, USED, pointer_to(bytes(8))) == INVALID_VALUE
    assert cuda.code("cuDeviceSetGraphMemAttribute", 0, _USED_HIGH, pointer_to(b"\1" + bytes(7))) == INVALID_VALUE


_ADD_NODE = ["cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3"]
_COPY, _FILL, _CHILD, _ALLOC, _FREE = 1, 2, 4, 10, 11  # CUgraphNodeType


def _add(cuda: Cuda, name: str, graph: int, kind: int, payload: bytes, *after: int) -> tuple[int, bytes]:
    """The node, and the union of CUgraphNodeParams as the call left it."""
    before = pointer_to(struct.pack(f"{len(after)}Q", *after)) if after else None
    params = pointer_to(struct.pack("i12x", kind) + payload.ljust(232, b"\0") + bytes(8))
    edges: list[None] = [] if name == "cuGraphAddNode" else [None]
    answer = cuda(name, room(8), graph, before, *edges, len(after), params)
    return int.from_bytes(answer[0], "little"), answer[-1][16:]


@pytest.mark.parametrize("name", _ADD_NODE)
def test_nodes_of_any_type_allocate_fill_copy_and_free(cuda: Cuda, name: str) -> None:
    graph, target, context = new_graph(cuda), cuda.alloc(64), cuda.get("cuCtxGetCurrent")
    node, filled = _add(cuda, name, graph, _ALLOC, pool_properties() + struct.pack("QQQQ", 0, 0, 1000, 0))
    pointer = int.from_bytes(filled[_POINTER_AT : _POINTER_AT + 8], "little")
    assert pointer != 0
    fill = struct.pack("QQIIQQQ", pointer, 0, 0x5A, 1, 64, 1, context)
    node, _ = _add(cuda, name, graph, _FILL, fill, node)
    copy = _copy3d((_DEVICE_MEMORY, pointer, 64, 1), (_DEVICE_MEMORY, target, 64, 1), (64, 1, 1))
    node, _ = _add(cuda, name, graph, _COPY, struct.pack("iiQ", 0, 0, context) + copy, node)
    _add(cuda, name, graph, _FREE, struct.pack("Q", pointer), node)
    _run(cuda, graph)
    assert cuda.read(target, 64) == b"\x5a" * 64
    assert levels(cuda) == [0, UNIT, _STEP, _STEP]


def test_a_child_graph_that_is_moved_may_allocate(cuda: Cuda) -> None:
    """CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE; a child that is cloned may not."""
    graph, child = new_graph(cuda), new_graph(cuda)
    node, pointer = add_alloc(cuda, child, 10 * MIB)
    add_free(cuda, child, pointer, node)
    with pytest.raises(CudaError) as refused:
        _add(cuda, "cuGraphAddNode", graph, _CHILD, struct.pack("Qi", child, 0))
    assert refused.value.code == NOT_SUPPORTED
    _add(cuda, "cuGraphAddNode", graph, _CHILD, struct.pack("Qi", child, 1))
    _run(cuda, graph)
    assert levels(cuda) == [0, 10 * MIB, _STEP, _STEP]


# ---- how much graphs need together, as the sample graphMemoryFootprint of CUDA prints it ----


def _busy_graph(cuda: Cuda, size: int, milliseconds: int) -> tuple[int, int]:
    """A graph that allocates, works and frees: captured. With the address of its memory."""
    stream = cuda.stream()
    cuda("cuStreamBeginCapture_v2", stream, RELAXED)
    pointer = cuda.alloc_async(size, stream)
    cuda.occupy(stream, milliseconds)
    cuda.free_async(pointer, stream)
    graph = int.from_bytes(cuda("cuStreamEndCapture", stream, room(8))[0], "little")
    return instantiate(cuda, graph), pointer


def test_allocations_of_a_graph_share_an_address_where_one_ends_before_the_other(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    node, first = add_alloc(cuda, graph, 64 * MIB)
    freed = add_free(cuda, graph, first, node)
    after, second = add_alloc(cuda, graph, 60 * MIB, freed)
    _, beside = add_alloc(cuda, graph, 60 * MIB, node)
    _, larger = add_alloc(cuda, graph, 65 * MIB, freed)
    assert second == first
    assert len({first, beside, larger}) == 3
    freed = add_free(cuda, graph, second, after)
    assert add_alloc(cuda, graph, 1, freed)[1] == first


def test_captured_allocations_share_an_address_too(cuda: Cuda) -> None:
    stream = cuda.stream()
    cuda("cuStreamBeginCapture_v2", stream, RELAXED)
    first = cuda.alloc_async(64 * MIB, stream)
    cuda.free_async(first, stream)
    second = cuda.alloc_async(64 * MIB, stream)
    cuda.free_async(second, stream)
    graph = int.from_bytes(cuda("cuStreamEndCapture", stream, room(8))[0], "little")
    assert first == second
    launched = instantiate(cuda, graph)
    for _ in range(2):
        cuda("cuGraphLaunch", launched, stream)
    assert levels(cuda) == [0, 64 * MIB, 64 * MIB, 64 * MIB]


def test_graphs_in_one_stream_share_memory(cuda: Cuda) -> None:
    (one, here), (other, there) = (_busy_graph(cuda, 64 * MIB, 300) for _ in range(2))
    assert here != there
    assert level(cuda, RESERVED_MEMORY) == 0
    for launched in (one, other, one):
        cuda("cuGraphLaunch", launched, 0)
        assert level(cuda, RESERVED_MEMORY) == 64 * MIB


def test_graphs_in_several_streams_need_memory_each_until_they_are_done(cuda: Cuda) -> None:
    graphs = [_busy_graph(cuda, 64 * MIB, 300)[0] for _ in range(3)]
    for number, launched in enumerate(graphs, 1):
        cuda("cuGraphLaunch", launched, cuda.stream())
        assert level(cuda, RESERVED_MEMORY) == number * 64 * MIB
    cuda.synchronize()
    for launched in graphs:
        cuda("cuGraphLaunch", launched, cuda.stream())
    assert level(cuda, RESERVED_MEMORY) == 3 * 64 * MIB


def test_an_upload_takes_the_memory_and_a_trim_gives_it_back(cuda: Cuda) -> None:
    launched, pointer = _busy_graph(cuda, 64 * MIB, 1)
    cuda("cuGraphUpload", launched, 0)
    assert levels(cuda)[2] == 64 * MIB
    assert cuda.code("cuMemcpyHtoD_v2", pointer, pointer_to(b"x"), 1) == INVALID_VALUE
    cuda("cuGraphLaunch", launched, 0)
    cuda.synchronize()
    cuda("cuDeviceGraphMemTrim", 0)
    assert level(cuda, RESERVED_MEMORY) == 0
    huge, _ = _busy_graph(cuda, 2 * CAPACITY, 1)
    assert cuda.code("cuGraphUpload", huge, 0) == OUT_OF_MEMORY
    assert (level(cuda, USED), cuda.left()) == (0, CAPACITY - 2 * UNIT)  # the modules of two kernels


def test_an_instantiation_may_upload(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    add_alloc(cuda, graph, 64 * MIB)
    params = pointer_to(struct.pack("QQQQ", 2, 0, 0, 0))
    cuda.get("cuGraphInstantiateWithParams", graph, params)
    assert level(cuda, RESERVED_MEMORY) == 64 * MIB


def test_memory_nodes_say_what_they_are(cuda: Cuda) -> None:
    graph = new_graph(cuda)
    node, pointer = add_alloc(cuda, graph, 10 * MIB)
    freed = add_free(cuda, graph, pointer, node)
    params = cuda("cuGraphMemAllocNodeGetParams", node, room(120))[0]
    assert struct.unpack_from("QQ", params, 88 + 16) == (10 * MIB, pointer)
    assert cuda("cuGraphMemFreeNodeGetParams", freed, room(8))[0] == struct.pack("Q", pointer)
    for name, wrong in (("cuGraphMemAllocNodeGetParams", freed), ("cuGraphMemFreeNodeGetParams", node)):
        assert cuda.code(name, wrong, room(120)) == INVALID_VALUE
    assert cuda.code("cuGraphChildGraphNodeGetGraph", node, room(8)) == INVALID_VALUE


def test_pieces_that_are_too_small_alone_serve_a_larger_graph_together(cuda: Cuda) -> None:
    for size, expected in ((64, 64), (128, 128), (96, 128), (160, 160)):
        cuda("cuGraphLaunch", _busy_graph(cuda, size * MIB, 300)[0], 0)
        assert level(cuda, RESERVED_MEMORY) == expected * MIB
