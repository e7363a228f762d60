"""One directory for each grant, mounted read-only at /etc/vcuda in the container that holds it.

In: grant ids and file contents. Out: `<base>/<grant>/`, made at Allocate (the runtime would make an empty one where it
is missing) and filled at PreStartContainer, when the owner is certain. Files appear by rename, so that a reader sees
the old bytes or the new ones. Not here: when a grant ends (`ledger`), and what is removed then (`shared_state`).
"""

import contextlib
import errno
from pathlib import Path

from deviceplugin.errors import ContainerError
from deviceplugin.ledger.grant import GrantId

_PREFIX = "g-"
_BASE_MODE = 0o700
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class GrantDirectories:
    """All grant directories of this node under one base path."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def path(self, grant: GrantId) -> Path:
        return self._base / grant

    def open(self) -> None:
        """Once at start: earlier versions left the base open to every account of the node. Raises ContainerError."""
        make_base(self._base)
        with contextlib.suppress(PermissionError):  # it belongs to another account, which decided
            self._base.chmod(_BASE_MODE)

    def is_missing(self, grant: GrantId) -> bool:
        """A container that gpu-manager started has no directory here, and needs none."""
        return grant.startswith(_PREFIX) and not self.path(grant).is_dir()

    def prepare(self, grant: GrantId) -> Path:
        """Makes the directory; harmless when it exists."""
        path = self.path(grant)
        if not path.is_dir():
            make_base(self._base)
            make_directory(path, what="grant directory")
        return path

    def write(self, grant: GrantId, name: str, data: bytes, *, below: str = "") -> bool:
        """Puts the file in place, `below` a folder if need be; False when it was there with the same bytes already.

        It is not synced: what a power cut leaves of it is compared and replaced before the next start.
        """
        target = self._base / grant / below / name
        try:
            if _is_there(target, data):
                return False
            if not target.parent.is_dir():
                self.prepare(grant)
                target.parent.mkdir(mode=0o755, exist_ok=True)
            _put(target, data)
        except OSError as error:
            raise ContainerError(
                f"limits file {target} could not be written: {error.strerror}; check the disk"
            ) from error
        return True

    def read(self, grant: GrantId, name: str) -> bytes | None:
        """None if there is no such file."""
        try:
            return (self.path(grant) / name).read_bytes()
        except OSError:
            return None


def is_no_room(error: BaseException | None) -> bool:
    """Whether the file system is full: an OSError, or the ContainerError that was raised of one."""
    cause = error.__cause__ if isinstance(error, ContainerError) else error
    return isinstance(cause, OSError) and cause.errno in _NO_ROOM


def make_base(path: Path) -> None:
    """The directory of all grants. Mounts do not need its path, so no account of the node but the agent's enters it."""
    if path.is_dir():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=_BASE_MODE, exist_ok=True)
    except OSError as error:
        raise ContainerError(f"directory {path} could not be made: {error.strerror}; check the disk") from error


def make_directory(path: Path, *, what: str) -> None:
    """Harmless when it exists; raises ContainerError that says `what` could not be made."""
    try:
        path.mkdir(parents=True)
        path.chmod(0o755)  # whatever the agent's umask: containers run as any user
    except FileExistsError:
        pass
    except OSError as error:
        raise ContainerError(f"{what} {path} could not be made: {error.strerror}; check the disk") from error


def _is_there(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return False


def _put(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    fresh.chmod(0o644)
    fresh.replace(path)
