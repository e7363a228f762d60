"""Stream-ordered memory through the interposer: what a pool keeps is charged, and given back before a refusal."""

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.interposed import Container, device
from tests.library.memory_client import (
    DEVICE,
    INVALID_VALUE,
    KIB,
    MIB,
    OUT_OF_MEMORY,
    POSIX_FD,
    RELEASE_THRESHOLD,
    RESERVED,
    Cuda,
    pointer_to,
    pool_properties,
    room,
)

STEP = 32 * MIB
EVERYTHING = (1 << 64) - 1
GLOBAL, THREAD_LOCAL, RELAXED = range(3)  # CUstreamCaptureMode
INVALIDATED = 901
GRAPH_RESERVED = 2  # CUgraphMem_attribute


@pytest.fixture
def keeping(gpu_slice: GpuSlice) -> Cuda:
    """A process whose default pool gives nothing back by itself."""
    cuda = gpu_slice.start()
    cuda.set_attribute(cuda.pool(), RELEASE_THRESHOLD, EVERYTHING)
    return cuda


def test_what_a_pool_keeps_stays_charged(gpu_slice: GpuSlice, keeping: Cuda) -> None:
    keeping.free_async(keeping.alloc_async(3 * STEP))
    keeping.synchronize()
    assert not eventually(lambda: gpu_slice.used() < 3 * STEP, within=0.3)
    keeping("cuMemPoolTrimTo", keeping.pool(), STEP)
    assert gpu_slice.used() == keeping.attribute(keeping.pool(), RESERVED)
    keeping("cuMemPoolTrimTo", keeping.pool(), 0)
    assert gpu_slice.used() == 0


def test_memory_that_a_pool_gives_again_is_not_charged_again(gpu_slice: GpuSlice, keeping: Cuda) -> None:
    for _ in range(60):
        keeping.free_async(keeping.alloc_async(2 * STEP))
        assert gpu_slice.used() <= 2 * STEP + STEP
    for _ in range(300):
        keeping.free_async(keeping.alloc_async(200 * KIB))
        assert gpu_slice.used() <= 2 * STEP + 17 * MIB
    assert eventually(lambda: gpu_slice.used() == 2 * STEP)
    assert gpu_slice.counters().refusals == 0


@pytest.mark.parametrize("name", ["cuMemAlloc_v2", "cuMemAllocAsync"])
def test_pools_are_trimmed_before_anybody_is_refused(gpu_slice: GpuSlice, keeping: Cuda, name: str) -> None:
    mine = keeping.get("cuMemPoolCreate", pointer_to(pool_properties()))
    keeping.set_attribute(mine, RELEASE_THRESHOLD, EVERYTHING)
    for pool in (mine, keeping.pool()):
        keeping.free_async(keeping.get("cuMemAllocFromPoolAsync", 6 * STEP, pool, 0))
    assert gpu_slice.used() >= 12 * STEP
    keeping.get(name, gpu_slice.room, 0)
    assert gpu_slice.counters().refusals == 0
    assert gpu_slice.total() == gpu_slice.limit


def test_memory_in_use_is_not_trimmed_away(gpu_slice: GpuSlice, keeping: Cuda) -> None:
    pointer = keeping.alloc_async(STEP)
    keeping.write(pointer, b"kept")
    assert keeping.code("cuMemAlloc_v2", room(8), gpu_slice.room) == OUT_OF_MEMORY
    assert gpu_slice.used() == STEP
    assert keeping.read(pointer, 4) == b"kept"


def test_a_pool_that_grew_beyond_the_limit_is_taken_back(gpu_slice: GpuSlice, user: Cuda) -> None:
    """Pools grow in steps: a request that fits may need a step that does not."""
    kept = user.alloc(gpu_slice.room - STEP - 8 * MIB)
    assert user.code("cuMemAllocAsync", room(8), STEP + 4 * MIB, 0) == OUT_OF_MEMORY
    assert gpu_slice.counters().refusals == 1
    user.synchronize()
    assert eventually(lambda: gpu_slice.total() == gpu_slice.limit - STEP - 8 * MIB)
    user.alloc_async(STEP)
    assert gpu_slice.total() <= gpu_slice.limit
    user.free(kept)


def test_a_destroyed_pool_is_charged_until_its_last_allocation_is_freed(gpu_slice: GpuSlice, user: Cuda) -> None:
    pool = user.get("cuMemPoolCreate", pointer_to(pool_properties()))
    first, second = (user.get("cuMemAllocFromPoolAsync", STEP, pool, 0) for _ in range(2))
    user("cuMemPoolDestroy", pool)
    assert gpu_slice.used() == 2 * STEP
    user.free_async(first)
    assert gpu_slice.used() == STEP
    user.free(second)
    assert gpu_slice.used() == 0


def test_a_pool_that_the_driver_will_not_destroy_goes_on(gpu_slice: GpuSlice, keeping: Cuda) -> None:
    keeping.alloc_async(STEP)
    assert keeping.code("cuMemPoolDestroy", keeping.pool()) == INVALID_VALUE
    keeping.alloc_async(STEP)
    assert gpu_slice.used() == 2 * STEP
    assert eventually(lambda: keeping.attribute(keeping.pool(), RESERVED) == gpu_slice.used())


def test_many_pools_come_and_go(gpu_slice: GpuSlice, user: Cuda) -> None:
    for _ in range(150):
        pool = user.get("cuMemPoolCreate", pointer_to(pool_properties()))
        user.free_async(user.get("cuMemAllocFromPoolAsync", STEP, pool, 0))
        user("cuMemPoolDestroy", pool)
    assert gpu_slice.used() == 0


@pytest.mark.parametrize(
    "reset", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2"]
)
def test_pools_outlive_the_primary_context(gpu_slice: GpuSlice, user: Cuda, reset: str) -> None:
    """They are the device's: what is in them stays charged and can be used, freed and trimmed afterwards."""
    mine = user.get("cuMemPoolCreate", pointer_to(pool_properties()))
    for pool in (mine, user.pool()):
        user.set_attribute(pool, RELEASE_THRESHOLD, EVERYTHING)
    kept = user.get("cuMemAllocFromPoolAsync", 2 * STEP, mine, 0)
    user.alloc_async(STEP)
    user.alloc(STEP)
    user(reset, 0)
    assert gpu_slice.used() == 3 * STEP
    assert not eventually(lambda: gpu_slice.used() != 3 * STEP, within=0.3)  # several rounds of the helper thread
    user("cuCtxSetCurrent", user.get("cuDevicePrimaryCtxRetain", 0))
    assert user.attribute(mine, RESERVED) == 2 * STEP
    assert user.code("cuMemAllocFromPoolAsync", room(8), gpu_slice.room - 2 * STEP, mine, 0) == OUT_OF_MEMORY
    user.free_async(kept)
    user.synchronize()
    user("cuMemPoolTrimTo", mine, 0)
    assert gpu_slice.used() == STEP
    user.get("cuMemAllocFromPoolAsync", 2 * STEP, mine, 0)
    user("cuMemPoolDestroy", mine)
    assert gpu_slice.used() == 3 * STEP


def test_an_allocation_waits_for_nothing(gpu_slice: GpuSlice, user: Cuda) -> None:
    """No stream is synchronised, not even where memory is short.

    Nor is there a short wait: of ten rounds each would have half a second.
    """
    stream = user.stream()
    user.occupy(stream, 50_000)
    begin = time.monotonic()
    for _ in range(10):
        pointer = user.alloc_async(STEP, stream)
        user.free_async(pointer, stream)
        assert user.code("cuMemAllocAsync", room(8), gpu_slice.room + STEP, stream) == OUT_OF_MEMORY
    assert time.monotonic() - begin < 5.0
    assert user.code("cuStreamQuery", stream) == 600


def test_a_stream_of_another_device_is_charged_there(gpu_slice: GpuSlice) -> None:
    gpu_slice.container.grant(device(0, memory=gpu_slice.limit), device(1, memory=2 * gpu_slice.limit), generation=2)
    user = gpu_slice.start()
    stream = user.stream()
    user.begin(1)
    assert user.code("cuMemAllocAsync", room(8), gpu_slice.room + STEP, stream) == OUT_OF_MEMORY
    user.alloc_async(STEP, stream)
    assert (gpu_slice.used(), gpu_slice.use(user, 1).used) == (STEP, 0)
    user.alloc_async(gpu_slice.limit, user.stream())
    assert (gpu_slice.used(), gpu_slice.use(user, 1).used) == (STEP, gpu_slice.limit)


def test_the_current_pool_may_be_another_than_the_default(gpu_slice: GpuSlice, user: Cuda) -> None:
    mine = user.get("cuMemPoolCreate", pointer_to(pool_properties()))
    user("cuDeviceSetMemPool", 0, mine)
    user.alloc_async(STEP)
    user("cuMemPoolTrimTo", user.pool(), 0)
    assert gpu_slice.used() == user.attribute(mine, RESERVED) == STEP


def test_pools_that_the_newest_calls_return_are_known(gpu_slice: GpuSlice, user: Cuda) -> None:
    where = pointer_to(struct.pack("ii", DEVICE, 0))
    for name in ("cuMemGetDefaultMemPool", "cuMemGetMemPool"):
        pool = user.get(name, where, 1)
        assert user.code("cuMemAllocFromPoolAsync", room(8), gpu_slice.room + STEP, pool, 0) == OUT_OF_MEMORY


def test_a_pool_of_another_process_is_not_charged_here(gpu_slice: GpuSlice, short_tmp: Path) -> None:
    owner, other = gpu_slice.start(), gpu_slice.start()
    pool = owner.get("cuMemPoolCreate", pointer_to(pool_properties(handles=POSIX_FD)))
    pointer = owner.get("cuMemAllocFromPoolAsync", STEP, pool, 0)
    fd = int.from_bytes(owner("cuMemPoolExportToShareableHandle", room(4), pool, POSIX_FD, 0)[0], "little")
    exported = owner("cuMemPoolExportPointer", room(64), pointer)[0]
    imported = other.get("cuMemPoolImportFromShareableHandle", _hand_over(owner, other, fd, short_tmp), POSIX_FD, 0)
    shared = other.get("cuMemPoolImportPointer", imported, pointer_to(exported))
    assert (gpu_slice.use(owner).used, gpu_slice.use(other).used) == (STEP, 0)
    other("cuMemFreeAsync", shared, 0)
    assert other.code("cuMemAllocFromPoolAsync", room(8), STEP, imported, 0) != 0
    assert (gpu_slice.use(owner).used, gpu_slice.use(other).used) == (STEP, 0)


def _hand_over(owner: Cuda, other: Cuda, fd: int, directory: Path) -> int:
    path = str(directory / "socket")
    other.tell(receive=path)
    other.listen()
    owner.ask(send=[path, fd])
    return int(other.listen()["value"])


# ---- captures ----


@contextmanager
def capture(cuda: Cuda, stream: int, mode: int = GLOBAL) -> Iterator[list[int]]:
    """The graph is in the list afterwards."""
    graph: list[int] = []
    cuda("cuStreamBeginCapture_v2", stream, mode)
    yield graph
    graph.append(int.from_bytes(cuda("cuStreamEndCapture", stream, room(8))[0], "little"))


def test_in_a_capture_nothing_is_charged_and_nothing_refused(gpu_slice: GpuSlice, user: Cuda) -> None:
    stream = user.stream()
    with capture(user, stream) as graph:
        user.free_async(user.alloc_async(2 * gpu_slice.limit, stream), stream)
        assert gpu_slice.used() == 0
    user("cuGraphDestroy", graph[0])
    assert gpu_slice.counters().refusals == 0


def test_memory_of_graphs_is_charged_once_it_is_there(gpu_slice: GpuSlice, user: Cuda) -> None:
    stream = user.stream()
    with capture(user, stream) as graph:
        user.free_async(user.alloc_async(4 * STEP, stream), stream)
    launched = user.get("cuGraphInstantiateWithFlags", graph[0], 0)
    user("cuGraphLaunch", launched, stream)
    assert eventually(lambda: gpu_slice.used() == 4 * STEP)
    assert user.left() == gpu_slice.room - 4 * STEP
    user("cuGraphExecDestroy", launched)
    user("cuGraphDestroy", graph[0])
    user.synchronize()
    user.alloc(gpu_slice.room)  # what graphs keep is trimmed before anybody is refused
    assert gpu_slice.total() == gpu_slice.limit


def test_memory_of_a_graph_that_is_used_leaves_no_room_for_others(gpu_slice: GpuSlice, user: Cuda) -> None:
    stream = user.stream()
    with capture(user, stream) as graph:
        pointer = user.alloc_async(4 * STEP, stream)
    user("cuGraphLaunch", user.get("cuGraphInstantiateWithFlags", graph[0], 0), stream)
    assert eventually(lambda: gpu_slice.used() == 4 * STEP)
    assert user.code("cuMemAlloc_v2", room(8), gpu_slice.room) == OUT_OF_MEMORY
    user.free_async(pointer, stream)
    user.synchronize()
    user.alloc(gpu_slice.room)


def test_nodes_that_allocate_are_followed_too(gpu_slice: GpuSlice, user: Cuda) -> None:
    graph = user.get("cuGraphCreate", 0)
    params = pointer_to(pool_properties() + struct.pack("QQQQ", 0, 0, 2 * STEP, 0))
    user("cuGraphAddMemAllocNode", room(8), graph, None, 0, params)
    user("cuGraphLaunch", user.get("cuGraphInstantiateWithFlags", graph, 0), user.stream())
    assert eventually(lambda: gpu_slice.used() == 2 * STEP)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_a_capture_survives_everything_we_do_beside_it(gpu_slice: GpuSlice, keeping: Cuda, mode: int) -> None:
    captured, other = keeping.stream(), keeping.stream()
    keeping.free_async(keeping.alloc_async(6 * STEP, other), other)
    with capture(keeping, captured, mode) as graph:
        keeping.alloc_async(8 * STEP, other)  # needs a trim
        assert keeping.code("cuMemAllocAsync", room(8), gpu_slice.limit, other) == OUT_OF_MEMORY
        assert not eventually(lambda: gpu_slice.used() < 8 * STEP, within=0.3)  # several rounds of the helper thread
    assert graph[0] != 0
    assert gpu_slice.counters().refusals == 1


def test_a_driver_without_pools_is_left_alone(container: Container) -> None:
    """An older driver lacks half of what the interposer calls."""
    outcome = container.run("called_unseen", "cuMemAllocAsync_ptsz")
    assert outcome.errors == ""


def test_everything_is_charged_in_the_end(gpu_slice: GpuSlice, keeping: Cuda) -> None:
    pointers = [keeping.alloc_async(size) for size in (1, 100 * KIB, STEP, 3 * MIB, STEP + 1)]
    assert eventually(lambda: gpu_slice.used() == keeping.attribute(keeping.pool(), RESERVED))
    assert gpu_slice.total() == CONTEXT + keeping.attribute(keeping.pool(), RESERVED)
    for pointer in pointers:
        keeping.free_async(pointer)
