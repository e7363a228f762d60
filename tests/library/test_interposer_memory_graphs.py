"""Memory of graphs through the interposer: charged before a launch or an upload takes it, by the most it can need."""

import struct
import time

import pytest

from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.interposed import device
from tests.library.memory_client import MIB, OUT_OF_MEMORY, Cuda, pointer_to, pool_properties, room

STEP = 32 * MIB
RELAXED = 2
UPLOAD, AUTO_FREE = 2, 1
RESERVED = 2  # CUgraphMem_attribute
NODE_GRAPH, NODE_ALLOC = 4, 10
MOVE = 1
POINTER_AT = 88 + 24  # of CUDA_MEM_ALLOC_NODE_PARAMS


@pytest.fixture(autouse=True)
def all_the_time(gpu_slice: GpuSlice) -> None:
    """Only memory is limited: no launch waits for its share of the time."""
    gpu_slice.container.grant(device(0, memory=gpu_slice.limit, cores=100), generation=2)


def captured(cuda: Cuda, *sizes: int, milliseconds: int = 0, kept: bool = False) -> tuple[int, list[int]]:
    """A graph that allocates, works and frees, one after the other; and the addresses."""
    stream, pointers = cuda.stream(), []
    cuda("cuStreamBeginCapture_v2", stream, RELAXED)
    for size in sizes:
        pointers.append(cuda.alloc_async(size, stream))
        if milliseconds:
            cuda.occupy(stream, milliseconds)
        if not kept:
            cuda.free_async(pointers[-1], stream)
    return int.from_bytes(cuda("cuStreamEndCapture", stream, room(8))[0], "little"), pointers


def executable(cuda: Cuda, *sizes: int, milliseconds: int = 0, kept: bool = False, flags: int = 0) -> int:
    graph, _ = captured(cuda, *sizes, milliseconds=milliseconds, kept=kept)
    return cuda.get("cuGraphInstantiateWithFlags", graph, flags)


def reserved(cuda: Cuda, device: int = 0) -> int:
    return int.from_bytes(cuda("cuDeviceGetGraphMemAttribute", device, RESERVED, room(8))[0], "little")


def alloc_params(size: int, device: int = 0) -> bytes:
    return pool_properties(number=device) + struct.pack("QQQQ", 0, 0, size, 0)


def full(gpu_slice: GpuSlice, cuda: Cuda) -> int:
    """The largest multiple of a step that is left, now that modules are loaded."""
    return cuda.left() // STEP * STEP


@pytest.mark.parametrize("launch", ["cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphUpload", "cuGraphUpload_ptsz"])
def test_what_does_not_fit_is_refused_before_it_is_taken(gpu_slice: GpuSlice, user: Cuda, launch: str) -> None:
    launched = executable(user, gpu_slice.room + STEP)
    assert (gpu_slice.used(), gpu_slice.counters().refusals) == (0, 0)
    for number in (1, 2):
        assert user.code(launch, launched, 0) == OUT_OF_MEMORY
        assert (reserved(user), gpu_slice.used(), gpu_slice.counters().refusals) == (0, 0, number)
    assert gpu_slice.counters().peak <= gpu_slice.limit


def test_a_graph_may_use_all_there_is(gpu_slice: GpuSlice, user: Cuda) -> None:
    launched = executable(user, gpu_slice.room)
    for _ in range(3):
        user("cuGraphLaunch", launched, 0)
        assert (reserved(user), gpu_slice.total()) == (gpu_slice.room, gpu_slice.limit)
    assert gpu_slice.counters().refusals == 0


def test_what_a_graph_frees_it_may_use_again(gpu_slice: GpuSlice, user: Cuda) -> None:
    """The peak counts, not the sum."""
    launched = executable(user, *[gpu_slice.room] * 5)
    user("cuGraphLaunch", launched, 0)
    assert gpu_slice.total() == gpu_slice.limit


def test_a_charge_is_there_when_a_launch_returns_and_gone_after_a_trim(gpu_slice: GpuSlice, user: Cuda) -> None:
    launched = executable(user, 4 * STEP)
    user("cuGraphLaunch", launched, 0)
    assert gpu_slice.used() == 4 * STEP
    user("cuGraphExecDestroy", launched)
    assert gpu_slice.used() == reserved(user) == 4 * STEP  # the driver keeps it for the next graph
    user.synchronize()
    user("cuDeviceGraphMemTrim", 0)
    assert gpu_slice.used() == 0


def test_graphs_in_one_stream_share_what_they_need(gpu_slice: GpuSlice, user: Cuda) -> None:
    graphs = [executable(user, size, milliseconds=30_000) for size in (10 * STEP, 12 * STEP, 8 * STEP)]
    begin = time.monotonic()
    for launched in graphs:
        user("cuGraphLaunch", launched, 0)
    assert time.monotonic() - begin < 10, "nobody waited"
    assert gpu_slice.used() == reserved(user) == 12 * STEP


def test_graphs_of_several_streams_wait_for_each_other_where_they_do_not_all_fit(
    gpu_slice: GpuSlice, user: Cuda
) -> None:
    graphs = [executable(user, 8 * STEP, milliseconds=300) for _ in range(3)]
    for launched in graphs:
        user("cuGraphLaunch", launched, user.stream())
        assert reserved(user) <= gpu_slice.room
        assert gpu_slice.total() <= gpu_slice.limit
    assert gpu_slice.counters().refusals == 0
    assert gpu_slice.counters().peak <= gpu_slice.limit


def test_graphs_of_several_streams_run_at_once_where_they_fit(gpu_slice: GpuSlice, user: Cuda) -> None:
    graphs, streams = (
        [executable(user, 4 * STEP, milliseconds=30_000) for _ in range(3)],
        [user.stream() for _ in range(3)],
    )
    begin = time.monotonic()
    for launched, stream in zip(graphs, streams, strict=True):
        user("cuGraphLaunch", launched, stream)
    assert time.monotonic() - begin < 10, "nobody waited"
    assert gpu_slice.used() == reserved(user) == 12 * STEP


def test_no_launch_waits_forever(user: Cuda) -> None:
    user("cuGraphLaunch", executable(user, 8 * STEP, milliseconds=50_000), user.stream())
    begin = time.monotonic()
    assert user.code("cuGraphLaunch", executable(user, 8 * STEP), user.stream()) == OUT_OF_MEMORY
    assert 1.5 < time.monotonic() - begin < 20
    assert reserved(user) == 8 * STEP


def test_a_destroyed_graph_counts_while_it_runs(gpu_slice: GpuSlice, user: Cuda) -> None:
    first, second = executable(user, 8 * STEP, milliseconds=400), executable(user, 8 * STEP)
    begin = time.monotonic()
    user("cuGraphLaunch", first, user.stream())
    user("cuGraphExecDestroy", first)
    user("cuGraphLaunch", second, user.stream())
    assert time.monotonic() - begin > 0.35
    assert gpu_slice.counters().peak <= gpu_slice.limit


def test_what_a_launch_leaves_is_not_shared(gpu_slice: GpuSlice, user: Cuda) -> None:
    graphs = [captured(user, 5 * STEP, kept=True) for _ in range(3)]
    launched = [user.get("cuGraphInstantiateWithFlags", graph, 0) for graph, _ in graphs]
    for one in launched[:2]:
        user("cuGraphLaunch", one, 0)
    assert gpu_slice.used() == 10 * STEP
    assert user.code("cuGraphLaunch", launched[2], 0) == OUT_OF_MEMORY
    user.free_async(graphs[0][1][0])
    user("cuGraphLaunch", launched[2], 0)
    assert gpu_slice.used() == reserved(user) == 10 * STEP
    user.free(graphs[1][1][0])
    user("cuGraphLaunch", launched[0], 0)
    assert gpu_slice.used() == reserved(user) == 10 * STEP


def test_what_a_launch_leaves_another_graph_may_free(gpu_slice: GpuSlice, user: Cuda) -> None:
    graph, (pointer,) = captured(user, 8 * STEP, kept=True)
    frees = user.get("cuGraphCreate", 0)
    user("cuGraphAddMemFreeNode", room(8), frees, None, 0, pointer)
    allocates, frees = (user.get("cuGraphInstantiateWithFlags", one, 0) for one in (graph, frees))
    other = executable(user, 8 * STEP)
    user("cuGraphLaunch", allocates, 0)
    assert user.code("cuGraphLaunch", other, 0) == OUT_OF_MEMORY
    user("cuGraphLaunch", frees, 0)
    user("cuGraphLaunch", other, 0)
    assert gpu_slice.used() == reserved(user) == 8 * STEP


def test_a_launch_that_frees_what_the_one_before_left_needs_no_more(gpu_slice: GpuSlice, user: Cuda) -> None:
    launched = executable(user, gpu_slice.room, kept=True, flags=AUTO_FREE)
    for _ in range(4):
        user("cuGraphLaunch", launched, 0)
        assert gpu_slice.total() == gpu_slice.limit
    assert gpu_slice.counters().refusals == 0


def test_what_the_driver_rounds_up_is_taken_back(gpu_slice: GpuSlice, user: Cuda) -> None:
    """It takes steps: a graph that fits may need one that does not."""
    kept = user.alloc(gpu_slice.room - 10 * MIB)
    launched = executable(user, 4 * MIB)
    assert user.code("cuGraphLaunch", launched, 0) == OUT_OF_MEMORY
    assert (reserved(user), gpu_slice.total()) == (0, gpu_slice.limit - 10 * MIB)
    user.free(kept)
    user("cuGraphLaunch", launched, 0)
    assert gpu_slice.used() == reserved(user) == STEP


def test_pools_are_trimmed_for_graphs_and_graphs_for_allocations(gpu_slice: GpuSlice, user: Cuda) -> None:
    user.set_attribute(user.pool(), 4, (1 << 64) - 1)
    user.free_async(user.alloc_async(gpu_slice.room))
    user.synchronize()
    assert gpu_slice.total() == gpu_slice.limit
    user("cuGraphLaunch", executable(user, gpu_slice.room), 0)
    user.synchronize()
    user.free(user.alloc(gpu_slice.room))
    user("cuGraphLaunch", executable(user, gpu_slice.room), 0)
    assert gpu_slice.counters().refusals == 0


def test_processes_share_one_limit(gpu_slice: GpuSlice) -> None:
    first, second = gpu_slice.start(), gpu_slice.start()
    size = (gpu_slice.limit - 2 * CONTEXT) // STEP * STEP
    graphs = [executable(cuda, size) for cuda in (first, second)]
    first("cuGraphLaunch", graphs[0], 0)
    assert second.code("cuGraphLaunch", graphs[1], 0) == OUT_OF_MEMORY
    assert second.code("cuMemAlloc_v2", room(8), size) == OUT_OF_MEMORY
    first.synchronize()
    first("cuDeviceGraphMemTrim", 0)
    second("cuGraphLaunch", graphs[1], 0)
    assert first.code("cuGraphLaunch", graphs[0], 0) == OUT_OF_MEMORY
    second.kill()
    first("cuGraphLaunch", graphs[0], 0)
    assert eventually(lambda: gpu_slice.total() == CONTEXT + size)


@pytest.mark.parametrize("per_thread", ["", "_ptsz"])
def test_an_instantiation_that_uploads_is_refused_and_leaves_nothing(
    gpu_slice: GpuSlice, user: Cuda, per_thread: str
) -> None:
    graph, _ = captured(user, gpu_slice.room + STEP)
    name = "cuGraphInstantiateWithParams" + per_thread
    answer = user.ask(call=name, args=[room(8), graph, pointer_to(struct.pack("QQQi4x", UPLOAD, 0, 0, 0))])
    assert answer["code"] == OUT_OF_MEMORY
    assert struct.unpack_from("QQQi", bytes.fromhex(answer["outs"][1])) == (UPLOAD, 0, 0, 1)
    assert (reserved(user), gpu_slice.used()) == (0, 0)
    small, _ = captured(user, 2 * STEP)
    launched, params = user(name, room(8), small, pointer_to(struct.pack("QQQi4x", UPLOAD, 0, 0, 0)))
    assert struct.unpack_from("QQQi", params) == (UPLOAD, 0, 0, 0)
    assert gpu_slice.used() == reserved(user) == 2 * STEP
    user("cuGraphLaunch", int.from_bytes(launched, "little"), 0)


@pytest.mark.parametrize(
    ("name", "rest"), [("cuGraphInstantiate", [None, None, 0]), ("cuGraphInstantiate_v2", [None, None, 0])]
)
def test_older_ways_to_instantiate_count(gpu_slice: GpuSlice, user: Cuda, name: str, rest: list[int | None]) -> None:
    graph, _ = captured(user, gpu_slice.room + STEP)
    assert user.code("cuGraphLaunch", user.get(name, graph, *rest), 0) == OUT_OF_MEMORY


def test_nodes_in_clones_and_children_count(gpu_slice: GpuSlice, user: Cuda) -> None:
    graph = user.get("cuGraphCreate", 0)
    node = (
        struct.pack("iiii", NODE_ALLOC, 0, 0, 0) + alloc_params(gpu_slice.room + STEP).ljust(29 * 8, b"\0") + bytes(8)
    )
    user("cuGraphAddNode", room(8), graph, None, 0, pointer_to(node))
    parent = user.get("cuGraphCreate", 0)
    clone = user.get("cuGraphClone", graph)
    child = struct.pack("iiiiQi", NODE_GRAPH, 0, 0, 0, graph, MOVE).ljust(16 + 29 * 8 + 8, b"\0")
    user("cuGraphAddNode_v2", room(8), parent, None, None, 0, pointer_to(child))
    for one in (clone, parent):
        assert user.code("cuGraphLaunch", user.get("cuGraphInstantiateWithFlags", one, 0), 0) == OUT_OF_MEMORY


def test_an_updated_graph_needs_what_it_has_now(gpu_slice: GpuSlice, user: Cuda) -> None:
    launched = executable(user, STEP)
    larger, _ = captured(user, gpu_slice.room + STEP)
    user("cuGraphExecUpdate_v2", launched, larger, room(24))
    assert user.code("cuGraphLaunch", launched, 0) == OUT_OF_MEMORY
    small, _ = captured(user, 2 * STEP)
    user("cuGraphExecUpdate", launched, small, room(8), room(8))
    user("cuGraphLaunch", launched, 0)
    assert gpu_slice.used() == 2 * STEP


def test_a_launch_into_a_capture_takes_nothing(gpu_slice: GpuSlice, user: Cuda) -> None:
    inner, stream = executable(user, gpu_slice.room + STEP), user.stream()
    user("cuStreamBeginCapture_v2", stream, 0)
    user("cuGraphLaunch", inner, stream)
    graph = int.from_bytes(user("cuStreamEndCapture", stream, room(8))[0], "little")
    assert gpu_slice.counters().refusals == 0
    assert user.code("cuGraphLaunch", user.get("cuGraphInstantiateWithFlags", graph, 0), 0) == OUT_OF_MEMORY


def test_a_capture_beside_it_survives(gpu_slice: GpuSlice, user: Cuda) -> None:
    graphs = [executable(user, 8 * STEP, milliseconds=100) for _ in range(2)]
    streams, recorded = [user.stream() for _ in range(2)], user.stream()
    user("cuStreamBeginCapture_v2", recorded, 0)
    for launched, stream in zip(graphs, streams, strict=True):
        user("cuGraphLaunch", launched, stream)
    user("cuStreamEndCapture", recorded, room(8))
    assert gpu_slice.counters().refusals == 0


def test_memory_of_a_device_without_a_limit_is_free(gpu_slice: GpuSlice) -> None:
    user = gpu_slice.start_beside_another()
    user.begin(1)
    graph = user.get("cuGraphCreate", 0)
    user("cuGraphAddMemAllocNode", room(8), graph, None, 0, pointer_to(alloc_params(gpu_slice.limit, 1)))
    launched = user.get("cuGraphInstantiateWithFlags", graph, 0)
    user("cuGraphLaunch", launched, 0)
    assert (reserved(user, 1), gpu_slice.used()) == (gpu_slice.limit, 0)


def test_a_context_may_end_with_graphs_that_ran_in_it(gpu_slice: GpuSlice, user: Cuda) -> None:
    launched = executable(user, 8 * STEP)
    own = user.get("cuCtxCreate_v2", 0, 0)
    user("cuGraphLaunch", launched, user.stream())
    user("cuCtxDestroy_v2", own)
    user("cuGraphLaunch", launched, user.stream())
    user("cuGraphExecDestroy", launched)
    assert gpu_slice.used() == reserved(user) == 8 * STEP
