"""Memory that the driver takes by itself: limits of contexts, local memory, contexts that nobody saw made.

Library D4, D8 and D13 of the verification against NVIDIA's userland.
"""

import pytest

from tests.library.gpu_slice import CONTEXT, eventually
from tests.library.interposed import device
from tests.library.memory_client import (
    DEVICE,
    DEVICE_UNAVAILABLE,
    GIB,
    HOST_NUMA,
    MIB,
    OUT_OF_MEMORY,
    POSIX_FD,
    UNIT,
    Cuda,
    allocation_properties,
    location,
    pointer_to,
    pool_properties,
    room,
)
from tests.library.memory_rig import STEP, Rig, export, image, imported, threads

STACK, FIFO, HEAP = 0, 1, 2  # CUlimit
OWN_TABLE = b"vcuda-emulator-\0".hex()  # the emulator's own
PRIMARY = 1
READ_MOSTLY, PREFERRED_LOCATION, ACCESSED_BY = 1, 3, 5  # CUmem_advise; the next number takes it back


# ---- limits of a context ----


@pytest.mark.parametrize(("which", "value"), [(HEAP, 60 * GIB), (FIFO, 60 * GIB), (STACK, 512 * 1024), (HEAP, 2**63)])
def test_a_limit_beyond_what_is_left_is_refused(rig: Rig, which: int, value: int) -> None:
    before = rig.cuda("cuCtxGetLimit", room(8), which)
    assert rig.cuda.code("cuCtxSetLimit", which, value) == OUT_OF_MEMORY
    assert rig.cuda("cuCtxGetLimit", room(8), which) == before
    assert rig.gpu_slice.use(rig.cuda).pending == 0
    assert rig.cuda.left() == rig.gpu_slice.room


def test_a_limit_that_is_lowered_gives_its_memory_back(rig: Rig) -> None:
    for value in (8 * MIB + 2 * STEP, 8 * MIB + STEP, 8 * MIB + 3 * STEP, MIB):
        rig.cuda("cuCtxSetLimit", HEAP, value)
        assert rig.cuda.left() == rig.gpu_slice.room - max(0, value - 8 * MIB)


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2", "cuDevicePrimaryCtxReset_v2"])
def test_a_limit_ends_with_its_context(rig: Rig, end: str) -> None:
    argument = rig.cuda.get("cuCtxCreate_v2", 0, 0) if end == "cuCtxDestroy_v2" else 0
    rig.cuda("cuCtxSetLimit", HEAP, 8 * MIB + STEP)
    assert rig.gpu_slice.used() == STEP
    rig.cuda(end, argument)
    assert rig.gpu_slice.used() == 0


def kernel_of(cuda: Cuda, by: str, **size: int) -> int:
    """Of a module, which is loaded at once, or of a library, which the driver loads at the first launch."""
    if by == "module":
        module = cuda.get("cuModuleLoadData", pointer_to(image(**size)))
        return cuda.get("cuModuleGetFunction", module, pointer_to(b"kernel\0"))
    library = cuda.get("cuLibraryLoadData", pointer_to(image(**size)), None, None, 0, None, None, 0)
    return cuda.get("cuLibraryGetKernel", library, pointer_to(b"kernel\0"))


def launch(cuda: Cuda, kernel: int) -> None:
    cuda("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, None)


@pytest.mark.parametrize(("by", "what"), [("module", "local"), ("library", "variable")])
def test_what_a_first_launch_takes_counts_before_anything_is_given_out(rig: Rig, by: str, what: str) -> None:
    """Seen on an H100 (driver 580): the first kernel of a PyTorch program took 92 MiB more, which its limit missed."""
    size = STEP // threads(rig.cuda) if what == "local" else STEP
    kernel = kernel_of(rig.cuda, by, **{"variable": 0, what: size})
    before = rig.cuda.left()
    launch(rig.cuda, kernel)
    assert rig.cuda.code("cuMemAlloc_v2", room(8), before - STEP + 2 * UNIT) == OUT_OF_MEMORY
    assert rig.cuda.left() <= before - STEP + UNIT
    assert rig.held() <= rig.gpu_slice.limit


def test_without_a_limit_of_time_what_a_launch_takes_counts_at_the_next_look(rig: Rig) -> None:
    """Nobody looks at the launches there."""
    rig.gpu_slice.container.grant(device(0, memory=rig.gpu_slice.limit, cores=100), generation=2)
    cuda = rig.newcomer()
    cuda.begin()
    kernel = kernel_of(cuda, "library", variable=STEP)
    before = cuda.left()
    launch(cuda, kernel)
    assert eventually(lambda: cuda.left() <= before - STEP + UNIT)
    assert cuda.code("cuMemAlloc_v2", room(8), before - STEP + 2 * UNIT) == OUT_OF_MEMORY


# ---- contexts that are made past the public functions ----


def activate(cuda: Cuda) -> int:
    """The primary context is current, and was retained past every function that ours hooks."""
    answer = cuda.ask(table=[OWN_TABLE, PRIMARY], args=[room(8), 0])
    assert answer["code"] == 0
    context = int.from_bytes(bytes.fromhex(answer["outs"][0]), "little")
    cuda("cuCtxSetCurrent", context)
    return context


@pytest.mark.parametrize("ask", ["what is free", "everything", "everything from a pool"])
def test_a_context_that_nobody_saw_counts_from_its_first_use_on(rig: Rig, ask: str) -> None:
    cuda = rig.newcomer()
    activate(cuda)
    left = rig.gpu_slice.limit - 2 * CONTEXT
    if ask == "what is free":
        assert cuda.left() == left
    else:
        name = "cuMemAlloc_v2" if ask == "everything" else "cuMemAllocAsync"
        assert cuda.code(name, room(8), left + UNIT, 0) == OUT_OF_MEMORY
        assert cuda.code(name, room(8), left, 0) == 0
    assert rig.held() <= rig.gpu_slice.limit


def load(cuda: Cuda, by: str) -> int:
    source = pointer_to(image())
    if by == "cuModuleLoadData":
        return cuda.code(by, room(8), source)
    loaded = cuda.ask(call="cuLibraryLoadData", args=[room(8), source, None, None, 0, None, None, 0])
    if loaded["code"] != 0:
        return int(loaded["code"])
    return cuda.code(by, room(8), int.from_bytes(bytes.fromhex(loaded["outs"][0]), "little"))


@pytest.mark.parametrize(("by", "slack"), [("cuModuleLoadData", 0), ("cuLibraryGetModule", STEP + 2 * UNIT)])
def test_modules_in_a_context_that_nobody_saw_count(rig: Rig, by: str, slack: int) -> None:
    """No allocation and no question about memory comes before them."""
    cuda = rig.newcomer()
    activate(cuda)
    most = (rig.gpu_slice.limit - 2 * CONTEXT) // STEP
    codes = [load(cuda, by) for _ in range(most + 2)]
    assert codes[most - 2] == 0
    assert codes[most:] == [OUT_OF_MEMORY] * 2
    assert rig.held() <= rig.gpu_slice.limit + slack


def test_resets_of_a_context_that_nobody_saw_give_everything_back(rig: Rig) -> None:
    cuda = rig.newcomer()
    for _ in range(8):
        activate(cuda)
        cuda.alloc(3 * STEP)
        cuda.alloc(2 * STEP)
        cuda("cuDevicePrimaryCtxReset_v2", 0)
        assert rig.gpu_slice.used() == 0
    assert rig.gpu_slice.counters().refusals == 0


def test_a_context_of_ones_own_is_not_taken_for_the_primary_one(rig: Rig) -> None:
    cuda = rig.newcomer()
    activate(cuda)
    cuda("cuDevicePrimaryCtxReset_v2", 0)
    cuda.get("cuCtxCreate_v2", 0, 0)
    cuda.alloc(STEP)
    activate(cuda)
    cuda.alloc(STEP)
    cuda("cuDevicePrimaryCtxReset_v2", 0)
    assert rig.gpu_slice.used() == STEP


# ---- a GPU that the limits do not name ----


def test_a_gpu_that_the_limits_do_not_name_gives_neither_memory_nor_time(rig: Rig) -> None:
    """Its device node is in the container by mistake: the driver gave other numbers since kubelet wrote them down."""
    cuda, other = rig.newcomer(), 1
    context, of_other = room(8), pool_properties(DEVICE, other)
    assert {
        cuda.code("cuDevicePrimaryCtxRetain", context, other),
        cuda.code("cuCtxCreate", context, 0, other),
        cuda.code("cuCtxCreate_v2", context, 0, other),
        cuda.code("cuCtxCreate_v3", context, None, 0, 0, other),
        cuda.code("cuCtxCreate_v4", context, None, 0, other),
        cuda.code("cuGreenCtxCreate", room(8), None, other, 1),
    } == {DEVICE_UNAVAILABLE}
    cuda.begin()
    assert {
        cuda.code("cuMemCreate", room(8), STEP, pointer_to(allocation_properties(DEVICE, other)), 0),
        cuda.code("cuMemPoolCreate", room(8), pointer_to(of_other)),
        cuda.code("cuMemAllocFromPoolAsync", room(8), STEP, cuda.pool(other), 0),
    } == {OUT_OF_MEMORY}
    managed, there = cuda.get("cuMemAllocManaged", STEP, 1), pointer_to(location(DEVICE, other))
    batch = (
        pointer_to(managed.to_bytes(8, "little")),
        pointer_to(STEP.to_bytes(8, "little")),
        1,
        there,
        room(8),
        1,
        0,
        0,
    )
    assert {
        cuda.code("cuMemPrefetchAsync", managed, STEP, other, 0),
        cuda.code("cuMemPrefetchAsync_ptsz", managed, STEP, other, 0),
        cuda.code("cuMemPrefetchAsync_v2", managed, STEP, int.from_bytes(location(DEVICE, other), "little"), 0, 0),
        cuda.code("cuMemPrefetchBatchAsync", *batch),
        cuda.code("cuMemDiscardAndPrefetchBatchAsync", *batch),
        cuda.code("cuMemAdvise", managed, STEP, PREFERRED_LOCATION, other),
        cuda.code("cuMemAdvise", managed, STEP, ACCESSED_BY, other),
        cuda.code("cuMemAdvise_v2", managed, STEP, ACCESSED_BY, int.from_bytes(location(DEVICE, other), "little")),
    } == {OUT_OF_MEMORY}
    for advice in range(READ_MOSTLY, ACCESSED_BY + 2):
        cuda("cuMemAdvise", managed, STEP, advice, 0)
    for taken_back in (READ_MOSTLY, PREFERRED_LOCATION + 1, ACCESSED_BY + 1):
        cuda("cuMemAdvise", managed, STEP, taken_back, other)
    cuda("cuMemPrefetchAsync", managed, STEP, 0, 0)
    cuda("cuMemPrefetchAsync", managed, STEP, 0xFFFFFFFF, 0)
    cuda("cuMemFree_v2", managed)
    assert rig.gpu_slice.used() == 0
    assert "does not name" in rig.gpu_slice.errors.read_text()
    assert "this container may not use that GPU" in rig.gpu_slice.errors.read_text()


# ---- a GPU whose memory is a NUMA node ----


def test_memory_at_the_gpus_own_node_is_the_gpus(rig: Rig) -> None:
    """As on Grace. The node behind it is the other GPU's, which is not the container's; 9 is a node of the machine."""
    cuda = rig.gpu_slice.start(VCUDA_EMULATOR_GPU_NUMA="4")
    cuda.create(2 * rig.gpu_slice.limit, allocation_properties(HOST_NUMA, 9))
    other = pointer_to(allocation_properties(HOST_NUMA, 5))
    assert cuda.code("cuMemCreate", room(8), STEP, other, 0) == OUT_OF_MEMORY
    assert rig.gpu_slice.used() == 0
    handle = cuda.create(STEP, allocation_properties(HOST_NUMA, 4))
    assert rig.gpu_slice.used() == STEP
    size = rig.gpu_slice.room - CONTEXT
    assert cuda.code("cuMemCreate", room(8), size, pointer_to(allocation_properties(HOST_NUMA, 4)), 0) == OUT_OF_MEMORY
    cuda("cuMemRelease", handle)
    cuda.create(size, allocation_properties(HOST_NUMA, 4))
    assert rig.held() == rig.gpu_slice.limit


def test_memory_at_the_gpus_own_node_counts_where_it_is_imported(rig: Rig) -> None:
    giver, cuda = (rig.gpu_slice.start(VCUDA_EMULATOR_GPU_NUMA="4") for _ in range(2))
    fd = export(giver, giver.create(STEP, allocation_properties(HOST_NUMA, 4, POSIX_FD)))
    imported(cuda, rig.send(fd, giver=giver, taker=cuda))
    giver.kill()
    assert eventually(lambda: rig.gpu_slice.use(cuda).used == STEP)


def test_a_pool_at_the_gpus_own_node_is_the_gpus(rig: Rig) -> None:
    cuda = rig.gpu_slice.start(VCUDA_EMULATOR_GPU_NUMA="4")
    pools = [cuda.get("cuMemPoolCreate", pointer_to(pool_properties(HOST_NUMA, node))) for node in (9, 4)]
    for pool in pools:
        cuda.get("cuMemAllocFromPoolAsync", STEP, pool, 0)
    assert rig.gpu_slice.used() == STEP


# ---- given back at once ----


@pytest.mark.parametrize("wait", ["cuStreamSynchronize", "cuCtxSynchronize"])
def test_what_is_freed_in_a_stream_is_free_after_a_synchronize(rig: Rig, wait: str) -> None:
    stream = rig.cuda.stream()
    for _ in range(5):
        pointer = rig.cuda.alloc_async(2 * STEP, stream)
        assert rig.cuda.left() == rig.gpu_slice.room - 2 * STEP
        rig.cuda.free_async(pointer, stream)
        rig.cuda(wait, *((stream,) if wait == "cuStreamSynchronize" else ()))
        assert rig.cuda.left() == rig.gpu_slice.room


@pytest.mark.parametrize("way", ["cuCtxDestroy_v2", "cuCtxDestroy", "cuCtxDetach"])
def test_what_a_context_had_is_free_when_it_is_gone(rig: Rig, way: str) -> None:
    """An allocation that came at once was refused until the next measurement."""
    cuda = rig.cuda
    for _ in range(3):
        made = [cuda.get("cuCtxCreate_v2", 0, 0) for _ in range(3)]
        assert cuda.left() == rig.gpu_slice.room - 3 * STEP
        for context in made:
            cuda("cuCtxSetCurrent", context)
            cuda(way, context)
        cuda.begin()
        pointer = cuda.alloc(rig.gpu_slice.room - UNIT)
        assert cuda.left() == UNIT
        cuda.free(pointer)


def test_all_kinds_of_memory_are_had_right_after_a_context(rig: Rig) -> None:
    cuda, size = rig.cuda, rig.gpu_slice.room - STEP
    for kind in ("linear", "ordered", "created", "managed"):
        cuda("cuCtxDestroy_v2", cuda.get("cuCtxCreate_v2", 0, 0))
        cuda("cuCtxDestroy_v2", cuda.get("cuCtxCreate_v2", 0, 0))
        cuda.begin()
        if kind == "created":
            cuda("cuMemRelease", cuda.create(size))
        elif kind == "ordered":
            cuda.free_async(cuda.alloc_async(size))
            cuda.synchronize()
        elif kind == "managed":
            cuda.free(cuda.get("cuMemAllocManaged", size, 1))
        else:
            cuda.free(cuda.alloc(size))


# ---- memory that moves ----


def test_memory_from_malloc_counts_while_it_is_on_the_gpu(rig: Rig) -> None:
    cuda = rig.gpu_slice.start(VCUDA_EMULATOR_HMM="1")
    stream, before = cuda.stream(), cuda.left()
    cuda("cuMemPrefetchAsync", {"keep": room(3 * MIB)}, 3 * MIB, 0, stream)
    assert eventually(lambda: cuda.left() == before - 2 * UNIT), (before, cuda.left())
    cuda("cuMemPrefetchAsync", {"of": 0}, 3 * MIB, 0xFFFFFFFF, stream)
    assert eventually(lambda: cuda.left() == before), (before, cuda.left())
