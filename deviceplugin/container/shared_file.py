"""A file of fixed size that a container maps and writes, and that the agent only ever reads: region and activity rows.

In: a path, the first bytes, a size. Out: the file, complete before it has its name. It is made with its final size and
never cut, so that no mapping of it can fault; the part that is used first is reserved on the disk, because touching a
hole of a mapped file on a full disk is a SIGBUS for the application. A container may write anything into it:
nothing here trusts its contents. What a container has added to a file may take seconds to free: a thread does that.
"""

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from deviceplugin.errors import ContainerError

MODE = 0o666
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NOT_OF_THE_CONTAINER = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO}
"""Errors of an open or a read that nothing in the file can cause."""
_NOT_NOW = {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_ZEROS = bytes(1 << 16)
_NOT_HERE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Form(NamedTuple):
    """An unused file of one kind: its first bytes, its size, and how many bytes are reserved on the disk."""

    head: bytes
    size: int
    reserved: int


def make(path: Path, form: Form) -> None:
    """Puts a fresh file in place; a process that maps the old one keeps that. Raises ContainerError.

    A container that started while the file was missing has an empty directory there, which the runtime made.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        try:
            os.fchmod(fd, MODE)
            os.ftruncate(fd, form.size)
            _reserve(fd, form.reserved)
            os.pwrite(fd, form.head, 0)
        finally:
            os.close(fd)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        with freed_in_a_thread([path]):
            fresh.replace(path)
    except OSError as error:
        raise ContainerError(f"shared file {path} could not be made: {error.strerror}; check the disk") from error


def is_whole(path: Path, form: Form, *, beginning: bytes = b"") -> bool:
    """Whether the file is one that a reader accepts: a plain file of this size that begins so and may be written."""
    beginning = beginning or form.head
    try:
        with opened(path) as fd:
            return _fits(os.fstat(fd), form) and os.pread(fd, len(beginning), 0) == beginning
    except OSError:
        return False


def is_kept(path: Path, form: Form) -> bool:
    """Whether it may stay as it is: whole, or not to be opened now, which says nothing of what is in it.

    Its container may hold a lease of it, or the agent has no descriptor left: a file of that look is not lost.
    """
    try:
        with opened(path) as fd:
            return _fits(os.fstat(fd), form) and os.pread(fd, len(form.head), 0) == form.head
    except OSError as error:
        if error.errno not in _NOT_NOW:
            return False
    try:
        return _fits(path.lstat(), form)
    except OSError:
        return False


def is_unused(path: Path, form: Form) -> bool:
    """Whether it is whole and no slot is claimed; the number of used slots follows the head."""
    return is_whole(path, form, beginning=form.head + bytes(4))


def wipe(path: Path, form: Form) -> None:
    """Makes it as new without giving it another inode: neighbours map it. Holes stay holes. Raises ContainerError."""
    try:
        with opened(path, writable=True) as fd:
            for start, end in _data_of(fd, form.size):
                for at in range(max(start, len(form.head)), end, len(_ZEROS)):
                    os.pwrite(fd, _ZEROS[: min(len(_ZEROS), end - at)], at)
    except OSError as error:
        raise ContainerError(f"shared file {path} could not be wiped: {error.strerror}; check the disk") from error


@contextlib.contextmanager
def opened(path: Path, *, writable: bool = False) -> Iterator[int]:
    """A descriptor; a link or a pipe in its place neither blocks it nor leads it elsewhere. Raises OSError."""
    fd = os.open(path, _WRITE if writable else _READ)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def freed_in_a_thread(paths: Iterable[Path]) -> Iterator[None]:
    """For a block that removes these files: they are open until it ends, and the kernel frees at the last close."""
    held: list[int] = []
    try:
        for path in paths:
            with contextlib.suppress(OSError):  # gone, or no descriptor is left
                held.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
        yield
    finally:
        _close_in_a_thread(held)


def _close_in_a_thread(held: list[int]) -> None:
    try:
        if held:
            threading.Thread(target=_close, args=(held,), daemon=True).start()
    except RuntimeError:  # no thread is left
        _close(held)


def _close(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _fits(found: os.stat_result, form: Form) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_size == form.size and stat.S_IMODE(found.st_mode) == MODE


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in _NOT_HERE:  # a file system that cannot keeps holes
            raise


def _data_of(fd: int, size: int) -> list[tuple[int, int]]:
    """The stretches that hold data, within the size that the file ought to have."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but holes behind
                break
            raise
        if start < at:
            found.append((start, at))
        else:
            break
    return found
