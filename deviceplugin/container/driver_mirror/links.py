"""The links through which everybody reaches a mirror's trees, each changed by one rename.

In: names and targets, relative to one base directory. Out: the links on disk, durable. Invariant: a name that led
somewhere leads somewhere at every moment, also where a directory of an earlier agent, or of the lineage, stood in its
place: containers may mount that still, so it is set aside unless it is empty.
"""

import ctypes
import errno
import itertools
import os
import shutil
from pathlib import Path

from deviceplugin.ledger.files import sync_directory

_FRESH = ".link-"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class Links:
    """Those below one base directory."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def clear(self) -> None:
        """Removes what a crash left between two steps."""
        for path in self._base.glob(f"{_FRESH}*"):
            if path.is_dir() and not path.is_symlink():
                _set_aside(path, path.with_name(path.name.removeprefix(_FRESH)))
            else:
                path.unlink()

    def target(self, name: str) -> str:
        """Where a link leads; empty for what is none."""
        try:
            return str((self._base / name).readlink())
        except OSError:
            return ""

    def point(self, name: str, target: str) -> None:
        """Makes the link lead there, whatever stands in its place."""
        if self.target(name) == target:
            return
        path, fresh = self._base / name, self._base / f"{_FRESH}{name}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        if path.is_symlink() or not path.is_dir():
            fresh.replace(path)
        elif _exchange(path, fresh):
            _set_aside(fresh, path)
        else:
            _set_aside(path, path)
            fresh.replace(path)
        sync_directory(self._base)


def erase(path: Path) -> None:
    """Whatever it is, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _set_aside(directory: Path, name: Path) -> None:
    """An empty one goes; another one is not ours to remove."""
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        places = (name.with_name(f"{name.name}.before-{number}") for number in itertools.count(1))
        directory.rename(next(place for place in places if not place.exists()))


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two names in one step; False where system or file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
