"""Durable changes of files and directories, for what must outlive a crash of the machine; reads of what others wrote.

In: paths. Out: OSError for every failure. A new name is durable when its directory is synced.
"""

import errno
import os
from pathlib import Path


def make_directory(path: Path) -> None:
    if not path.exists():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """In one step, and on the disk when this returns. Its directory is made where it is missing."""
    make_directory(path.parent)
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
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
