"""Disk operations of the journal and the driver mirror, each durable when it returns.

In: paths and bytes. Out: OSError for every failure; the journal turns it into a LedgerError. A write is durable when
its file is synced, a new name when its directory is synced.
"""

import os
from contextlib import suppress
from pathlib import Path

_PRIVATE = 0o600


def read(path: Path) -> bytes | None:
    """The whole file; None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def make_directory(path: Path) -> None:
    if not path.exists():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_for_append(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)


def append(fd: int, data: bytes) -> None:
    """Writes all of it and waits for the disk; a failure may leave a part, which `cut` removes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.fdatasync(fd)


def cut(fd: int, size: int) -> None:
    os.ftruncate(fd, size)
    os.fsync(fd)


def replace(path: Path, temporary: Path, data: bytes) -> int:
    """Replaces the file at `path` in one step and returns it open; the caller syncs the directory."""
    fd = os.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE)
    try:
        append(fd, data)
        temporary.rename(path)
    except OSError:
        os.close(fd)
        with suppress(OSError):
            temporary.unlink()
        raise
    return fd


def remove_leftover(path: Path) -> None:
    """A crash before the rename may leave the temporary file; it was never the journal."""
    path.unlink(missing_ok=True)


def keep_copy(path: Path, data: bytes) -> Path:
    """Writes a damaged file's bytes to the first free `<path>.damaged-<n>`."""
    number = 1
    while True:
        copy = path.with_name(f"{path.name}.damaged-{number}")
        try:
            fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        except FileExistsError:
            number += 1
            continue
        try:
            append(fd, data)
        finally:
            os.close(fd)
        sync_directory(path.parent)
        return copy


def cause(error: OSError) -> str:
    """The system's text in lower case, as part of a sentence."""
    return (error.strerror or str(error)).lower()
