"""Allocations from many threads and processes at once: none overlap, none are lost, never more than the GPU has."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.library.compiler import MEMORY_ERRORS_FATAL, compiled
from tests.library.machine import Machine
from tests.library.memory_client import CAPACITY, CONTEXT_MIB, MIB, describe, room, start
from tests.library.starting_line import let_go, line_of

pytestmark = pytest.mark.thorough

_SOURCE = Path(__file__).parent / "native/memory_threads.c"


@pytest.fixture(scope="module")
def program(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("native") / "memory_threads", _SOURCE, build / "libcuda.so.1")


def _environment(machine: Machine) -> dict[str, str]:
    describe(machine)
    mine = {"VCUDA_EMULATOR_CONTEXT_MIB": str(CONTEXT_MIB), "LD_LIBRARY_PATH": str(machine.build)}
    return machine.environment | mine


def _start(program: Path, environment: dict[str, str], *words: object) -> subprocess.Popen[str]:
    command = [str(program), *map(str, words)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _let_race(racers: list[subprocess.Popen[str]]) -> None:
    for racer in racers:
        assert line_of(racer) == "ready\n"
    let_go(racers)


def _said(process: subprocess.Popen[str], timeout: float = 50) -> str:
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, out
    return out


def test_threads_of_one_process_give_everything_back(machine: Machine, program: Path) -> None:
    process = _start(program, _environment(machine), "hammer", 16, 3000)
    assert _said(process) == "all given back\n"


def test_the_same_with_every_memory_error_fatal(sanitized_machine: Machine, tmp_path: Path) -> None:
    driver = sanitized_machine.build / "libcuda.so.1"
    program = compiled(tmp_path / "program", *MEMORY_ERRORS_FATAL, _SOURCE, driver)
    environment = _environment(sanitized_machine) | {"ASAN_OPTIONS": "detect_leaks=0"}
    assert _said(_start(program, environment, "hammer", 4, 1500)) == "all given back\n"


def test_processes_together_never_hold_more_than_there_is(
    machine: Machine, program: Path, running: list[subprocess.Popen[str]]
) -> None:
    environment = _environment(machine)
    count, held = 4, machine.directory / "held"
    held.write_bytes(bytes(8))
    words = ("race", 3, 1500, held, CAPACITY + CONTEXT_MIB * MIB, CONTEXT_MIB * MIB)
    racers = [_start(program, environment, *words) for _ in range(count)]
    running.extend(racers)
    _let_race(racers)
    assert [_said(racer) for racer in racers] == ["never more than there is\n"] * count
    assert start(machine).left() == CAPACITY


def test_a_process_that_is_killed_leaves_nothing_behind(
    machine: Machine, program: Path, running: list[subprocess.Popen[str]]
) -> None:
    environment = _environment(machine)
    watcher = start(machine)
    holders = [_start(program, environment, "hold", CAPACITY // 4) for _ in range(3)]
    running.extend(holders)
    for holder in holders:
        assert line_of(holder) == "holding\n"
    assert watcher.code("cuMemAlloc_v2", room(8), CAPACITY // 2) == 2
    for holder in holders:
        holder.kill()
        holder.wait(timeout=10)
    assert watcher.left() == CAPACITY
    watcher.alloc(CAPACITY)


def test_killed_in_the_middle_of_anything_they_leave_nothing_behind(
    machine: Machine, program: Path, running: list[subprocess.Popen[str]]
) -> None:
    environment = _environment(machine)
    watcher = start(machine)
    for round_ in range(8):
        victims = [_start(program, environment, "hammer", 4, 10_000_000) for _ in range(2)]
        running.extend(victims)
        _until_somebody_allocates(watcher.left)
        time.sleep(0.003 * round_)  # not a wait: a different instant to be killed at
        for victim in victims:
            victim.kill()
            victim.wait(timeout=10)
        assert watcher.left() == CAPACITY
        watcher.free(watcher.alloc(CAPACITY))


def _until_somebody_allocates(left: Callable[[], int]) -> None:
    deadline = time.monotonic() + 20
    while left() > CAPACITY - (2 * CONTEXT_MIB + 8) * MIB:
        assert time.monotonic() < deadline, "nobody allocated"
        time.sleep(0.002)


def test_allocating_and_freeing_is_cheap(machine: Machine, program: Path) -> None:
    """A generous bound, for a busy machine: on an idle one it is a few hundred nanoseconds."""
    environment = _environment(machine)
    best = min(int(_said(_start(program, environment, "pace", 20_000))) for _ in range(3))
    assert best < 5000


def test_free_memory_is_never_seen_negative(
    machine: Machine, program: Path, running: list[subprocess.Popen[str]]
) -> None:
    environment = _environment(machine)
    held = machine.directory / "held"
    held.write_bytes(bytes(8))
    racer = _start(program, environment, "race", 2, 800, held, CAPACITY, 0)
    running.append(racer)
    watcher = start(machine)
    _let_race([racer])
    looks = 0
    while racer.poll() is None:
        assert 0 <= watcher.left() <= watcher.total()
        looks += 1
    assert looks > 0
    assert racer.returncode == 0
