"""Ways to have device memory that no allocation shows: none leads beyond the limit, alone or with others.

What the container has is what the emulated GPU lacks, as a process outside the container hears it. A new way is a row
of WAYS. Library D2, D3, D4 and D8 of the verification against NVIDIA's userland.
"""

from collections.abc import Callable
from itertools import cycle

import pytest

from tests.library.gpu_slice import CONTEXT
from tests.library.memory_client import (
    DEVICE,
    LOCALITY_DOMAIN,
    MIB,
    OUT_OF_MEMORY,
    POSIX_FD,
    UNIT,
    Cuda,
    CudaError,
    allocation_properties,
    pointer_to,
    pool_properties,
    room,
)
from tests.library.memory_rig import STEP, Rig, blocks, export, exportable, image, imported, mapped, threads

STACK, FIFO, HEAP, OF_BLOCKS = 0, 1, 2, 10  # CUlimit
MOST_TRIES = 12


# ---- the ways: each tries to have one STEP more ----


def _exported(rig: Rig, cuda: Cuda) -> None:
    handle, _ = exportable(cuda)
    cuda("cuMemRelease", handle)


def _imported_again(rig: Rig, cuda: Cuda) -> None:
    handle, fd = exportable(cuda)
    cuda("cuMemRelease", handle)
    again = imported(cuda, fd)
    mapped(cuda, again)
    cuda("cuMemRelease", again)
    cuda.ask(close=fd)


def _exported_again(rig: Rig, cuda: Cuda) -> None:
    handle, fd = exportable(cuda)
    cuda("cuMemRelease", handle)
    again = imported(cuda, fd)
    cuda.ask(close=fd)
    export(cuda, again)
    cuda("cuMemRelease", again)


def _in_a_child(rig: Rig, cuda: Cuda) -> None:
    handle, fd = exportable(cuda)
    cuda.ask(leave=0)
    cuda.ask(close=fd)
    cuda("cuMemRelease", handle)


def _of_a_sibling(rig: Rig, cuda: Cuda) -> None:
    """Its descriptor is closed and its handle released: the other process alone has it."""
    giver = rig.newcomer()
    handle, fd = exportable(giver)
    taken = rig.send(fd, giver=giver, taker=cuda)
    imported(cuda, taken)
    cuda.ask(close=taken)
    giver("cuMemRelease", handle)
    giver.ask(close=fd)


def _of_the_dead(rig: Rig, cuda: Cuda) -> None:
    giver = rig.newcomer()
    _, fd = exportable(giver)
    taken = rig.send(fd, giver=giver, taker=cuda)
    mapped(cuda, imported(cuda, taken))
    cuda.ask(close=taken)
    giver.kill()


def _of_a_dead_heir(rig: Rig, cuda: Cuda) -> None:
    """From one that dies to one that dies."""
    first, second = rig.newcomer(), rig.newcomer()
    _, fd = exportable(first)
    handle = imported(second, rig.send(fd, giver=first, taker=second))
    first.kill()
    mapped(cuda, imported(cuda, rig.send(export(second, handle), giver=second, taker=cuda)))
    second.kill()


def _through_another(rig: Rig, cuda: Cuda) -> None:
    """Of a dead process, by one that imported it, exported it again and has let go."""
    giver, middle = rig.newcomer(), rig.newcomer()
    _, fd = exportable(giver)
    first = rig.send(fd, giver=giver, taker=middle)
    handle = imported(middle, first)
    second = export(middle, handle)
    mapped(cuda, imported(cuda, rig.send(second, giver=middle, taker=cuda)))
    middle("cuMemRelease", handle)
    middle.ask(close=first)
    middle.ask(close=second)
    giver.kill()


def _of_a_former_self(rig: Rig, cuda: Cuda) -> None:
    """The process goes on as another program, which has the descriptor."""
    giver = rig.newcomer()
    _, fd = exportable(giver)
    giver.ask(exec=fd)
    giver("cuInit", 0)
    imported(giver, fd)
    giver.ask(close=fd)


def _module(rig: Rig, cuda: Cuda) -> None:
    cuda("cuModuleLoadData", room(8), pointer_to(image()))


def _library(rig: Rig, cuda: Cuda) -> int:
    return cuda.get("cuLibraryLoadData", pointer_to(image()), None, None, 0, None, None, 0)


def _module_of_a_library(rig: Rig, cuda: Cuda) -> None:
    cuda("cuLibraryGetModule", room(8), _library(rig, cuda))


def _kernel_of_a_library(rig: Rig, cuda: Cuda) -> None:
    kernel = cuda.get("cuLibraryGetKernel", _library(rig, cuda), pointer_to(b"kernel\0"))
    cuda("cuKernelGetFunction", room(8), kernel)


def _context(rig: Rig, cuda: Cuda) -> None:
    cuda("cuCtxCreate_v2", room(8), 0, 0)


def _limit(which: int, each: Callable[[Cuda], int]) -> Callable[[Rig, Cuda], None]:
    def take(rig: Rig, cuda: Cuda) -> None:
        now = int.from_bytes(cuda("cuCtxGetLimit", room(8), which)[0], "little")
        cuda("cuCtxSetLimit", which, now + STEP // each(cuda))

    return take


def _allocation(rig: Rig, cuda: Cuda) -> None:
    cuda.alloc(STEP)


def _destroyed_pool(rig: Rig, cuda: Cuda) -> None:
    pool = cuda.get("cuMemPoolCreate", pointer_to(pool_properties()))
    cuda.get("cuMemAllocFromPoolAsync", STEP, pool, 0)
    cuda("cuMemPoolDestroy", pool)


def _of_a_domain(rig: Rig, cuda: Cuda) -> None:
    cuda.create(STEP, allocation_properties(LOCALITY_DOMAIN))


def _pool_of_a_domain(rig: Rig, cuda: Cuda) -> None:
    pool = cuda.get("cuMemPoolCreate", pointer_to(pool_properties(LOCALITY_DOMAIN)))
    cuda.get("cuMemAllocFromPoolAsync", STEP, pool, 0)


WAYS: dict[str, Callable[[Rig, Cuda], object]] = {
    "an allocation": _allocation,
    "a pool that is destroyed": _destroyed_pool,
    "a locality domain": _of_a_domain,
    "a pool of a locality domain": _pool_of_a_domain,
    "exported and released": _exported,
    "exported, released and imported": _imported_again,
    "imported, exported again and released": _exported_again,
    "a descriptor in a child": _in_a_child,
    "a sibling's that has let go": _of_a_sibling,
    "a dead process's": _of_the_dead,
    "a dead process's of a dead one": _of_a_dead_heir,
    "a dead process's through another": _through_another,
    "the program's before exec": _of_a_former_self,
    "a global variable of a module": _module,
    "a global variable of a library": _module_of_a_library,
    "a library's kernel": _kernel_of_a_library,
    "another context": _context,
    "the heap of kernels": _limit(HEAP, lambda _: 1),
    "the buffer of printf": _limit(FIFO, lambda _: 1),
    "the stacks of kernels": _limit(STACK, threads),
    "the memory of kernels' blocks": _limit(OF_BLOCKS, blocks),
}
BY_PARTS = {"a global variable of a library", "a library's kernel"}  # a part that is too large stays loaded


def took(way: str, rig: Rig, cuda: Cuda) -> bool:
    try:
        WAYS[way](rig, cuda)
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        return False
    return True


@pytest.mark.parametrize("way", WAYS)
def test_no_way_leads_beyond_the_limit(rig: Rig, way: str) -> None:
    most = rig.gpu_slice.room // STEP
    slack = STEP + 2 * UNIT if way in BY_PARTS else 0
    taken = 0
    while taken < MOST_TRIES and took(way, rig, rig.cuda):
        taken += 1
        assert rig.held() <= rig.gpu_slice.limit
    assert most - 1 <= taken <= most
    for _ in range(2):
        assert not took(way, rig, rig.cuda)
    assert rig.held() <= rig.gpu_slice.limit + slack
    assert rig.cuda.code("cuMemAlloc_v2", room(8), 2 * STEP) == OUT_OF_MEMORY
    assert rig.gpu_slice.errors.read_text() == ""


@pytest.mark.parametrize("first", range(4))
def test_all_ways_together_by_two_processes_lead_no_farther(rig: Rig, first: int) -> None:
    ways = [way for way in WAYS if way not in BY_PARTS]
    both = cycle((rig.cuda, rig.gpu_slice.start()))
    order = ways[first * 4 :] + ways[: first * 4]
    for way, cuda in zip(order * 2, both, strict=False):
        took(way, rig, cuda)
        assert rig.held() <= rig.gpu_slice.limit, way
    assert rig.held() > rig.gpu_slice.limit - 2 * STEP


@pytest.mark.parametrize("symbol", ["cuModuleLoadData", "cuCtxCreate_v2", "cuCtxSetLimit", "cuMemCreate"])
def test_several_at_once_have_no_more_than_one(rig: Rig, symbol: str) -> None:
    racers = [rig.cuda, *(rig.gpu_slice.start() for _ in range(3))]
    size = (rig.gpu_slice.limit - len(racers) * CONTEXT) * 2 // 3 // UNIT * UNIT
    arguments = {
        "cuModuleLoadData": [room(8), pointer_to(image(variable=size))],
        "cuCtxCreate_v2": [room(8), 0, 0],
        "cuCtxSetLimit": [HEAP, 8 * MIB + size],
        "cuMemCreate": [room(8), size, pointer_to(allocation_properties(DEVICE, 0, POSIX_FD)), 0],
    }
    for _ in range(3):
        for racer in racers:
            racer.tell(call=symbol, args=arguments[symbol])
        codes = [int(racer.listen()["code"]) for racer in racers]
        assert set(codes) <= {0, OUT_OF_MEMORY}
        assert rig.held() <= rig.gpu_slice.limit
