"""A file of fixed size that a container maps and writes, and that the agent only ever reads: region and activity rows.

In: a path, the first bytes, a size. Out: the file, complete before it has its name; later the file as it may be, and a
phrase that says what a container has done to it. Nothing here trusts or looks at its contents: a container may write
anything into it. It is made with its final size and never cut below it, so that no mapping of it can fault; the part
that is used first is reserved on the disk, because touching a hole of a mapped file on a full disk is a SIGBUS for the
application.

What a container may not do is found and undone: growth, modes, extended attributes. It may allocate blocks behind the
end without changing the size, so both are compared. Invariants: the inode stays, because processes have it mapped;
nothing here waits for a container. What a container has added may take seconds to free: a thread does that. Growth
under a write lease is cut in a thread too: truncate keeps new leases away while it waits until the kernel breaks the
old one (45 s). Each container has one such thread at most, and the node `MOST_CUTTING`; other files wait for their
turn, and meanwhile each look has the kernel break their leases. What the container did not do is not reported: a
missing file, or one that the agent may not open.
"""

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
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
    """For a block that removes these files: they are open until it ends, and the kernel frees at the last close.

    What is as small as the agent made it is freed at once: a thread takes longer to begin.
    """
    held: list[int] = []
    try:
        for path in paths:
            with contextlib.suppress(OSError):  # gone, or no descriptor is left
                held.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
        yield
    finally:
        large = [fd for fd in held if os.fstat(fd).st_blocks * _BLOCK > SLACK]
        _close(fd for fd in held if fd not in large)
        _close_in_a_thread(large)


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


_MIB = 1 << 20
_BLOCK = 512  # the unit of st_blocks, whatever the file system
SLACK = _MIB  # file systems that count metadata, copies or what they allocate ahead
MOST_REMOVED = 256  # attributes of a file in one look: the look is for all containers
MOST_CUTTING = 16  # threads of the node
_OF_THE_SYSTEM = ("security.selinux", "security.ima", "security.evm", "trusted.")
_NO_ATTRIBUTES = (errno.EOPNOTSUPP, errno.ENOENT, errno.ENOSYS)


def ignored(path: Path, why: str) -> None:
    pass


class SharedFiles:
    """Undoes what was done to files; remembers only which of them it is waiting for. Any thread may call it.

    A directory is a container's: one of its files is cut at a time, the one that has waited longest. `delayed` is told
    of a file that keeps its size until another look, and why.
    """

    def __init__(self, delayed: Callable[[Path, str], None] = ignored) -> None:
        self._delayed = delayed
        self._lock = threading.Lock()
        self._cutting: dict[Path, threading.Thread] = {}
        self._queue: dict[Path, dict[Path, int]] = {}

    def restore(self, path: Path, form: Form) -> str:
        """What was wrong with the file, empty for nothing; all of it is undone where that is possible."""
        try:
            found = path.lstat()
            if not stat.S_ISREG(found.st_mode):
                return ""
            wrong = [_restore_mode(path, found), _remove_attributes(path), self._cut(path, form, found)]
        except OSError:
            return ""
        return ", ".join(filter(None, wrong))

    def _cut(self, path: Path, form: Form, found: os.stat_result) -> str:
        if not _is_larger(found, form.size):
            return ""
        try:
            with opened(path, writable=True) as fd:
                os.ftruncate(fd, form.size)
        except BlockingIOError:
            self._cut_when_possible(path, form)
        except OSError as error:
            return f"{path.name} is larger than allowed and cannot be cut: {error.strerror}"
        return f"{path.name} is larger than allowed"

    def _cut_when_possible(self, path: Path, form: Form) -> None:
        with self._lock:
            self._queue.setdefault(path.parent, {}).setdefault(path, form.size)
            self._cutting = {each: one for each, one in self._cutting.items() if one.is_alive()}
            why = self._start_threads()
        if why:
            self._delayed(path, why)

    def _start_threads(self) -> str:
        """Why a container's files wait without one of them being cut; empty: none does."""
        for directory in [each for each in self._queue if each not in self._cutting]:
            if len(self._cutting) >= MOST_CUTTING:
                return f"files of {MOST_CUTTING} containers are being cut"
            path = next(iter(self._queue[directory]))
            thread = threading.Thread(target=_truncate, args=(path, self._queue[directory][path]), daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return "no thread is left"
            self._cutting[directory] = thread
            self._keep_others(directory, path)
        return ""

    def _keep_others(self, directory: Path, path: Path) -> None:
        """Behind all other containers."""
        others = self._queue.pop(directory)
        del others[path]
        if others:
            self._queue[directory] = others


def is_untouched(path: str, size: int) -> bool:
    """Whether `restore` has nothing to undo. It is asked about every file each second, so it makes as little as it can.

    False is no finding: `restore` looks again.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return True
    if not stat.S_ISREG(found.st_mode):
        return True
    if stat.S_IMODE(found.st_mode) != MODE or _is_larger(found, size):
        return False
    try:
        return all(name.startswith(_OF_THE_SYSTEM) for name in os.listxattr(path))
    except OSError as error:
        return error.errno in _NO_ATTRIBUTES


def _is_larger(found: os.stat_result, size: int) -> bool:
    return found.st_size > size or found.st_blocks * _BLOCK > size + SLACK


def _restore_mode(path: Path, found: os.stat_result) -> str:
    """A setuid file of root's in a directory of the node would make its every user root."""
    mode = stat.S_IMODE(found.st_mode)
    if mode == MODE:
        return ""
    try:
        path.chmod(MODE)
    except PermissionError:  # an agent without capabilities, and a file that has another owner by now
        return f"{path.name} has mode {mode:04o}, which the agent may not change"
    return f"{path.name} had mode {mode:04o}"


def _remove_attributes(path: Path) -> str:
    """They are memory of the container that the size does not show. A list that is too long for the kernel stays."""
    try:
        strange = [name for name in os.listxattr(path) if not name.startswith(_OF_THE_SYSTEM)]
        for name in strange[:MOST_REMOVED]:
            os.removexattr(path, name)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return ""
        return f"{path.name} has extended attributes that cannot be removed: {error.strerror}"
    return f"{path.name} had extended attributes" if strange else ""


def _truncate(path: Path, size: int) -> None:
    try:
        os.truncate(path, size)
    except OSError:  # the next look sees the file as it is
        return
