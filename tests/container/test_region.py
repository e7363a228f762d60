"""The region as the agent reads it: what processes wrote, and whatever else a hostile container may have put there."""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container import region, shared_file
from deviceplugin.container.region import Counters, ProcessSlot, Use
from deviceplugin.errors import ContainerError, ParseError
from deviceplugin.ledger.grant import GrantId
from tests.container.makers import GIB, put, put_counters, put_slot

GRANT = GrantId("g-0001")
HEAD = region.form(GRANT).head


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "region"
    shared_file.make(path, region.form(GRANT))
    return path


def test_a_fresh_region_holds_nothing(made: Path) -> None:
    found = region.read(made, grant=GRANT, devices=1)
    assert (found.counters, found.slots, found.implausible) == ((Counters(),), (), 0)
    assert made.stat().st_size == 592_000
    assert made.stat().st_blocks * 512 < 100_000, "the last slots are holes"


def test_what_processes_wrote_is_read(made: Path) -> None:
    put_counters(made, peak=3 * GIB, refusals=2, balance_ns=-5, charged_ns=7, throttled_ns=8, effective_cores=20_000)
    put_slot(made, 0, pid=1, used=GIB, overhead=5, start_time=77, pid_namespace=4026531836)
    put_slot(made, 2, pid=9, used=2 * GIB, pending=4)
    found = region.read(made, grant=GRANT, devices=1)
    assert found.counters == (
        Counters(peak=3 * GIB, refusals=2, balance_ns=-5, charged_ns=7, throttled_ns=8, effective_cores=20_000),
    )
    assert found.slots == (
        ProcessSlot(0, 1, 77, 4026531836, (Use(used=GIB, overhead=5),)),
        ProcessSlot(2, 9, 1, 1, (Use(used=2 * GIB, pending=4),)),
    )


def test_functions_that_the_library_does_not_know_are_counted(made: Path) -> None:
    put(made, region.UNKNOWN_FUNCTIONS_AT, (3).to_bytes(8, "little"))
    assert region.read(made, grant=GRANT, devices=1).unknown_functions == 3
    put(made, region.UNKNOWN_FUNCTIONS_AT, b"\xff" * 8)
    found = region.read(made, grant=GRANT, devices=1)
    assert (found.unknown_functions, found.implausible) == (0, 0)
    put(made, region.UNKNOWN_FUNCTIONS_AT, b"\xff" * 7 + b"\x7f")
    found = region.read(made, grant=GRANT, devices=1)
    assert (found.unknown_functions, found.implausible) == (0, 1)


def test_words_out_of_bounds_count_as_nothing(made: Path) -> None:
    put_slot(made, 0, pid=1, used=2**64 - 1, overhead=GIB)
    put_counters(made, charged_ns=2**63, balance_ns=-(2**63))
    found = region.read(made, grant=GRANT, devices=1)
    assert found.slots[0].uses == (Use(overhead=GIB),)
    assert found.counters == (Counters(),)
    assert found.implausible == 3


def test_a_mark_beyond_the_end_reads_no_further_than_the_slots(made: Path) -> None:
    put(made, region.HEAD.size, b"\xff" * 4)
    put_slot(made, region.SLOTS - 1, pid=5, used=1)
    put(made, region.SIZE, b"more" * 1000)
    found = region.read(made, grant=GRANT, devices=1)
    assert [slot.index for slot in found.slots] == [region.SLOTS - 1]


def test_a_truncated_region_is_rejected_and_does_no_harm(made: Path) -> None:
    for size in (region.SLOTS_AT - 1, 128, 47, 0):
        os.truncate(made, size)
        with pytest.raises(ParseError, match="the container changed it"):
            region.read(made, grant=GRANT, devices=1)


def test_a_region_that_was_cut_among_its_slots_shows_those_that_are_left(made: Path) -> None:
    put_slot(made, 0, pid=1, used=1)
    put_slot(made, 9, pid=2, used=1)
    os.truncate(made, region.SLOTS_AT + region.SLOT_SIZE * 5)
    assert [slot.pid for slot in region.read(made, grant=GRANT, devices=1).slots] == [1]


def test_a_region_of_another_kind_is_refused(made: Path) -> None:
    """Another magic, another version, another grant."""
    for head in (b"VCUDAACT" + HEAD[8:], HEAD[:8] + struct.pack("<I", 2) + HEAD[12:], HEAD[:16] + b"g-0002"):
        put(made, 0, head)
        with pytest.raises(ParseError):
            region.read(made, grant=GRANT, devices=1)
        put(made, 0, HEAD)
        assert region.read(made, grant=GRANT, devices=1)


def test_neither_a_pipe_nor_a_link_in_its_place_is_followed(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    shared_file.make(target, region.form(GRANT))
    link.symlink_to(target)
    for path in (pipe, link):
        with pytest.raises(ParseError):
            region.read(path, grant=GRANT, devices=1)
    with pytest.raises(ContainerError):
        region.read(tmp_path / "missing", grant=GRANT, devices=1)


@given(st.binary(max_size=4096), st.integers(0, 40))
def test_whatever_stands_there_is_read_within_bounds_or_refused(noise: bytes, devices: int) -> None:
    data = HEAD + (noise * (region.SLOTS_AT // max(1, len(noise)) + 3))
    try:
        found = region.parse(data, grant=GRANT, devices=devices)
    except ParseError:
        assert len(data) < region.SLOTS_AT
        return
    assert len(found.counters) == min(devices, region.MAX_DEVICES)
    words = [getattr(each, name) for each in found.counters for name in Counters.__struct_fields__]
    words += [getattr(use, name) for slot in found.slots for use in slot.uses for name in Use._fields]
    assert all(abs(word) < region.MOST for word in words)
    assert all(slot.pid for slot in found.slots)
