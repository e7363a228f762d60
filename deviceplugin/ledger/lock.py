"""One agent per node: a lock that the kernel releases when its holder ends, for whatever reason.

In: the directory of the ledger. Out: a held `AgentLock`, or a LedgerError that names the holder. Two agents would
register the same resources and grant the same slots twice. The file stays; only the lock on it counts.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from deviceplugin.errors import LedgerError
from deviceplugin.ledger import files

LOCK_NAME = "agent.lock"


class AgentLock:
    """Held from `acquire` until `release` or the end of the process; a context manager."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def acquire(cls, directory: Path) -> "AgentLock":
        path = directory / LOCK_NAME
        try:
            files.make_directory(directory)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(
                f"the lock {path} cannot be opened: {files.cause(error)}; run the agent as root and check the directory"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(fd)
            os.close(fd)
            raise LedgerError(
                f"another vcuda agent{holder} runs on this node and holds {path}; stop it before this one starts"
            ) from error
        except OSError as error:
            os.close(fd)
            raise LedgerError(f"the lock {path} cannot be taken: {files.cause(error)}") from error
        with suppress(OSError):  # the pid is for the next agent's message; a full disk must not stop this one
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        return cls(path, fd)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).strip()
    return f" (process {int(text)})" if text.isdigit() else ""
