"""How much memory graphs need together: what the sample graphMemoryFootprint of CUDA prints."""

import struct

import pytest

from tests.library.memory_client import CAPACITY, INVALID_VALUE, MIB, OUT_OF_MEMORY, UNIT, Cuda, pointer_to, room
from tests.library.test_emulator_memory_graphs import (
    RELAXED,
    RESERVED_MEMORY,
    USED,
    add_alloc,
    add_free,
    instantiate,
    level,
    levels,
    new_graph,
)

pytestmark = pytest.mark.thorough


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
