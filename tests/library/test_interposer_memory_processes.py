"""Threads and processes under one memory limit: never more than it, no fitting one refused, the dead leave nothing."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.examples import every
from tests.library.compiler import compiled
from tests.library.gpu_slice import CONTEXT, LIMIT, GpuSlice, eventually
from tests.library.machine import REPOSITORY
from tests.library.memory_client import MIB, OUT_OF_MEMORY, UNIT, Cuda, room
from tests.library.starting_line import let_go, line_of

_SOURCE = Path(__file__).parent / "native/interposer_programs/memory_storm.c"


def build_storm(build: Path, output: Path, *flags: str) -> Path:
    return compiled(output, *flags, _SOURCE, build / "libcuda.so.1")


@pytest.fixture(scope="module")
def storm(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_storm(build, tmp_path_factory.mktemp("native") / "memory_storm")


def _granted(gpu_slice: GpuSlice) -> list[int]:
    return [slot.uses[0].used + slot.uses[0].overhead for slot in gpu_slice.container.slots().values()]


def _watch(gpu_slice: GpuSlice, processes: list[subprocess.Popen[str]]) -> int:
    """Looks at the region until all have ended; how often. What is granted is never above the limit.

    A look is not one instant; two that are equal are.
    """
    looks, before = 0, [0]
    while any(process.poll() is None for process in processes):
        now = _granted(gpu_slice)
        if now == before:
            assert sum(now) <= gpu_slice.limit
            looks += 1
        before = now
        time.sleep(0.0002)
    return looks


def test_sixty_four_threads_end_at_zero(gpu_slice: GpuSlice, storm: Path, running: list[subprocess.Popen[str]]) -> None:
    process = gpu_slice.container.start_program(storm, "storm", 64, 100_000 // every(10))
    running.append(process)
    assert line_of(process) == "done\n"
    assert gpu_slice.used() == 0
    assert eventually(lambda: gpu_slice.total() == CONTEXT)
    assert gpu_slice.counters().peak <= gpu_slice.limit
    assert gpu_slice.errors.exists() is False


def test_what_was_given_back_can_be_had_again_at_once(
    gpu_slice: GpuSlice, build: Path, running: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The overhead is measured while blocks come and go: none may be taken for it, as one run in two once did."""
    source = REPOSITORY / "benchmarks/gpu/native/allocate.c"
    program = compiled(tmp_path / "allocate", source, build / "libcuda.so.1")
    gpu_slice.change_limit(4096 * MIB, 2)
    for _ in range(12):
        process = gpu_slice.container.start_program(program, "vmm", "--cycles", 100)
        running.append(process)
        told = json.loads(process.communicate(timeout=30)[0])
        assert told["refused_again"] == 0
        assert told["free_after"] == told["free_before"]


def test_eight_processes_race_for_one_limit(
    gpu_slice: GpuSlice, storm: Path, running: list[subprocess.Popen[str]]
) -> None:
    gpu_slice.change_limit(8 * CONTEXT + 256 * MIB, 2)
    held = gpu_slice.container.root / "held"
    held.write_bytes(bytes(8))
    racers = [gpu_slice.container.start_program(storm, "race", 2500, held, gpu_slice.limit) for _ in range(8)]
    running.extend(racers)
    for racer in racers:  # a context whose making is under way may be counted twice, so a total does not tell it
        assert line_of(racer) == "ready\n"
    let_go(racers)
    assert _watch(gpu_slice, racers) > 0
    assert [(*racer.communicate(), racer.returncode) for racer in racers] == [("never more than there is\n", "", 0)] * 8
    counters = gpu_slice.counters()
    assert counters.refusals > 0
    assert 8 * CONTEXT < counters.peak <= gpu_slice.limit


def test_no_pod_is_rejected_while_all_fit(
    gpu_slice: GpuSlice, storm: Path, running: list[subprocess.Popen[str]]
) -> None:
    gpu_slice.change_limit(8 * (CONTEXT + 16 * MIB), 2)
    racers = [gpu_slice.container.start_program(storm, "fit", 16 * MIB, 20_000) for _ in range(8)]
    running.extend(racers)
    _watch(gpu_slice, racers)
    assert [(*racer.communicate(), racer.returncode) for racer in racers] == [("it fits\n", "", 0)] * 8
    assert gpu_slice.counters().refusals == 0


def test_two_that_do_not_both_fit_share_by_turns(
    gpu_slice: GpuSlice, storm: Path, running: list[subprocess.Popen[str]]
) -> None:
    """Reservations that see each other step back: one of them wins, and both again and again."""
    first, second = gpu_slice.start(), gpu_slice.start()
    size = gpu_slice.limit - 2 * CONTEXT
    won = [0, 0]
    for _ in range(200):
        for cuda in (first, second):
            cuda.tell(call="cuMemAlloc_v2", args=[room(8), size])
        answers = [cuda.listen() for cuda in (first, second)]
        codes = [answer["code"] for answer in answers]
        assert sorted(codes) == [0, OUT_OF_MEMORY]
        winner = codes.index(0)
        won[winner] += 1
        (first, second)[winner].free(int.from_bytes(bytes.fromhex(answers[winner]["outs"][0]), "little"))
    assert sum(won) == 200


def test_a_killed_process_gives_its_memory_back_at_once(gpu_slice: GpuSlice) -> None:
    holder, other = gpu_slice.start(), gpu_slice.start()
    size = gpu_slice.limit - 2 * CONTEXT
    holder.alloc(size)
    assert other.code("cuMemAlloc_v2", room(8), size) == OUT_OF_MEMORY
    holder.kill()
    other.alloc(size)  # who would be refused looks for the dead


@pytest.mark.realtime
def test_a_killed_process_gives_its_memory_back_within_a_second(gpu_slice: GpuSlice) -> None:
    holder, other = gpu_slice.start(), gpu_slice.start()
    holder.alloc(UNIT)
    holder.kill()
    assert eventually(lambda: gpu_slice.total() == CONTEXT, within=1.0)
    assert other.left() == gpu_slice.room


def test_a_newcomer_finds_the_memory_of_the_dead(gpu_slice: GpuSlice) -> None:
    holder = gpu_slice.start()
    holder.alloc(gpu_slice.room)
    holder.kill()
    assert gpu_slice.total() == gpu_slice.limit  # nobody was there to see it
    newcomer = gpu_slice.start()
    newcomer.alloc(gpu_slice.room)


def test_killed_anywhere_they_leave_nothing_behind(
    gpu_slice: GpuSlice, storm: Path, running: list[subprocess.Popen[str]]
) -> None:
    watcher = gpu_slice.start()
    for round_ in range(10):
        victims = [gpu_slice.container.start_program(storm, "churn") for _ in range(2)]
        running.extend(victims)
        assert eventually(lambda: len(gpu_slice.container.slots()) == 3)
        time.sleep(0.011 * round_)  # not a wait: a different instant to be killed at
        for victim in victims:
            victim.kill()
            victim.wait(timeout=10)
        assert eventually(lambda: gpu_slice.total() == CONTEXT)
        watcher.free(watcher.alloc(gpu_slice.room))


def test_a_child_has_a_slot_of_its_own(gpu_slice: GpuSlice, storm: Path, running: list[subprocess.Popen[str]]) -> None:
    process = gpu_slice.container.start_program(storm, "fork", LIMIT - CONTEXT)
    running.append(process)
    assert line_of(process) == "both\n"
    (slot,) = gpu_slice.container.slots().values()
    assert (slot.pid, slot.uses[0].used) == (process.pid, LIMIT - CONTEXT)


def test_what_a_child_inherits_is_the_parents(gpu_slice: GpuSlice, user: Cuda) -> None:
    pointer = user.alloc(UNIT)
    handle = user.create(UNIT)
    for name, argument in (("cuMemFree_v2", pointer), ("cuMemFreeAsync", pointer), ("cuMemRelease", handle)):
        assert user.ask(fork=[[name, [argument, 0]]])["codes"] != [0]
    assert gpu_slice.used() == 2 * UNIT
    user.free(pointer)
    user("cuMemRelease", handle)
    assert gpu_slice.used() == 0
