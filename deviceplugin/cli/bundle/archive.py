"""The archive itself: a .tar.gz that is written while it is gathered, and its index.

In: texts and documents with their names. Out: a file that only its owner may read, complete or not there. Invariants:
every member has passed `redact`; one member is in memory at a time, and a large one on the disk; the index is the last
member, and names what could not be read and why.
"""

import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from deviceplugin.cli.bundle import redact
from deviceplugin.errors import ConfigError, VcudaError

FOLDER = "vcuda-bundle"
_IN_MEMORY = 4 << 20
Write = Callable[[str], None]


class Archive:
    """`add` once for each member; `unread` names what is missing."""

    def __init__(self, file: IO[bytes], *, at: float) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w|gz")  # noqa: SIM115 - closed by `close`
        self._at = at
        self._members: list[dict[str, Any]] = []
        self._unread: list[dict[str, str]] = []

    @contextmanager
    def lines(self, name: str) -> Iterator[Write]:
        """What the block writes, line by line; nothing of it where the block raises."""
        cleaner = redact.Lines()
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:

            def write(text: str) -> None:
                for line in text.splitlines():
                    spool.write(f"{cleaner.clean(line)}\n".encode(errors="replace"))

            yield write
            self._add(name, spool)

    @contextmanager
    def documents(self, name: str) -> Iterator[Callable[[object], None]]:
        """One JSON document a line."""
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:

            def write(each: object) -> None:
                spool.write(json.dumps(redact.values(each)).encode() + b"\n")

            yield write
            self._add(name, spool)

    def document(self, name: str, document: object) -> None:
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
            spool.write(json.dumps(redact.values(document), indent=2).encode() + b"\n")
            self._add(name, spool)

    def unread(self, name: str, error: VcudaError) -> None:
        self._unread.append({"name": name, "why": redact.text(error.message)})

    @property
    def missing(self) -> int:
        return len(self._unread)

    def close(self, **about: str) -> None:
        self.document("index.json", {**about, "files": self._members, "notRead": self._unread})
        self._tar.close()

    def _add(self, name: str, spool: IO[bytes]) -> None:
        entry = tarfile.TarInfo(f"{FOLDER}/{name}")
        entry.size, entry.mtime, entry.mode = spool.tell(), int(self._at), 0o600
        spool.seek(0)
        self._tar.addfile(entry, spool)
        self._members.append({"name": name, "bytes": entry.size})


@contextmanager
def created(path: Path) -> Iterator[Archive]:
    """ConfigError where the file is there already or cannot be written; nothing is left of one that is not complete."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}; name another file with --file") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield Archive(file, at=time.time())
    except BaseException as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError):
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        raise
