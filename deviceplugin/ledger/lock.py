"""One agent per node: a lock that the kernel releases when its holder ends, for whatever reason.

In: the directory of the ledger. Out: a block that holds the lock, or an AgentRunningError that names the holder. Two
agents would register the same resources and grant the same slots twice. The file stays; only the lock on it counts.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deviceplugin.errors import AgentRunningError, LedgerError
from deviceplugin.ledger import durable_files

LOCK_NAME = "agent.lock"


@contextmanager
def agent_lock(directory: Path) -> Iterator[Path]:
    """Holds the lock until the end of the block, or of the process; the value is its file."""
    path = directory / LOCK_NAME
    try:
        durable_files.make_directory(directory)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(
            f"the lock {path} cannot be opened: {durable_files.cause(error)}; run the agent as root "
            "and check the directory"
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
        raise LedgerError(f"the lock {path} cannot be taken: {durable_files.cause(error)}") from error


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).strip()
    return f" (process {int(text)})" if text.isdigit() else ""
