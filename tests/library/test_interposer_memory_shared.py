"""Memory that several processes have: it counts once while its maker lives, and never not at all. Library D2."""

from tests.library.gpu_slice import CONTEXT, eventually
from tests.library.memory_client import GIB, MIB, OUT_OF_MEMORY, POSIX_FD, room
from tests.library.memory_rig import STEP, Rig, export, exportable, imported, mapped


def test_what_was_exported_counts_until_its_last_descriptor_is_closed(rig: Rig) -> None:
    handle, fd = exportable(rig.cuda)
    second = export(rig.cuda, handle)
    rig.cuda("cuMemRelease", handle)
    assert rig.cuda.left() == rig.gpu_slice.room - STEP
    rig.cuda.ask(close=fd)
    assert rig.cuda.left() == rig.gpu_slice.room - STEP
    rig.cuda.ask(close=second)
    assert rig.cuda.left() == rig.gpu_slice.room
    assert rig.cuda.alloc(rig.gpu_slice.room)


def test_a_program_that_exports_and_lets_go_for_ever_is_not_refused(rig: Rig) -> None:
    for _ in range(3 * rig.gpu_slice.room // STEP):
        handle, fd = exportable(rig.cuda)
        again = imported(rig.cuda, fd)
        rig.cuda.ask(close=fd)
        rig.cuda("cuMemRelease", handle)
        rig.cuda("cuMemRelease", again)
    assert rig.gpu_slice.counters().refusals == 0


def test_siblings_share_memory_that_is_charged_once(rig: Rig) -> None:
    """As ranks of NCCL do with their buffers, and PyTorch's processes with tensors in expandable segments."""
    gpu_slice = rig.gpu_slice
    gpu_slice.change_limit(GIB, 2)
    assert eventually(lambda: rig.cuda.total() == GIB)
    handle, fd = exportable(rig.cuda, 512 * MIB)
    others = [gpu_slice.start() for _ in range(3)]
    for other in others:
        taken = imported(other, rig.send(fd, giver=rig.cuda, taker=other))
        mapped(other, taken, 512 * MIB)
    assert gpu_slice.used() == 512 * MIB
    rig.cuda.alloc(gpu_slice.limit - 512 * MIB - 4 * CONTEXT)
    assert (gpu_slice.counters().refusals, rig.held()) == (0, gpu_slice.limit)
    rig.cuda("cuMemRelease", handle)
    rig.cuda.ask(close=fd)
    assert rig.cuda.left() == 0


def assert_handed_over(rig: Rig) -> None:
    """To the process of the rig, and at no instant was it nobody's."""

    def is_handed_over() -> bool:
        assert all(rig.gpu_slice.used() >= STEP for _ in range(20))
        return rig.gpu_slice.use(rig.cuda).used != 0

    assert eventually(is_handed_over)
    assert eventually(lambda: rig.gpu_slice.used() == STEP)


def test_what_was_exported_is_given_back_once_others_hold_nothing(rig: Rig) -> None:
    """While they hold any, nobody knows which: all counts."""
    giver = rig.newcomer()
    pieces = [exportable(giver) for _ in range(2)]
    taken = rig.send(pieces[0][1], giver=giver, taker=rig.cuda)
    handle = imported(rig.cuda, taken)
    rig.cuda.ask(close=taken)
    for piece, fd in pieces:
        giver("cuMemRelease", piece)
        giver.ask(close=fd)
    assert rig.gpu_slice.used() == 2 * STEP
    rig.cuda("cuMemRelease", handle)
    assert eventually(lambda: rig.gpu_slice.used() == 0)


def test_memory_of_a_dead_process_counts_on_without_a_gap(rig: Rig) -> None:
    giver = rig.newcomer()
    _, fd = exportable(giver)
    handle = imported(rig.cuda, rig.send(fd, giver=giver, taker=rig.cuda))
    giver.kill()
    assert_handed_over(rig)
    rig.cuda("cuMemRelease", handle)
    assert rig.gpu_slice.used() == 0


def test_memory_of_a_program_that_became_another_counts_on_without_a_gap(rig: Rig) -> None:
    giver = rig.newcomer()
    _, fd = exportable(giver)
    imported(rig.cuda, rig.send(fd, giver=giver, taker=rig.cuda))
    giver.ask(exec=fd)
    giver("cuInit", 0)
    giver("cuMemRelease", giver.create(STEP))
    assert_handed_over(rig)


def test_what_a_program_exports_after_exec_is_charged_once(rig: Rig) -> None:
    """Its slot from before is there yet, for the sake of who imported from it."""
    giver = rig.newcomer()
    _, fd = exportable(giver)
    imported(rig.cuda, rig.send(fd, giver=giver, taker=rig.cuda))
    giver.ask(exec=fd)
    giver("cuInit", 0)
    _, fd = exportable(giver)
    imported(rig.cuda, rig.send(fd, giver=giver, taker=rig.cuda))
    assert eventually(lambda: (rig.gpu_slice.use(rig.cuda).used, rig.gpu_slice.used()) == (STEP, 2 * STEP))


def test_an_heir_that_dies_leaves_nothing(rig: Rig) -> None:
    giver, heir = rig.newcomer(), rig.newcomer()
    _, fd = exportable(giver)
    imported(heir, rig.send(fd, giver=giver, taker=heir))
    giver.kill()
    heir.kill()
    assert eventually(lambda: rig.gpu_slice.used() == 0)
    rig.cuda.alloc(rig.gpu_slice.room)


def test_processes_that_imported_from_each_other_leave_nothing(rig: Rig) -> None:
    """As ranks do; they end without releasing anything."""
    ranks = [rig.newcomer(), rig.newcomer()]
    exports = [exportable(rank)[1] for rank in ranks]
    for giver, taker, fd in zip(ranks, reversed(ranks), exports, strict=True):
        imported(taker, rig.send(fd, giver=giver, taker=taker))
    for rank in ranks:
        rank.kill()
    assert eventually(lambda: rig.gpu_slice.used() == 0)
    rig.cuda.alloc(rig.gpu_slice.room)


def test_memory_of_another_container_is_charged_where_it_is_imported(rig: Rig) -> None:
    _, fd = exportable(rig.outside)
    taken = rig.send(fd, giver=rig.outside, taker=rig.cuda)
    handle = imported(rig.cuda, taken)
    assert rig.gpu_slice.used() == STEP
    address = mapped(rig.cuda, handle)
    rig.cuda("cuMemRelease", handle)
    assert rig.gpu_slice.used() == STEP
    rig.cuda("cuMemUnmap", address, STEP)
    assert rig.gpu_slice.used() == 0
    full = rig.cuda.alloc(rig.gpu_slice.room)
    assert rig.cuda.code("cuMemImportFromShareableHandle", room(8), taken, POSIX_FD) == OUT_OF_MEMORY
    rig.cuda.free(full)
    assert [imported(rig.cuda, taken), imported(rig.cuda, taken)]
    assert rig.gpu_slice.used() == STEP


def test_a_fork_frees_nothing_of_what_its_parent_exported(rig: Rig) -> None:
    handle, fd = exportable(rig.cuda)
    rig.cuda("cuMemRelease", handle)
    assert rig.cuda.ask(fork=[["cuMemRelease", [handle]]])["codes"] != [0]
    assert rig.cuda.left() == rig.gpu_slice.room - STEP
    rig.cuda.ask(close=fd)
    assert rig.cuda.left() == rig.gpu_slice.room


def test_memory_of_an_opened_handle_is_its_makers(rig: Rig) -> None:
    """Freed by its maker, it is gone: NVIDIA's documentation forbids to use it then."""
    other = rig.gpu_slice.start()
    pointer = other.alloc(STEP)
    handle = {"value": other("cuIpcGetMemHandle", room(64), pointer)[0].hex()}
    rig.cuda.get("cuIpcOpenMemHandle_v2", handle, 1)
    other.free(pointer)
    assert rig.held() == 2 * CONTEXT
