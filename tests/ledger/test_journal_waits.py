"""Who answers later waits for the disk with others, and what was waited for outlives a power cut."""

import asyncio
import errno
import os
import stat
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import LedgerError
from deviceplugin.ledger.grant import Grant, GrantId
from tests.ledger.makers import grant, open_journal, scanned
from tests.ledger.test_journal import NAME, ids, numbers, put


class Disk:
    """`os.fdatasync` that takes a while, and fails so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failures: int = 0) -> None:
        self.waits = 0
        self.failures = failures
        monkeypatch.setattr(os, "fdatasync", self._wait)

    def _wait(self, _: int) -> None:
        self.waits += 1
        time.sleep(0.05)
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_who_waits_for_a_slow_disk_at_once_shares_two_waits(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is for those who came during the first. Nobody returns before what he appended is durable."""
    journal = open_journal(short_tmp)
    disk = Disk(monkeypatch)
    journal.append(put(grant("first")))
    disk.waits = 0
    waits: dict[int, int] = {}

    async def claim(number: int) -> None:
        journal.append(put(grant(f"p{number}")), durable=False)
        begun = disk.waits
        await journal.synced()
        waits[number] = disk.waits - begun

    await asyncio.gather(*map(claim, range(8)))
    assert disk.waits <= 2
    assert min(waits.values()) == 1
    await journal.synced()
    assert disk.waits <= 2, "nothing is waited for twice"
    journal.append(put(grant("p8")), durable=False)
    journal.append(put(grant("p9")))
    before = disk.waits
    await journal.synced()
    assert disk.waits == before


async def test_after_a_failed_wait_nobody_is_answered_before_a_new_file_has_everything(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The kernel tells a failed write once, so the next sync of the same file would not know of it."""
    for number, durable in enumerate((False, True)):
        with subtests.test(durable=durable):
            journal = open_journal(short_tmp / str(number))
            Disk(monkeypatch, failures=1)
            journal.append(put(grant("p0")), durable=False)
            first = (short_tmp / str(number) / NAME).stat().st_ino
            with pytest.raises(LedgerError, match="could not be written to the disk: input/output error"):
                await journal.synced()
            assert ids(journal) == numbers(0)
            if durable:
                journal.append(put(grant("p1")))
            else:
                await journal.synced()
            assert (short_tmp / str(number) / NAME).stat().st_ino != first
            journal.close()
            assert ids(open_journal(short_tmp / str(number))) == numbers(0, *((1,) if durable else ()))


async def test_a_durable_entry_that_fails_makes_doubt_of_those_before_it(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(short_tmp)
    Disk(monkeypatch, failures=1)
    journal.append(put(grant("p0")), durable=False)
    first = (short_tmp / NAME).stat().st_ino
    with pytest.raises(LedgerError, match="nothing was changed"):
        journal.append(put(grant("p1")))
    assert ids(journal) == numbers(0)
    await journal.synced()
    assert (short_tmp / NAME).stat().st_ino != first
    journal.close()
    assert ids(open_journal(short_tmp)) == numbers(0)


async def test_an_entry_that_was_written_while_a_wait_failed_is_not_believed_to_be_durable(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(short_tmp)
    disk = Disk(monkeypatch)
    journal.append(put(grant("p0")))
    journal.append(put(grant("p1")), durable=False)
    disk.failures = 1
    waiting = asyncio.create_task(journal.synced())
    await asyncio.sleep(0.01)  # in a thread, because the disk is slow
    with pytest.raises(LedgerError, match="nothing was changed"):
        journal.append(put(grant("p2")))
    with pytest.raises(LedgerError, match="could not be written to the disk"):
        await waiting
    assert ids(journal) == numbers(0, 1)
    journal.append(put(grant("p3")))
    journal.close()
    assert ids(open_journal(short_tmp)) == numbers(0, 1, 3)


class DiskThatForgets:
    """What a power cut would leave. A failed sync loses for good what was not durable, and only that call is told."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._durable: dict[int, bytes] = {}
        self._lost: dict[int, tuple[int, int]] = {}
        self._named = -1
        self.fails = False

    def sync(self, fd: int) -> None:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            self._named = self._path.stat().st_ino
            return
        data = os.pread(fd, found.st_size, 0)
        start, end = self._lost.get(found.st_ino, (0, 0))
        start, end = min(start, len(data)), min(end, len(data))  # what was cut is written again
        if self.fails:
            self.fails = False
            first = start if start < end else len(self._durable.get(found.st_ino, b""))
            self._lost[found.st_ino] = (first, len(data))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._lost[found.st_ino] = (start, end)
        self._durable[found.st_ino] = data[:start] + bytes(end - start) + data[end:]

    def grants(self) -> dict[GrantId, Grant]:
        return scanned(self._durable[self._named]).grants


STEPS = st.tuples(st.sampled_from(["append", "append durably", "wait", "rewrite"]), st.booleans())


@given(st.lists(STEPS, max_size=12))
def test_whatever_fails_in_between_what_was_waited_for_outlives_a_power_cut(steps: list[tuple[str, bool]]) -> None:
    with TemporaryDirectory(dir="/dev/shm") as directory, pytest.MonkeyPatch.context() as patch:
        disk = DiskThatForgets(Path(directory) / NAME)
        patch.setattr(os, "fdatasync", disk.sync)
        patch.setattr(os, "fsync", disk.sync)
        journal = open_journal(Path(directory))
        for number, (step, disk.fails) in enumerate(steps):
            before = dict(journal.grants)
            try:
                if step == "wait":
                    asyncio.run(journal.synced())
                elif step == "rewrite":
                    journal.rewrite()
                else:
                    journal.append(put(grant(f"p{number}")), durable=step != "append")
            except LedgerError:
                assert journal.grants == before
                continue
            if step != "append":
                assert disk.grants() == journal.grants
        journal.close()
