"""Whose a slot is: through exec, fork, lost descriptors and pid namespaces, and killed at every single store."""

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.examples import every
from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.interposed import Container, device
from tests.library.machine import LIBRARY
from tests.library.memory_client import MIB, OUT_OF_MEMORY, UNIT, Cuda, room
from tests.library.starting_line import line_of
from tests.library.test_interposer_loading import program

needs_root = pytest.mark.root
TAKEN = 256 * MIB  # with a context, more than half of the limit: two of them do not fit


@pytest.fixture(scope="module")
def becoming(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("native"), "becoming.c", str(build / "libcuda.so.1"))


def start(gpu_slice: GpuSlice, running: list[subprocess.Popen[str]], *command: object) -> subprocess.Popen[str]:
    process = gpu_slice.container.start_program(*command)
    running.append(process)
    assert line_of(process) == "done\n"
    return process


@pytest.mark.parametrize("step", ["claim", "take_over", "reap"])
def test_killed_at_any_store_a_process_leaves_nothing_that_the_next_does_not_clear(
    container: Container, short_tmp: Path, step: str
) -> None:
    container.grant(device(0))
    stores = program(short_tmp, "slot_stores.c", *map(str, (LIBRARY / "interposer/state").glob("*.c")))
    with container.start_program(stores, container.region_file, step, every(4)) as process:
        out, errors = process.communicate(timeout=55)
    assert (process.returncode, errors) == (0, ""), out
    assert int(out.split()[0]) > 5 / every(4)


def test_a_program_that_becomes_itself_again_and_again_keeps_within_its_limit(
    gpu_slice: GpuSlice, becoming: Path, running: list[subprocess.Popen[str]]
) -> None:
    start(gpu_slice, running, becoming, TAKEN, 100, "sleep")


@pytest.mark.realtime
@pytest.mark.parametrize("way", ["sleep", "leave"])
def test_what_a_program_had_is_free_a_second_after_it_became_another(
    gpu_slice: GpuSlice, becoming: Path, running: list[subprocess.Popen[str]], way: str
) -> None:
    """Its pid and start time are the same; a child that it left behind does not keep its slot."""
    watcher = gpu_slice.start()
    process = start(gpu_slice, running, becoming, TAKEN, 1, way)
    assert eventually(lambda: gpu_slice.total() == CONTEXT, within=1.0)
    assert process.poll() is None
    assert watcher.left() == gpu_slice.room
    if way == "leave":
        subprocess.run(["pkill", "-P", str(process.pid)], check=True, timeout=10)


def test_a_program_that_closes_every_descriptor_keeps_its_slot(
    gpu_slice: GpuSlice, becoming: Path, running: list[subprocess.Popen[str]]
) -> None:
    watcher = gpu_slice.start()
    start(gpu_slice, running, becoming, TAKEN, 1, "close")
    deadline = time.monotonic() + 0.8  # three looks of the watcher's helper
    while time.monotonic() < deadline:
        assert watcher.left() <= gpu_slice.room - TAKEN
        time.sleep(0.02)


def lose_lock(cuda: Cuda) -> None:
    """What a restore from a checkpoint comes to: the mappings are there, and no lock."""
    maps = Path(f"/proc/{cuda.process.pid}/maps").read_text()
    for start, end in re.findall(r"^(\w+)-(\w+) ---s .*state/region", maps, re.MULTILINE):
        assert cuda.code("munmap", int(start, 16), int(end, 16) - int(start, 16)) == 0


def test_a_process_that_has_lost_its_lock_takes_it_again(gpu_slice: GpuSlice, user: Cuda) -> None:
    user.alloc(TAKEN)
    lose_lock(user)
    assert eventually(lambda: " ---s " in Path(f"/proc/{user.process.pid}/maps").read_text(), within=5.0)
    other = gpu_slice.start()
    assert other.code("cuMemAlloc_v2", room(8), TAKEN) == OUT_OF_MEMORY
    assert gpu_slice.use(user).used == TAKEN


@pytest.mark.parametrize("after", ["cleared", "claimed by another"])
def test_a_process_whose_slot_was_taken_brings_what_it_has_into_another(
    gpu_slice: GpuSlice, user: Cuda, after: str
) -> None:
    """Security: it wrote into the other's slot, and when that one ended what it had left counted for ever."""
    user.alloc(TAKEN)
    (number,) = gpu_slice.container.slots()
    gpu_slice.container.occupy(number, 0 if after == "cleared" else 1, 1)
    assert eventually(lambda: gpu_slice.use(user).used == TAKEN, within=5.0)
    assert eventually(lambda: gpu_slice.use(user).overhead == CONTEXT)
    other = gpu_slice.start()
    assert other.code("cuMemAlloc_v2", room(8), TAKEN) == OUT_OF_MEMORY
    user.alloc(UNIT)
    assert gpu_slice.use(user).used == TAKEN + UNIT


def test_what_a_process_frees_after_it_lost_its_slot_is_free(gpu_slice: GpuSlice, user: Cuda) -> None:
    pointer = user.alloc(TAKEN)
    (number,) = gpu_slice.container.slots()
    gpu_slice.container.occupy(number, 0, 0)
    user.free(pointer)
    assert gpu_slice.used() == 0
    assert user.left() == gpu_slice.room


def test_two_copies_of_the_library_in_a_process_have_a_slot_each(
    gpu_slice: GpuSlice, build: Path, short_tmp: Path, running: list[subprocess.Popen[str]]
) -> None:
    copies = program(short_tmp, "two_copies.c", str(build / "libcuda.so.1"), "-ldl")
    start(gpu_slice, running, copies, gpu_slice.container.driver / "libcuda.so.1", 64 * MIB)
    assert not eventually(lambda: gpu_slice.used() != 128 * MIB, within=0.8)
    assert len(gpu_slice.container.slots()) == 2


@needs_root
@pytest.mark.realtime
@pytest.mark.parametrize("way", ["killed", "another program"])
def test_a_slot_of_another_pid_namespace_is_cleared_when_its_process_is_gone(
    gpu_slice: GpuSlice, becoming: Path, running: list[subprocess.Popen[str]], way: str
) -> None:
    gpu_slice.start()
    last = "stay" if way == "killed" else "sleep"
    process = start(
        gpu_slice, running, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", becoming, TAKEN, 1, last
    )
    if way == "killed":
        assert gpu_slice.total() >= CONTEXT + TAKEN
        process.kill()
    assert eventually(lambda: gpu_slice.total() == CONTEXT, within=1.0)
