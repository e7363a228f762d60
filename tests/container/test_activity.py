"""What an activity file shows to neighbours: the time that they can see in it, whatever else it says."""

import os
import random
import struct
import time
from pathlib import Path

import pytest

from deviceplugin.container import activity, shared_file
from deviceplugin.errors import ContainerError, ParseError
from deviceplugin.ledger.grant import GrantId
from tests.container.makers import put

GRANT = GrantId("g-0001")
MS = 1_000_000
SECOND = 1000 * MS


@pytest.fixture
def row(tmp_path: Path) -> Path:
    path = tmp_path / "row"
    shared_file.make(path, activity.form(GRANT))
    return path


def put_activity(
    row: Path, index: int, *, busy: int = 0, turns: list[tuple[int, int]] | None = None, since: int = 0, beat: int = 0
) -> None:
    """A process: the sum of its turns, the newest of them, and work since then that is not measured."""
    turns = turns or []
    at = activity.HEADER_SIZE + index * activity.SLOT_SIZE
    put(row, at, activity.SLOT.pack(beat, since, len(turns), busy))
    put(row, at + activity.SLOT.size, struct.pack(f"<{2 * len(turns)}Q", *(word for turn in turns for word in turn)))
    put(row, activity.HEAD.size, struct.pack("<I", index + 1))


def shown(row: Path, before: activity.Activity) -> float:
    return activity.shown_percent(activity.read(row, grant=GRANT), before)


def a_second_ago(*busy: int) -> activity.Activity:
    slots = tuple(activity.SlotActivity(each, 0.0, 0) for each in busy)
    return activity.Activity(time.monotonic_ns() - SECOND, slots)


def half_of_the_last_tenth() -> list[tuple[int, int]]:
    now = time.monotonic_ns()
    return [(now - 100 * MS + i * MS, now - 100 * MS + i * MS + MS // 2) for i in range(100)]


def test_a_fresh_file_shows_nothing(row: Path) -> None:
    assert shown(row, a_second_ago()) == 0.0


def test_turns_are_shown(row: Path) -> None:
    put_activity(row, 0, busy=SECOND + 400 * MS, turns=half_of_the_last_tenth())
    assert shown(row, a_second_ago(SECOND)) == pytest.approx(40, abs=1)


def test_processes_add_up_to_all_of_the_time(row: Path) -> None:
    for index in range(3):
        put_activity(row, index, busy=(index + 1) * 300 * MS, turns=half_of_the_last_tenth())
    assert shown(row, a_second_ago(0, 300 * MS)) == 100.0
    assert shown(row, a_second_ago(0, 500 * MS, 800 * MS)) == pytest.approx(50, abs=1)


def test_a_sum_without_turns_shows_nothing(row: Path) -> None:
    """Neighbours read the turns and not the sum."""
    put_activity(row, 0, busy=900 * MS)
    assert shown(row, a_second_ago(0)) == 0.0


def test_turns_that_are_few_show_little(row: Path) -> None:
    now = time.monotonic_ns()
    put_activity(row, 0, busy=900 * MS, turns=[(now - 900 * MS, now - 899 * MS), (now - MS, now)])
    assert shown(row, a_second_ago(0)) < 2


def test_a_burst_that_is_followed_by_a_pause_is_shown(row: Path) -> None:
    """The ring of a process with small kernels reaches back a tenth of a second of work."""
    end = time.monotonic_ns() - 400 * MS
    turns = [(end - (i + 1) * 400_000, end - i * 400_000) for i in range(activity.RING)]
    put_activity(row, 0, busy=600 * MS, turns=turns)
    assert shown(row, a_second_ago(0)) == pytest.approx(60, abs=2)


def test_a_long_kernel_is_shown_before_it_is_measured(row: Path) -> None:
    now = time.monotonic_ns()
    put_activity(row, 0, since=now - 20 * SECOND, beat=now)
    assert shown(row, a_second_ago(0)) == pytest.approx(100, abs=1)


def test_work_whose_process_is_dead_or_in_the_future_is_not(row: Path) -> None:
    percents = {}
    for beat in (0, -2 * SECOND, SECOND, 1 << 62):
        now = time.monotonic_ns()
        put_activity(row, 0, since=now - SECOND, beat=now + beat if beat else 0)
        percents[beat] = shown(row, a_second_ago(0))
    assert percents == dict.fromkeys(percents, 0.0)


def test_a_process_that_neighbours_do_not_read_shows_nothing(row: Path) -> None:
    """The count of used slots is the container's, too."""
    put_activity(row, 0, busy=400 * MS, turns=half_of_the_last_tenth())
    put(row, activity.HEAD.size, bytes(4))
    assert shown(row, a_second_ago(0)) == 0.0


def test_any_bytes_show_a_part_of_the_time(row: Path) -> None:
    length = activity.HEADER_SIZE - activity.HEAD.size + 9 * activity.SLOT_SIZE
    percents = {}
    for seed in range(20):
        generator = random.Random(seed)
        put(row, activity.HEAD.size, generator.randbytes(length))
        percents[seed] = shown(row, a_second_ago(generator.getrandbits(64), 0))
    assert {seed: percent for seed, percent in percents.items() if not 0.0 <= percent <= 100.0} == {}


def test_a_file_that_the_container_spoilt_is_told_from_one_that_cannot_be_read(row: Path, tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="cannot be read: No such file"):
        activity.read(tmp_path / "none", grant=GRANT)
    os.truncate(row, activity.SIZE - 1)
    with pytest.raises(ParseError, match="another beginning or is short"):
        activity.read(row, grant=GRANT)
    os.truncate(row, activity.SIZE)
    put(row, 0, bytes(8))
    with pytest.raises(ParseError, match="another beginning or is short"):
        activity.read(row, grant=GRANT)
    row.unlink()
    row.symlink_to("/dev/null")
    with pytest.raises(ParseError, match="Too many levels of symbolic links"):
        activity.read(row, grant=GRANT)
