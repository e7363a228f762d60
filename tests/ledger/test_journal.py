"""The journal replays to the state that it had; damage costs what it hits and is reported; refusals are sentences."""

import random
import resource
import stat
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deviceplugin.errors import LedgerError
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.records import LONGEST_LINE, LedgerChange
from tests.ledger.makers import grant, open_journal, scanned

NAME = "ledger.journal"


def put(*grants: Grant) -> LedgerChange:
    return LedgerChange("grant", put=grants)


def filled(directory: Path, count: int = 5) -> bytes:
    """A closed journal of so many grants; its bytes."""
    journal = open_journal(directory)
    for number in range(count):
        journal.append(put(grant(f"p{number}")))
    journal.close()
    return (directory / NAME).read_bytes()


def ids(journal: Journal) -> list[str]:
    return sorted(journal.grants)


def numbers(*present: int) -> list[str]:
    return [f"g-p{number}-main" for number in present]


def test_a_new_journal_makes_its_directory_and_is_private(short_tmp: Path) -> None:
    journal = Journal.open(short_tmp / "a" / "b" / NAME)
    assert journal.grants == {}
    assert journal.warnings == ()
    assert stat.S_IMODE((short_tmp / "a" / "b" / NAME).stat().st_mode) == 0o600
    assert stat.S_IMODE((short_tmp / "a" / "b").stat().st_mode) == 0o700


def test_what_was_appended_is_there_after_a_restart(short_tmp: Path) -> None:
    first = open_journal(short_tmp)
    first.append(put(grant("a"), grant("b")))
    first.append(LedgerChange("release", removed=(GrantId("g-a-main"),), why="its pod ended"))
    first.append(put(grant("b", proved=True)))
    before = dict(first.grants)
    first.close()
    assert open_journal(short_tmp).grants == before == {GrantId("g-b-main"): grant("b", proved=True)}


def test_a_journal_cut_at_any_byte_holds_every_entry_that_is_whole(short_tmp: Path) -> None:
    data = filled(short_tmp)
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(ends[0], len(data) + 1):
        found = scanned(data[:cut])
        assert sorted(found.grants) == numbers(*range(sum(end <= cut for end in ends) - 1))
        assert found.first_damage is None
        assert found.torn == (cut not in ends)


def test_opening_a_journal_cut_within_its_last_entries_drops_only_what_is_not_whole(short_tmp: Path) -> None:
    data = filled(short_tmp)
    path = short_tmp / NAME
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(ends[-3], len(data)):
        path.write_bytes(data[:cut])
        journal = open_journal(short_tmp)
        whole = sum(end <= cut for end in ends) - 1
        assert (ids(journal), journal.warnings) == (numbers(*range(whole)), ())
        journal.append(put(grant("p9")))
        journal.close()
        assert ids(open_journal(short_tmp)) == numbers(*range(whole), 9)
    assert list(short_tmp.glob("*.damaged-*")) == []


def test_one_wrong_byte_anywhere_costs_at_most_the_entry_that_it_hits(short_tmp: Path) -> None:
    data = filled(short_tmp)
    starts = [0, *(place + 1 for place, byte in enumerate(data) if byte == ord("\n"))]
    for place in range(len(data)):
        found = scanned(data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :])
        hit = sum(start <= place for start in starts) - 2
        spoiled = {hit, hit + 1} if data[place] == ord("\n") else {hit}
        kept = set(found.grants)
        assert kept >= set(numbers(*(number for number in range(5) if number not in spoiled)))
        assert kept <= set(numbers(*range(5)))
        assert found.torn or found.first_damage is not None


def test_a_damaged_entry_is_reported_once_and_the_file_kept_beside(short_tmp: Path) -> None:
    data = filled(short_tmp).replace(b"uid-p2", b"uid-pX")
    (short_tmp / NAME).write_bytes(data)
    journal = open_journal(short_tmp)
    assert ids(journal) == numbers(0, 1, 3, 4)
    (warning,) = journal.warnings
    copy = short_tmp / f"{NAME}.damaged-1"
    assert str(copy) in warning
    assert "1 of 5 entries" in warning
    assert "kubelet's checkpoint" in warning
    assert copy.read_bytes() == data
    journal.close()
    again = open_journal(short_tmp)
    assert (ids(again), again.warnings) == (numbers(0, 1, 3, 4), ())


def test_each_damaged_file_gets_a_copy_of_its_own(short_tmp: Path) -> None:
    for _ in range(3):
        data = filled(short_tmp, 2)
        (short_tmp / NAME).write_bytes(data.replace(b"uid-p0", b"uid-pX"))
        open_journal(short_tmp).close()
        (short_tmp / NAME).unlink()
    assert sorted(path.name for path in short_tmp.glob("*.damaged-*")) == [f"{NAME}.damaged-{n}" for n in (1, 2, 3)]


def test_a_lost_line_and_a_doubled_line_are_noticed(short_tmp: Path) -> None:
    lines = filled(short_tmp).splitlines(keepends=True)
    lost = scanned(b"".join(lines[:2] + lines[3:]))
    assert (sorted(lost.grants), lost.lost) == (numbers(0, 2, 3, 4), 1)
    assert lost.first_damage is not None
    doubled = scanned(b"".join([*lines, lines[1]]))
    assert (sorted(doubled.grants), doubled.lost) == (numbers(0, 1, 2, 3, 4), 0)
    assert doubled.first_damage is not None


def test_an_old_line_in_the_wrong_place_does_not_bring_a_released_grant_back(short_tmp: Path) -> None:
    journal = open_journal(short_tmp)
    journal.append(put(grant("p0")))
    journal.append(LedgerChange("release", removed=(GrantId("g-p0-main"),)))
    journal.close()
    lines = (short_tmp / NAME).read_bytes().splitlines(keepends=True)
    assert scanned(b"".join([*lines, lines[1]])).grants == {}


def test_a_file_that_is_no_journal_is_kept_beside_and_a_new_one_begun(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    contents = (b"", b"\n", b"\0" * 300, b"# hello\nworld\n", random.Random(7).randbytes(2000))
    for number, data in enumerate(contents, start=1):
        with subtests.test(data=data[:20]):
            (short_tmp / NAME).write_bytes(data)
            journal = open_journal(short_tmp)
            assert journal.grants == {}
            assert len(journal.warnings) == 1
            assert (short_tmp / f"{NAME}.damaged-{number}").read_bytes() == data
            journal.append(put(grant("p0")))
            journal.close()
            again = open_journal(short_tmp)
            assert (ids(again), again.warnings) == (numbers(0), ())
            again.close()


def test_a_damaged_first_line_costs_nothing_else(short_tmp: Path) -> None:
    (short_tmp / NAME).write_bytes(b"X" + filled(short_tmp)[1:])
    journal = open_journal(short_tmp)
    assert ids(journal) == numbers(0, 1, 2, 3, 4)
    assert "its first line" in journal.warnings[0]


def test_a_journal_of_a_newer_agent_is_refused_and_left_as_it_is(short_tmp: Path) -> None:
    line = b"vcuda-ledger 2"
    data = b"%s %08x\n" % (line, zlib.crc32(line)) + b"\x01\x02 something new\n"
    (short_tmp / NAME).write_bytes(data)
    with pytest.raises(LedgerError, match="has format 2 and this agent knows formats up to 1"):
        open_journal(short_tmp)
    assert (short_tmp / NAME).read_bytes() == data


def test_a_path_that_cannot_be_used_is_one_sentence(short_tmp: Path) -> None:
    (short_tmp / NAME).mkdir()
    with pytest.raises(LedgerError, match="cannot be opened: is a directory"):
        open_journal(short_tmp)
    (short_tmp / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot be opened: not a directory"):
        open_journal(short_tmp / "file")


_AS_NOBODY = """
import os, sys
from pathlib import Path
from deviceplugin.errors import LedgerError
from deviceplugin.ledger.journal import Journal
if os.getuid() == 0:
    os.setuid(65534)
try:
    Journal.open(Path(sys.argv[1]))
except LedgerError as error:
    print(error.message)
"""


def test_a_file_that_may_not_be_read_is_one_sentence_and_stays(short_tmp: Path) -> None:
    data = filled(short_tmp)
    (short_tmp / NAME).chmod(0o000)
    short_tmp.chmod(0o755)
    script = [sys.executable, "-c", _AS_NOBODY, str(short_tmp / NAME)]
    root = Path(__file__).parents[2]
    ran = subprocess.run(script, cwd=root, capture_output=True, text=True, timeout=30, check=False)
    assert "cannot be opened: permission denied" in ran.stdout, ran.stderr
    (short_tmp / NAME).chmod(0o600)
    assert (short_tmp / NAME).read_bytes() == data


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """The kernel refuses to let any file grow beyond this, in the middle of a write if need be."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_entry_for_which_there_is_no_room_does_not_count_at_all(short_tmp: Path) -> None:
    journal = open_journal(short_tmp)
    journal.append(put(grant("p0")))
    size = (short_tmp / NAME).stat().st_size
    with files_up_to(size + 100), pytest.raises(LedgerError, match="nothing was changed"):
        journal.append(put(grant("p1")))
    assert ids(journal) == numbers(0)
    assert (short_tmp / NAME).stat().st_size == size
    journal.append(put(grant("p2")))
    journal.close()
    again = open_journal(short_tmp)
    assert (ids(again), again.warnings) == (numbers(0, 2), ())


def test_without_room_to_rewrite_the_old_journal_goes_on(short_tmp: Path) -> None:
    journal = open_journal(short_tmp)
    for number in range(4):
        journal.append(put(grant(f"p{number}")))
    with files_up_to(200), pytest.raises(LedgerError, match="could not be rewritten"):
        journal.rewrite()
    journal.append(put(grant("p4")))
    journal.close()
    assert [path.name for path in short_tmp.iterdir()] == [NAME]
    assert ids(open_journal(short_tmp)) == numbers(0, 1, 2, 3, 4)


def test_a_damaged_journal_without_room_for_a_copy_is_used_as_it_is(short_tmp: Path) -> None:
    data = filled(short_tmp).replace(b"uid-p2", b"uid-pX")
    (short_tmp / NAME).write_bytes(data)
    with files_up_to(len(data) // 2):
        journal = open_journal(short_tmp)
    assert ids(journal) == numbers(0, 1, 3, 4)
    assert "the damage was left in the file" in journal.warnings[0]
    journal.append(put(grant("p5")))
    journal.close()
    assert ids(open_journal(short_tmp)) == numbers(0, 1, 3, 4, 5)


def test_a_full_disk_does_not_keep_the_agent_from_what_it_granted(short_tmp: Path) -> None:
    data = filled(short_tmp)
    with files_up_to(len(data)):
        journal = Journal.open(short_tmp / NAME)
    assert ids(journal) == numbers(0, 1, 2, 3, 4)


LEAST = 1 << 18
"""Below this a journal is not worth rewriting."""


def test_a_journal_that_is_mostly_garbage_is_rewritten_and_keeps_its_state(short_tmp: Path) -> None:
    journal = open_journal(short_tmp)
    journal.append(put(grant("p0")))
    rewritten = 0
    for round_ in range(900):
        journal.append(put(grant("p1", proved=bool(round_ % 2))))
        rewritten += journal.compact_if_due()
    assert rewritten == 1
    assert size_in(short_tmp) < LEAST / 2
    before = dict(journal.grants)
    journal.close()
    assert open_journal(short_tmp).grants == before


def size_in(directory: Path) -> int:
    return (directory / NAME).stat().st_size


def test_a_journal_is_bounded_by_its_bytes_however_large_an_entry_is(short_tmp: Path) -> None:
    """Security: 64 containers of one pod in an entry gave 65 MiB, which the next start had to read."""
    journal = open_journal(short_tmp)
    both = [tuple(grant("p" * 200, container=f"c{n}", proved=proved) for n in range(64)) for proved in (False, True)]
    journal.append(put(*both[0]))
    state, appended, rewritten = size_in(short_tmp), 0, 0
    for round_ in range(100):
        before = size_in(short_tmp)
        journal.append(put(*both[round_ % 2]))
        appended += size_in(short_tmp) - before
        if journal.compact_if_due():
            rewritten += size_in(short_tmp)
        assert size_in(short_tmp) < max(LEAST, 5 * state)
    assert 0 < rewritten < 2 * appended


def test_a_journal_that_cannot_be_rewritten_is_not_tried_again_at_every_entry(short_tmp: Path) -> None:
    """Counted in looks at the clock: a rewrite takes one for each grant."""
    looks: list[None] = []

    def clock() -> float:
        looks.append(None)
        return 1000.0

    journal = Journal.open(short_tmp / NAME, clock=clock)
    many = tuple(grant(f"p{n}") for n in range(100))
    journal.append(put(*many))
    (short_tmp / f".{NAME}.new").mkdir()
    looks.clear()
    for round_ in range(1500):
        journal.append(put(grant("p0", proved=bool(round_ % 2))), durable=False)
        assert not journal.compact_if_due()
    assert len(looks) == 1500 + 2 * len(many)
    (short_tmp / f".{NAME}.new").rmdir()
    while not journal.compact_if_due():
        journal.append(put(*many))
    assert size_in(short_tmp) < LEAST


def test_a_long_journal_of_an_earlier_agent_is_opened_line_by_line(short_tmp: Path) -> None:
    line = 1 << 20
    journal = open_journal(short_tmp)
    for number in range(24):
        journal.append(LedgerChange("release", removed=(GrantId("g"),), why=f"{number}".ljust(line)))
    journal.append(put(grant("p0")))
    journal.close()
    tracemalloc.start()
    try:
        again = open_journal(short_tmp)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (ids(again), again.warnings) == (numbers(0), ())
    assert most < 8 * line
    assert again.compact_if_due()
    assert size_in(short_tmp) < 1000


def test_a_line_that_is_longer_than_any_entry_is_damage_and_costs_no_other(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    header, first, second, *_ = filled(short_tmp).splitlines(keepends=True)
    long = b"\0" * (3 * LONGEST_LINE)
    for data in (header + first + long + b"\n" + second, header + first + second + long):
        with subtests.test(ends=data.endswith(b"\n")):
            found = scanned(data)
            assert sorted(found.grants) == numbers(0, 1)
            assert found.torn == (not data.endswith(b"\n"))
            assert found.end == len(data) - (len(long) if found.torn else 0)
            assert found.first_damage == (None if found.torn else len(header + first))
            (short_tmp / NAME).write_bytes(data)
            journal = open_journal(short_tmp)
            assert (ids(journal), len(journal.warnings)) == (numbers(0, 1), 0 if found.torn else 1)
            journal.close()


def test_what_follows_damage_and_is_torn_is_in_the_copy_and_nowhere_else(short_tmp: Path) -> None:
    """With room for the copy and without: the next entry never continues what is torn."""
    whole = filled(short_tmp).replace(b"uid-p2", b"uid-pX")
    for most in (0, len(whole) // 2):
        data = whole + whole[-40:-1]
        (short_tmp / NAME).write_bytes(data)
        with files_up_to(most or resource.RLIM_INFINITY):
            journal = open_journal(short_tmp)
        journal.append(put(grant("p5")))
        journal.close()
        copies = [path.read_bytes() for path in short_tmp.glob("*.damaged-*")]
        assert copies == [data], "the second has no room, and leaves no part of a copy"
        assert ids(open_journal(short_tmp)) == numbers(0, 1, 3, 4, 5)
        for path in short_tmp.glob("*.damaged-[2-9]"):
            path.unlink()


def test_what_a_crash_left_of_a_rewrite_is_never_the_journal(short_tmp: Path) -> None:
    data = filled(short_tmp, 3)
    (short_tmp / NAME).unlink()
    other = filled(short_tmp, 5)
    for part in (0, 10, len(data) // 2, len(data)):
        (short_tmp / NAME).write_bytes(other)
        (short_tmp / f".{NAME}.new").write_bytes(data[:part])
        journal = open_journal(short_tmp)
        assert ids(journal) == numbers(0, 1, 2, 3, 4)
        assert not (short_tmp / f".{NAME}.new").exists()
        journal.close()
