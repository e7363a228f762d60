"""Processes of one container in their region: slots, forks, deaths, the helper thread."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.container import region
from tests.library.interposed import GIB, INSIDE, Container, device, start_time
from tests.library.starting_line import line_of
from tests.library.test_interposer_loading import program
from tests.waiting import eventually

needs_root = pytest.mark.root
NOBODY = 4_000_000  # above every pid that Linux gives


@pytest.fixture
def limited(container: Container) -> Container:
    container.grant(device(0))
    return container


def claimed(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Slot and pid of a process that runs claim_and_wait."""
    slot, pid = json.loads(line_of(process))
    return slot, pid


def test_a_process_claims_one_slot_with_its_pid_start_time_and_namespace(limited: Container) -> None:
    with limited.start("claim_and_wait") as process:
        slot, pid = claimed(process)
        written = limited.slots()[slot]
        assert (written.pid, written.start_time) == (pid, start_time(pid))
        assert written.pid_namespace == Path("/proc/self/ns/pid").stat().st_ino
        process.communicate()


def test_processes_that_come_at_once_get_slots_of_their_own(limited: Container) -> None:
    started = [limited.start("claim_and_wait") for _ in range(12)]
    told = [claimed(process) for process in started]
    assert len({slot for slot, _ in told}) == len(started)
    assert dict(told) == {number: slot.pid for number, slot in limited.slots().items()}
    for process in started:
        process.communicate()


def test_a_forked_child_claims_its_own_and_the_parent_keeps_its(limited: Container) -> None:
    before, child, after = limited.run("claims_after_fork").value
    assert before == after
    assert child[0] != before[0]
    assert child[1] != before[1]


def test_what_a_program_held_is_gone_when_it_becomes_another(limited: Container) -> None:
    """exec keeps pid and start time; the driver's memory went with the old image."""
    limited.occupy(5, os.getpid(), start_time(os.getpid()), used=GIB)
    slot, pid = limited.run("claim_and_exec").value
    assert slot == 0
    assert [(number, each.pid) for number, each in limited.slots().items() if number != 5] == [(0, pid)]


def test_slots_of_the_dead_are_cleared_by_the_next_to_come(limited: Container) -> None:
    limited.occupy(0, NOBODY, 1, used=GIB)
    limited.occupy(1, os.getpid(), start_time(os.getpid()) + 1, used=GIB, overhead=1)
    limited.occupy(2, os.getpid(), start_time(os.getpid()), used=GIB // 2, overhead=GIB // 4)
    assert limited.run("claim").value[0] == 0
    slots = limited.slots()
    assert set(slots) == {0, 2}
    assert slots[0].uses[0].used == 0
    assert slots[2].uses[0].used == GIB // 2


def test_a_killed_process_gives_its_memory_back_within_a_second(limited: Container) -> None:
    """A zombie all the time: no process waits for it."""
    watched = limited.start("frees_while_told")
    assert int(line_of(watched)) == 2 * GIB
    victims, took = [limited.start("claim_and_wait") for _ in range(3)], []
    for victim in victims:
        slot, pid = claimed(victim)
        limited.occupy(slot, pid, start_time(pid), used=GIB)
        assert int(line_of(watched)) == GIB
        victim.kill()
        before = time.monotonic()
        assert int(line_of(watched)) == 2 * GIB
        took.append(time.monotonic() - before)
    assert min(took) < 1, "best of three, because the machine may be busy with something else"
    watched.communicate()
    for victim in victims:
        victim.communicate()


def test_a_process_whose_first_thread_ended_lives(limited: Container, short_tmp: Path) -> None:
    headless = program(short_tmp, "headless.c")
    with limited.start_program(headless) as process:
        assert line_of(process) == "headless\n"
        stat = Path(f"/proc/{process.pid}/stat")
        assert eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        limited.occupy(3, process.pid, start_time(process.pid), used=GIB)
        limited.run("claim")
        assert 3 in limited.slots()
        process.kill()
    limited.run("claim")
    assert 3 not in limited.slots()


@needs_root
def test_slots_of_another_pid_namespace_are_judged_by_their_lock_alone(limited: Container) -> None:
    """Neither namespace can judge a pid of the other; 7 is of a process that could not take its lock."""
    limited.occupy(7, os.getpid(), start_time(os.getpid()), used=GIB)
    command = ("unshare", "--pid", "--fork", "--mount-proc", *INSIDE, "claim_and_wait", "[]")
    with limited.start_program(*command) as process:
        slot, pid = claimed(process)
        assert pid < 10
        assert limited.run("claim").value[0] != slot
        assert {7, slot} <= set(limited.slots())
        process.communicate(timeout=20)
    assert limited.run("claim").value[0] == slot
    assert 7 in limited.slots()


def test_with_every_slot_taken_a_process_gets_no_memory_with_one_line(limited: Container) -> None:
    for slot in range(region.SLOTS):
        limited.occupy(slot, os.getpid(), start_time(os.getpid()), used=1 << 10)
    outcome = limited.run("claim")
    assert outcome.value[0] == -1
    (said,) = outcome.errors.splitlines()
    assert f"{limited.base}/state/region has no slot left" in said
    assert limited.run("shown").value["free"] == 0


def cut(file: Path) -> None:
    os.truncate(file, region.SIZE - 1)


def rewrite(offset: int, data: bytes) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with file.open("r+b") as opened:
            opened.seek(offset)
            opened.write(data)

    return change


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (Path.unlink, "No such file or directory"),
        (cut, "is short"),
        (rewrite(0, b"garbage!"), "is no region file"),
        (rewrite(8, (2).to_bytes(4, "little")), "is of another version"),
        (rewrite(16, b"g-2"), "belongs to another grant"),
    ],
)
def test_a_region_that_cannot_be_used_leaves_no_memory_to_any_process_with_one_line(
    limited: Container, damage: Callable[[Path], None], reason: str
) -> None:
    limited.occupy(0, os.getpid(), start_time(os.getpid()), used=GIB)
    damage(limited.region_file)
    outcome = limited.run("in_order", "claim", "shown")
    assert outcome.value[0][0] == -1
    assert outcome.value[1]["free"] == 0
    (said,) = outcome.errors.splitlines()
    assert said.startswith(f"vcuda: {limited.region_file}: {reason}: this process gets no device memory")


@needs_root
def test_a_region_that_may_not_be_written_likewise(limited: Container) -> None:
    limited.region_file.chmod(0o444)
    for directory in (limited.root, limited.root / "vm", limited.base, limited.base / "state"):
        directory.chmod(0o755)
    outcome = limited.run("claim_as", 65534)
    assert outcome.value[0] == -1
    assert f"{limited.region_file}: Permission denied" in outcome.errors


# ---- the helper thread ----


def test_there_is_no_thread_without_limits_and_none_that_asks_nvml_without_one_of_memory(container: Container) -> None:
    assert container.run("threads").value == ["python"]
    container.grant(device(0, memory=0))
    assert container.run("threads").value == ["python", "vcuda-helper"]
    container.grant(device(0), generation=2)
    assert container.run("threads").value == ["python", "vcuda-helper", "vcuda-poller"]


def test_the_helper_takes_no_signals(limited: Container) -> None:
    assert int(limited.run("blocked_signals").value, 16) & 0x7FFFFFFE7FFFFFFF == 0x7FFFFFFE7FFBFEFF


def test_a_child_has_a_helper_of_its_own(limited: Container) -> None:
    parent, child = limited.run("threads_after_fork").value
    assert parent == child == ["python", "vcuda-helper", "vcuda-poller"]


def test_if_no_thread_can_be_created_the_process_lives_and_it_is_reported_once(
    limited: Container, short_tmp: Path
) -> None:
    refusal = program(short_tmp, "no_threads.c", "-shared", "-fPIC")
    outcome = limited.run("in_order", "threads", "shown", LD_PRELOAD=str(refusal))
    assert outcome.value[0] == ["python"]
    assert outcome.value[1]["total"] == 2 * GIB
    (said,) = outcome.errors.splitlines()
    assert "no helper thread can be made" in said


def test_where_no_thread_can_be_made_the_programs_own_calls_follow_the_limits(
    limited: Container, short_tmp: Path
) -> None:
    refusal = program(short_tmp, "no_threads.c", "-shared", "-fPIC")
    watched = limited.start("totals_until", 3 * GIB, LD_PRELOAD=str(refusal))
    assert int(line_of(watched)) == 2 * GIB
    limited.grant(device(0, memory=3 * GIB), generation=2)
    assert int(line_of(watched)) == 3 * GIB
    watched.communicate(timeout=20)


def test_an_unread_stderr_neither_ends_nor_blocks_the_program(limited: Container, short_tmp: Path) -> None:
    limited.write_limits(b"rubbish")
    total = program(short_tmp, "total.c", f"-L{limited.driver}", "-l:libcuda.so.1")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(1 << 12))
    os.set_blocking(writer, True)
    for end in (reader, writer):  # first nobody reads what is there, then nobody can
        done = subprocess.run(
            [total], env=limited.environment, stdout=subprocess.PIPE, stderr=writer, timeout=20, check=True
        )
        assert int(done.stdout) == 80 * GIB
        os.close(end)


@pytest.mark.parametrize("way", ["exit", "_exit", "return", "thread"])
def test_a_program_that_ends_in_the_middle_ends_at_once(limited: Container, short_tmp: Path, way: str) -> None:
    ending = program(short_tmp, "ending.c", "-ldl")
    took = []
    for _ in range(5):
        before = time.monotonic()
        with limited.start_program(ending, way) as process:
            out, errors = process.communicate(timeout=20)
        took.append(time.monotonic() - before)
        assert (process.returncode, out, errors) == (7, "", "")
    assert min(took) < 0.2


def test_a_cancelled_thread_leaves_no_charge_and_no_lock(limited: Container, short_tmp: Path) -> None:
    cancelled = program(short_tmp, "cancelled.c", "-ldl")
    with limited.start_program(cancelled, 150, 2 * GIB) as process:
        out, errors = process.communicate(timeout=50)
    assert (process.returncode, out, errors) == (0, "nothing is left\n", "")


def test_a_program_started_by_vfork_from_a_process_with_a_helper(limited: Container) -> None:
    assert limited.run("spawned").value == 0


def test_a_fork_in_the_middle_of_everything_leaves_no_child_hanging(limited: Container, short_tmp: Path) -> None:
    """Threads attach, claim and ask while another forks; every child must be able to do the same."""
    forking = program(short_tmp, "forking.c", "-ldl")
    with limited.start_program(forking, 60) as process:
        out, errors = process.communicate(timeout=200)
    assert (process.returncode, out, errors) == (0, "60 children\n", "")
    assert limited.run("claim").value[0] == 0
    assert len(limited.slots()) == 1
