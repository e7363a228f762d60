"""A failure that passes is none for the rest of a process's life: it tries again what it has once tried in vain.

A process runs out of descriptors, address space or threads for a moment, at its first call, its first context, its
first launch, or while another process of its container ends.
"""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.interposed import device, start_time
from tests.library.memory_client import MIB, OUT_OF_MEMORY, UNIT, Cuda, pointer_to, room
from tests.library.memory_rig import image

WHAT = ("descriptors", "memory")
ROW_HEAD, ROW_SLOT = 128, 64 + 16 * 256  # abi/activity.h


def works(gpu_slice: GpuSlice, cuda: Cuda) -> None:
    """Memory at once, and what no allocation shows is counted."""
    cuda.begin()
    cuda.alloc(UNIT)
    assert cuda.left() == gpu_slice.room - UNIT
    assert cuda.code("cuMemAlloc_v2", room(8), gpu_slice.room) == OUT_OF_MEMORY
    assert cuda.code("cuModuleLoadData", room(8), pointer_to(image(variable=UNIT))) == 0
    assert eventually(lambda: gpu_slice.use(cuda).overhead > CONTEXT)


@pytest.mark.parametrize("what", WHAT)
def test_limits_that_could_not_be_read_at_the_first_call_are_read_at_the_next(gpu_slice: GpuSlice, what: str) -> None:
    cuda = gpu_slice.start(context=False)
    cuda.ask(without=what)
    cuda.code("cuInit", 0)
    cuda.ask(**{"with": what})
    works(gpu_slice, cuda)


@pytest.mark.parametrize("what", WHAT)
def test_an_account_that_could_not_be_opened_at_first_is_opened_at_the_next_call(
    gpu_slice: GpuSlice, what: str
) -> None:
    cuda = gpu_slice.start(context=False)
    cuda("cuInit", 0)
    cuda.ask(without=what)
    cuda.code("cuDevicePrimaryCtxRetain", room(8), 0)
    assert cuda.code("cuMemAlloc_v2", room(8), UNIT) != 0
    cuda.ask(**{"with": what})
    works(gpu_slice, cuda)


def test_legacy_limits_and_an_account_that_is_none_stay_as_they_are(gpu_slice: GpuSlice) -> None:
    """What is wrong with the file, and does not pass, is not tried again: the container has to be started again."""
    kept = gpu_slice.container.region_file.read_bytes()
    gpu_slice.container.region_file.write_bytes(bytes(len(kept)))
    cuda = gpu_slice.start(context=False)
    cuda.begin()
    assert cuda.code("cuMemAlloc_v2", room(8), UNIT) == OUT_OF_MEMORY
    gpu_slice.container.region_file.write_bytes(kept)
    assert cuda.code("cuMemAlloc_v2", room(8), UNIT) == OUT_OF_MEMORY


def _lives_in_the_row(gpu_slice: GpuSlice, cuda: Cuda) -> bool:
    cuda.occupy(0, 20)
    cuda.synchronize()
    (number,) = (index for index, slot in gpu_slice.container.slots().items() if slot.pid == cuda.process.pid)
    (row,) = (gpu_slice.container.base / "state").glob("*.activity")
    head = row.read_bytes()[ROW_HEAD + number * ROW_SLOT + 16 :][:8]
    return int.from_bytes(head, "little") > 0


@pytest.mark.parametrize("what", WHAT)
def test_a_process_that_could_not_say_that_it_is_at_work_says_so_later(gpu_slice: GpuSlice, what: str) -> None:
    gpu_slice.container.grant(device(0, memory=gpu_slice.limit, cores=50), generation=2)
    cuda = gpu_slice.start()
    pointer = cuda.alloc(UNIT)
    cuda.ask(without=what)
    cuda.code("cuMemsetD8_v2", pointer, 0, UNIT)
    cuda.synchronize()
    cuda.ask(**{"with": what})
    assert eventually(lambda: _lives_in_the_row(gpu_slice, cuda), within=5.0)


def test_a_helper_that_could_not_be_made_is_made_later(gpu_slice: GpuSlice) -> None:
    """Out of address space for its stack: then contexts are guessed, and NVML is asked as soon as there is a thread."""
    cuda = gpu_slice.start(context=False)
    cuda("cuInit", 0)
    cuda.ask(without="memory")
    cuda.code("cuDevicePrimaryCtxRetain", room(8), 0)
    cuda.ask(**{"with": "memory"})
    cuda.begin()

    def has_threads() -> bool:
        cuda.left()
        names = {path.read_text().strip() for path in Path(f"/proc/{cuda.process.pid}/task").glob("*/comm")}
        return {"vcuda-helper", "vcuda-poller"} <= names

    assert eventually(has_threads)
    assert eventually(lambda: gpu_slice.use(cuda).overhead == CONTEXT)


def test_without_descriptors_the_memory_of_a_killed_process_is_free_at_once(gpu_slice: GpuSlice) -> None:
    gone, cuda = gpu_slice.start(), gpu_slice.start()
    taken = gpu_slice.limit - 2 * CONTEXT - 10 * MIB
    gone.alloc(taken)
    cuda.alloc(UNIT)
    cuda.ask(without="descriptors")
    assert cuda.code("cuMemAlloc_v2", room(8), taken) == OUT_OF_MEMORY
    gone.kill()
    assert eventually(lambda: cuda.code("cuMemAlloc_v2", room(8), taken) == 0, within=1.0)


def test_without_descriptors_a_child_that_was_not_waited_for_has_nothing(gpu_slice: GpuSlice) -> None:
    cuda = gpu_slice.start()
    taken = gpu_slice.limit - CONTEXT - 10 * MIB
    child = int(cuda.ask(leave=0)["value"])
    gpu_slice.container.occupy(9, child, start_time(child), used=taken)
    cuda.ask(without="descriptors")
    assert cuda.code("cuMemAlloc_v2", room(8), taken) == OUT_OF_MEMORY
    os.kill(child, signal.SIGKILL)
    assert eventually(lambda: cuda.code("cuMemAlloc_v2", room(8), taken) == 0, within=1.0)


def test_a_slot_that_was_claimed_without_a_descriptor_gets_its_lock_later(gpu_slice: GpuSlice) -> None:
    """Else it would stay for ever where only another pid namespace could clear it."""
    gpu_slice.start()
    cuda = gpu_slice.start(context=False)
    cuda("cuInit", 0)
    cuda.ask(without="descriptors")
    cuda.begin()
    cuda.ask(**{"with": "descriptors"})
    cuda.alloc(UNIT)

    def is_locked() -> bool:
        maps = Path(f"/proc/{cuda.process.pid}/maps").read_text()
        return re.search(r" ---s .*state/region", maps) is not None

    assert eventually(is_locked)


def test_where_all_slots_were_taken_a_process_gets_one_when_there_is_one(gpu_slice: GpuSlice) -> None:
    holder = subprocess.Popen(["sleep", "60"])
    for slot in range(1024):
        gpu_slice.container.occupy(slot, holder.pid, start_time(holder.pid))
    cuda = gpu_slice.start(context=False)
    cuda.begin()
    assert cuda.code("cuMemAlloc_v2", room(8), UNIT) == OUT_OF_MEMORY
    holder.kill()
    holder.wait(timeout=10)
    assert eventually(lambda: cuda.code("cuMemAlloc_v2", room(8), UNIT) == 0)
    assert gpu_slice.use(cuda).used == UNIT
