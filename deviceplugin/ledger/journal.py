"""The file of grants: every change is on the disk before the call that makes it returns.

In: `LedgerChange`s. Out: the same state after any crash. `Journal.open` replays the file; `append` writes one line and
waits for the disk, then changes `grants`; an append that fails leaves neither a valid line nor a changed state. What
somebody will say again after a power cut need not wait for the disk (`durable`), and who answers later waits for it
with all others who do (`synced`): what a failed wait leaves stays in `grants`, and the next change or wait begins a new
file. An entry that does not verify costs only itself: a torn last line is cut, a damaged file is copied
(`.damaged-<n>`) and the entries that verify are kept, with one sentence in `warnings`. A reboot changes nothing: grants
name GPUs by UUID, and minor numbers, which a reboot may change, are in no entry. When `compact_if_due` has been called,
the file has at most `_FACTOR` times what its last rewrite wrote, or `_LEAST_BYTES`; less than two bytes are rewritten
for each that is appended.

Not here: what a change means and whether it is allowed (`ledger`), other agents (`durable_files`). Not safe for
threads: only `synced` waits for a slow disk in one.
"""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from deviceplugin.errors import LedgerError
from deviceplugin.ledger import durable_files
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.records import (
    FORMAT_VERSION,
    JournalEntry,
    LedgerChange,
    Scan,
    apply,
    encode_line,
    header,
    scan,
)

_LEAST_BYTES = 1 << 18  # below this a journal is not worth rewriting
_FACTOR = 4
_WORTH_A_THREAD_S = 0.001  # what the last wait took: on a quick disk a thread costs more than it spares
_PRIVATE = 0o600
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_PIECE = 1 << 20


class Journal:
    """An open journal; create one with `Journal.open`."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self.path = path
        self.warnings: tuple[str, ...] = ()
        self._clock = clock
        self._grants: dict[GrantId, Grant] = {}
        self._fd = -1
        self._size = 0
        self._due = _LEAST_BYTES  # what a rewrite would write is known after the first one
        self._number = 0
        self._appended = self._synced = 0  # entries since the journal was opened
        self._broken = False
        self._took_s = 0.0
        self._disk = threading.RLock()
        self._turn = asyncio.Lock()

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], float] = time.time) -> "Journal":
        """Reads or creates the file at `path`; raises LedgerError if it cannot be read, written or decoded."""
        journal = cls(path, clock=clock)
        try:
            durable_files.make_directory(path.parent)
            journal._temporary.unlink(missing_ok=True)  # a crash before the rename may leave it
            journal._load()
        except OSError as error:
            journal.close()
            raise LedgerError(
                f"the ledger's journal {path} cannot be opened: {durable_files.cause(error)}; nothing is allocated "
                "until it can be read and written, so run the agent as root and check the directory"
            ) from error
        except LedgerError:
            journal.close()
            raise
        return journal

    @property
    def grants(self) -> Mapping[GrantId, Grant]:
        """The state that a replay would give now; it follows each `append`."""
        return MappingProxyType(self._grants)

    def append(self, change: LedgerChange, *, durable: bool = True) -> None:
        """Durable when this returns, or, without `durable`, with `synced` or the next entry that is; raises LedgerError
        and changes nothing if the disk refuses."""
        if self._broken:  # it may end with half a line, behind which this one would be lost
            self.rewrite()
        before = self._appended
        try:
            self._write(JournalEntry(self._number + 1, self._clock(), change), durable=durable)
        except OSError as error:
            self._appended = before
            self._take_back()
            raise LedgerError(
                f"the change `{change.kind}` could not be written to the ledger's journal {self.path}: "
                f"{durable_files.cause(error)}; nothing was changed, so free space or repair the disk and try again"
            ) from error
        apply(self._grants, change)

    async def synced(self) -> None:
        """All that was appended before is durable. Who asks while a slow disk is waited for shares the next wait.

        Raises LedgerError if the disk refuses; the state does not change.
        """
        wanted = self._appended
        while self._synced < wanted:
            async with self._turn:
                if self._synced < wanted:
                    await self._sync()

    async def _sync(self) -> None:
        if self._broken:
            self.rewrite()
            return
        try:
            if self._took_s < _WORTH_A_THREAD_S:
                self._wait_for_disk()
            else:
                await asyncio.get_running_loop().run_in_executor(None, self._wait_for_disk)
        except OSError as error:
            raise LedgerError(
                f"the ledger's journal {self.path} could not be written to the disk: {durable_files.cause(error)}; "
                "nothing is answered until it can be, so free space or repair the disk and try again"
            ) from error

    def _wait_for_disk(self) -> None:
        """In any thread; one at a time, because the kernel tells a failure to one of two that wait at once."""
        with self._disk:
            if self._broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            appended, began = self._appended, time.perf_counter()
            try:
                os.fdatasync(self._fd)
            except OSError:
                self._broken = True  # it may have lost any of what was not durable
                raise
            self._synced, self._took_s = appended, time.perf_counter() - began

    def rewrite(self) -> None:
        """Writes the state to a temporary file, then renames it. A crash leaves the old journal or the new one."""
        lines = [header()]
        for number, grant in enumerate(self._grants.values(), start=1):
            lines.append(encode_line(JournalEntry(number, self._clock(), LedgerChange("keep", put=(grant,)))))
        data = b"".join(lines)
        try:
            self._replace(data)
        except OSError as error:
            raise LedgerError(
                f"the ledger's journal {self.path} could not be rewritten: {durable_files.cause(error)}; nothing was "
                "changed, so free space or repair the disk and try again"
            ) from error
        self._size, self._number = len(data), len(lines) - 1
        self._synced = self._appended
        self._due = max(_LEAST_BYTES, _FACTOR * len(data))

    def compact_if_due(self) -> bool:
        """Rewrites a journal that is mostly garbage; if that fails, the old one stays valid. Not for the fast path."""
        if self._size < self._due:
            return False
        try:
            self.rewrite()
        except LedgerError:
            self._due = self._size + _LEAST_BYTES
            return False
        return True

    def close(self) -> None:
        with self._disk:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    @property
    def _temporary(self) -> Path:
        return self.path.with_name(f".{self.path.name}.new")

    def _load(self) -> None:
        try:
            self._fd = os.open(self.path, _OPEN)
        except FileNotFoundError:
            self.rewrite()
            return
        with open(self._fd, "rb", closefd=False) as file:
            found = scan(file)
        if found.version is not None and found.version > FORMAT_VERSION:
            raise LedgerError(
                f"the ledger's journal {self.path} has format {found.version} and this agent knows formats up to "
                f"{FORMAT_VERSION}; run the newer agent, or move the file away to rebuild from kubelet's checkpoint"
            )
        self._grants = found.grants
        self._size, self._number = found.end, found.last_number
        if found.first_damage is not None:
            self._set_aside(found)
        elif found.torn:
            _cut(self._fd, found.end)

    def _set_aside(self, found: Scan) -> None:
        what = "its first line" if found.lost == 0 else f"{found.lost} of {found.lost + found.entries} entries"
        try:
            kept = f"the original file is at {_keep_copy(self.path)}"
            self.rewrite()
        except (OSError, LedgerError) as error:
            reason = durable_files.cause(error) if isinstance(error, OSError) else error.message
            kept = f"the damage was left in the file because it could not be copied or rewritten ({reason})"
            if found.torn and not self._broken:  # the file is still the old one
                _cut(self._fd, found.end)
        warning = (
            f"the ledger's journal {self.path} is damaged from byte {found.first_damage}: {what} could not be read, "
            f"{len(found.grants)} grants were kept, and {kept}; what is missing is rebuilt from kubelet's checkpoint"
        )
        self.warnings = (warning,)

    def _write(self, entry: JournalEntry, *, durable: bool) -> None:
        line = encode_line(entry)
        _append(self._fd, line)
        self._appended += 1
        if durable:
            self._wait_for_disk()
        self._size += len(line)
        self._number = entry.number

    def _take_back(self) -> None:
        """Cuts off what a failed write left. If that fails too, or an entry before it may be lost because it was not
        durable when the disk failed, the next append starts a new file."""
        with self._disk:
            is_lost = self._broken and self._synced < self._appended
            self._broken = True
            try:
                _cut(self._fd, self._size)
            except OSError:
                return
            self._broken = is_lost
            if not is_lost:
                self._synced = self._appended

    def _replace(self, data: bytes) -> None:
        fd = _replace_file(self.path, self._temporary, data)
        with self._disk:
            self._broken = True  # until the new name is durable a crash may bring the old file back
            self.close()
            self._fd = fd
            durable_files.sync_directory(self.path.parent)
            self._broken = False


def _append(fd: int, data: bytes) -> None:
    """Writes all of it; a failure may leave a part, which `cut` removes."""
    # os.write may write less than it was given, as on a disk that becomes full.
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _append_durably(fd: int, data: bytes) -> None:
    """And waits for the disk."""
    _append(fd, data)
    os.fdatasync(fd)


def _copy_durably(path: Path, fd: int) -> None:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            _append(fd, piece)
    os.fdatasync(fd)


def _cut(fd: int, size: int) -> None:
    os.ftruncate(fd, size)
    os.fsync(fd)


def _replace_file(path: Path, temporary: Path, data: bytes) -> int:
    """Replaces the file at `path` in one step and returns it open; the caller syncs the directory."""
    fd = os.open(temporary, _OPEN | os.O_CREAT | os.O_TRUNC, _PRIVATE)
    try:
        _append_durably(fd, data)
        temporary.rename(path)
    except OSError:
        os.close(fd)
        with suppress(OSError):
            temporary.unlink()
        raise
    return fd


def _keep_copy(path: Path) -> Path:
    """Writes a damaged file's bytes to the first free `<path>.damaged-<n>`, or nothing."""
    number = 1
    while True:
        copy = path.with_name(f"{path.name}.damaged-{number}")
        try:
            fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        except FileExistsError:
            number += 1
            continue
        try:
            _copy_durably(path, fd)
        except OSError:
            with suppress(OSError):
                copy.unlink()
            raise
        finally:
            os.close(fd)
        durable_files.sync_directory(path.parent)
        return copy
