"""Durable changes of files and directories, for what must outlive a crash of the machine, and the lock on them.

In: paths. Out: OSError for every failure; reads of what others wrote. A new name is durable when its directory is
synced. The lock is one that the kernel releases when its holder ends, for whatever reason: two agents would register
the same resources and grant the same slots twice, so the second gets an AgentRunningError that names the holder. The
lock's file stays; only the lock on it counts.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from deviceplugin.errors import AgentRunningError, LedgerError


def make_directory(path: Path) -> None:
    if not path.exists():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """In one step, and on the disk when this returns. Its directory is made where it is missing."""
    make_directory(path.parent)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    unfinished = _UNFINISHED.get()
    if unfinished is None:
        _put_in_place(fresh, path)
    else:
        unfinished.append(partial(_put_in_place, fresh, path))


def _put_in_place(fresh: Path, path: Path) -> None:
    _sync(fresh)
    fresh.replace(path)
    sync_directory(path.parent)


_UNFINISHED: ContextVar[list[Callable[[], None]] | None] = ContextVar("unfinished", default=None)


@contextmanager
def finished_by_caller() -> Iterator[list[Callable[[], None]]]:
    """A file that is replaced in the block is in place, and on the disk, when the caller has called what the list has
    for it: from any thread, and for several files at once, because the disk is waited for. Raises OSError."""
    unfinished: list[Callable[[], None]] = []
    token = _UNFINISHED.set(unfinished)
    try:
        yield unfinished
    finally:
        _UNFINISHED.reset(token)


def sync_directory(path: Path) -> None:
    _sync(path, os.O_DIRECTORY)


def _sync(path: Path, flags: int = 0) -> None:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_within(path: Path, most: int) -> bytes:
    """A file that somebody else writes; EFBIG if it has more than `most` bytes."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def cause(error: OSError) -> str:
    """The system's text in lower case, as part of a sentence."""
    return (error.strerror or str(error)).lower()


LOCK_NAME = "agent.lock"


@contextmanager
def agent_lock(directory: Path) -> Iterator[Path]:
    """Holds the lock until the end of the block, or of the process; the value is its file."""
    path = directory / LOCK_NAME
    try:
        make_directory(directory)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(
            f"the lock {path} cannot be opened: {cause(error)}; run the agent as root and check the directory"
        ) from error
    try:
        _take(fd, path)
        with suppress(OSError):  # the pid is for the next agent's message; a full disk must not stop this one
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield path
    finally:
        os.close(fd)


def _take(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise AgentRunningError(
            f"another vcuda agent{_holder(fd)} runs on this node and holds {path}; stop it before this one starts"
        ) from error
    except OSError as error:
        raise LedgerError(f"the lock {path} cannot be taken: {cause(error)}") from error


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).strip()
    return f" (process {int(text)})" if text.isdigit() else ""
