"""What a container may not do to a file of its shared state, found and undone: growth, modes, extended attributes.

In: the file and its form. Out: the file as it may be, and a phrase that says what was wrong. A container may allocate
blocks behind the end without changing the size, so both are compared. Invariants: the contents are not looked at; the
inode stays, because processes have it mapped; nothing here waits for a container. Growth under a write lease is cut in
a thread: truncate keeps new leases away while it waits until the kernel breaks the old one (45 s). Each container has
one such thread at most, and the node `MOST_CUTTING`; other files wait for their turn, and meanwhile each look has the
kernel break their leases. What the container did not do is not reported: a missing file, or one that the agent may not
open.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from deviceplugin.container.shared_file import MODE, Form, opened

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
