"""The trees of one mirror: written complete and durable, made current in one step, removed when nobody may mount them.

    <base>/nvidia   -> .current/nvidia      the name in kubelet's answers; it never changes
    <base>/origin   -> .current/origin
    <base>/.current -> .trees/<key>         one rename changes both flavours
    <base>/.trees/<key>/{nvidia,origin}     never changed once it is there

In: plans, ids of living grants. Out: the same on disk, durable, with a manifest for each tree. Not here: what belongs
in a tree (`plan`), and who calls when (`mirror`).

A tree is written in a directory that no container uses yet; an error leaves a half-made one to be removed. A file of
the node is copied, once for both flavours, by reflink where the file system can; what earlier trees have is
hard-linked. Invariants: nothing that existed before is written to; no inode of the node is in a tree, because a
container that can remount its mount writable would write into the node's driver.

A runtime follows the links when it makes a container and the mount then holds the tree itself, so a container keeps the
tree of its start, and after a restart has the current one. Invariants: both names lead to a complete tree at every
moment after the first `open`, whichever process is killed at whichever step; a tree goes only when every grant that
lived when the tree was replaced has ended, and never while it is the current or the previous one. Where a directory of
an earlier agent or of gpu-manager stands in the place of a link, containers may still mount it, so it is set aside
unless it is empty.
"""

import contextlib
import ctypes
import errno
import itertools
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from deviceplugin.container.driver_mirror.components import sha256_of
from deviceplugin.container.driver_mirror.plan import (
    EMPTY,
    FLAVOURS,
    LIBRARIES,
    PROGRAMS,
    FileEntry,
    LinkEntry,
    MirrorPlan,
)
from deviceplugin.container.driver_mirror.search import identity_of
from deviceplugin.errors import ContainerError
from deviceplugin.ledger.durable_files import sync_directory

MANIFEST = "manifest.json"
_NO_HARD_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EROFS, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}
_CHUNK = 16 << 20
_LABEL = "security.selinux"
_READ_AND_EXECUTE = 0o555
_READ = 0o444
_TICK_NS = 100_000_000
Directories = tuple[tuple[int, int], ...]
"""Inode and last change of each directory of a tree."""


class ManifestFile(msgspec.Struct, frozen=True):
    """A file of the tree, as it should be."""

    identity: str
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """What a finished tree is made of; stands beside the flavours, where no container sees it."""

    driver: str = ""
    missing: tuple[str, ...] = ()
    refusal: str = ""
    files: dict[str, ManifestFile] = {}
    links: dict[str, str] = {}


def read_manifest(tree: Path) -> Manifest | None:
    """None if the tree is not a finished one."""
    try:
        return msgspec.json.decode((tree / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_sound(tree: Path, manifest: Manifest) -> bool:
    """Whether everything is still in place; an administrator may have removed files."""
    files = all(_size(tree / name) == file.size for name, file in manifest.files.items())
    links = all((tree / name).is_symlink() for name in manifest.links)
    return files and links and all(directory.is_dir() for directory in _directories(tree))


def directories_of(tree: Path) -> Directories | None:
    """None if one is missing, or has changed so lately that another change might have the same time.

    The kernel's clock for files ticks a hundred times a second or more.
    """
    try:
        found = [each.stat() for each in (tree, *_directories(tree))]
    except OSError:
        return None
    if time.time_ns() - max(each.st_ctime_ns for each in found) < _TICK_NS:
        return None
    return tuple((each.st_ino, each.st_ctime_ns) for each in found)


def build(plan: MirrorPlan, tree: Path, *, known: Mapping[str, Path], stopped: Callable[[], bool]) -> None:
    """`known`: files of earlier trees by identity. Stops with an error once `stopped` says so."""
    available = dict(known)
    directories = [tree, *_directories(tree)]
    for directory in directories:
        directory.mkdir()
        directory.chmod(_FOR_ALL)
    for path, entry in plan.entries.items():
        if stopped():
            raise ContainerError("the driver mirror is not finished, because the agent stops; the next agent builds it")
        if isinstance(entry, LinkEntry):
            (tree / path).symlink_to(entry.target)
        else:
            _put(tree / path, entry, available.get(entry.identity), trees=tree.parent.resolve())
            available[entry.identity] = tree / path
    _write_manifest(plan, tree)
    for directory in directories:
        sync_directory(directory)


def _directories(tree: Path) -> list[Path]:
    """Parents first."""
    parts = (*LIBRARIES.values(), PROGRAMS)
    return [tree / flavour / part for flavour in FLAVOURS for part in ("", *parts)]


def _put(path: Path, entry: FileEntry, earlier: Path | None, *, trees: Path) -> None:
    is_kept = entry.source.is_relative_to(trees)  # the node has it no more
    is_ours = earlier is not None and (is_kept or not _is_same(earlier, entry.source))
    if earlier is not None and is_ours and _hard_link(earlier, path, also=(errno.ENOENT,)):
        return
    linked = is_kept and _hard_link(entry.source, path)
    if not linked:
        _copy(entry.source, path)
    found = sha256_of(path) if entry.is_interposer else identity_of(path if linked else entry.source)
    if found != entry.identity:
        raise ContainerError(
            f"{entry.source} changed while it was put into the driver mirror; the agent tries again soon"
        )


def _is_same(earlier: Path, source: Path) -> bool:
    """Whether a tree of an earlier version has the node's own file."""
    try:
        return earlier.samefile(source)
    except OSError:
        return False


def _hard_link(source: Path, target: Path, *, also: Collection[int] = ()) -> bool:
    """False if the system does not allow it."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno in _NO_HARD_LINK or error.errno in also:
            return False
        raise
    return True


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as reading, target.open("xb") as writing:
        while _move(reading.fileno(), writing.fileno()):
            pass
        _copy_label(reading.fileno(), writing.fileno())
        os.fchmod(writing.fileno(), os.fstat(reading.fileno()).st_mode & _READ_AND_EXECUTE | _READ)
        os.fsync(writing.fileno())


def _copy_label(reading: int, writing: int) -> None:
    """SELinux lets containers load libraries with a library's label, and this directory would give another one."""
    with contextlib.suppress(OSError):  # none, or the agent may not
        os.setxattr(writing, _LABEL, os.getxattr(reading, _LABEL))


def _move(reading: int, writing: int) -> int:
    """The next bytes, inside the kernel; between some file systems only the second way works."""
    try:
        moved = os.copy_file_range(reading, writing, _CHUNK)
    except OSError:
        moved = 0
    return moved or os.sendfile(writing, reading, None, _CHUNK)


def _write_manifest(plan: MirrorPlan, tree: Path) -> None:
    files, links = {}, {}
    for path, entry in plan.entries.items():
        if isinstance(entry, LinkEntry):
            links[str(path)] = entry.target
        else:
            files[str(path)] = ManifestFile(entry.identity, _size(tree / path))
    manifest = Manifest(plan.driver, plan.missing, plan.refusal, files, links)
    with (tree / MANIFEST).open("xb") as file:
        file.write(msgspec.json.encode(manifest))
        file.flush()
        os.fsync(file.fileno())


def _size(path: Path) -> int:
    """-1 for what is no file."""
    try:
        found = path.lstat()
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


_TREES, _CURRENT, _PREVIOUS = ".trees", ".current", ".previous"
_UNFINISHED, _GOING, _HOLDERS = ".new-", ".gone-", ".holders-"
_FOR_ALL = 0o755


class Trees:
    """Everything below one base directory; the agent's lock allows one process at a time."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._trees = base / _TREES
        self._links = Links(base)
        self._whole: Directories | None = None

    def open(self) -> None:
        """Repairs what a crash left and makes both flavours lead to a tree."""
        with self._explained():
            for path in (self._base, self._trees):
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(_FOR_ALL)
            self._links.clear()
            for path in (*self._trees.glob(f"{_UNFINISHED}*"), *self._trees.glob(f"{_GOING}*")):
                erase(path)
            if self.current is None:
                self._switch(self._finished(_PREVIOUS) or self._build(EMPTY, lambda: False))
            for flavour in FLAVOURS:
                self._links.point(flavour, f"{_CURRENT}/{flavour}")

    @property
    def current(self) -> Path | None:
        """The tree that containers get now; None before `open`."""
        return self._finished(_CURRENT)

    def are_whole(self, *, every_file: bool = False) -> bool:
        """Whether both names lead to the current tree, and nothing of it is missing.

        Unless `every_file`, files are looked at only if a directory has changed: who removes a file changes its
        directory. Each start of a container asks, and waits for it.
        """
        current = self._links.target(_CURRENT)
        if not current or any(self._links.target(flavour) != f"{_CURRENT}/{flavour}" for flavour in FLAVOURS):
            return False
        tree = self._base / current
        seen = directories_of(tree)
        if seen is not None and seen == self._whole and not every_file:
            return True
        manifest = read_manifest(tree)
        is_whole = manifest is not None and is_sound(tree, manifest)
        self._whole = seen if is_whole else None
        return is_whole

    def adopt(self, plan: MirrorPlan, *, stopped: Callable[[], bool]) -> bool:
        """Makes the plan's tree the current one, building it where there is none; False where it is already."""
        with self._explained():
            tree = self._existing(plan.key) or self._build(plan, stopped)
            if tree == self.current:
                return False
            self._switch(tree)
            return True

    def collect(self, living: Collection[str]) -> tuple[str, ...]:
        """Removes the trees that no container can use; `living` are the ids of all grants."""
        current, previous = self.current, self._finished(_PREVIOUS)
        gone = []
        with self._explained():
            for tree in self._all():
                if tree != current and not self._note_holders(tree, living) and tree != previous:
                    self._remove(tree)
                    gone.append(tree.name)
        return tuple(gone)

    def _all(self) -> list[Path]:
        return [path for path in self._trees.iterdir() if not path.name.startswith(".") and path.is_dir()]

    def _finished(self, link: str) -> Path | None:
        target = self._links.target(link)
        return self._base / target if target and (self._base / target / MANIFEST).is_file() else None

    def _existing(self, key: str) -> Path | None:
        for tree in map(self._trees.joinpath, _names(key)):
            manifest = read_manifest(tree)
            if manifest is None:
                return None
            if is_sound(tree, manifest):
                return tree
        return None

    def _build(self, plan: MirrorPlan, stopped: Callable[[], bool]) -> Path:
        unfinished = self._trees / f"{_UNFINISHED}{plan.key}"
        erase(unfinished)
        build(plan, unfinished, known=self._known_files(), stopped=stopped)
        tree = next(path for path in map(self._trees.joinpath, _names(plan.key)) if not path.exists())
        unfinished.rename(tree)
        sync_directory(self._trees)
        return tree

    def _known_files(self) -> dict[str, Path]:
        """What may be linked instead of being copied again."""
        known = {}
        for tree in filter(None, (self._finished(_PREVIOUS), self.current)):
            manifest = read_manifest(tree) or Manifest()
            if is_sound(tree, manifest):
                known.update({file.identity: tree / name for name, file in manifest.files.items()})
        return known

    def _switch(self, tree: Path) -> None:
        self._holders(tree).unlink(missing_ok=True)  # containers that start now are noted when it is replaced again
        current = self._links.target(_CURRENT)
        if self.current is not None and self.current != tree:
            self._links.point(_PREVIOUS, current)
        self._links.point(_CURRENT, f"{_TREES}/{tree.name}")

    def _note_holders(self, tree: Path, living: Collection[str]) -> bool:
        """Whether a grant lives that may use the tree: one of those that lived when this was first asked.

        They are some more than those that lived when it was replaced, which only keeps it longer.
        """
        file = self._holders(tree)
        try:
            noted = msgspec.json.decode(file.read_bytes(), type=set[str])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            noted = None
        holders = set(living) if noted is None else noted & set(living)
        if holders != noted:
            fresh = self._trees / f"{_UNFINISHED}{file.name}"
            fresh.write_bytes(msgspec.json.encode(sorted(holders)))
            fresh.replace(file)
        return bool(holders)

    def _holders(self, tree: Path) -> Path:
        return self._trees / f"{_HOLDERS}{tree.name}"

    def _remove(self, tree: Path) -> None:
        going = self._trees / f"{_GOING}{tree.name}"
        erase(going)
        tree.rename(going)
        self._holders(tree).unlink(missing_ok=True)
        erase(going)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ContainerError(
                f"driver mirror {self._base} could not be changed: {error.strerror} at {error.filename}; "
                "check the disk and --driver-mirror-path"
            ) from error


def _names(key: str) -> Iterator[str]:
    """More names for one plan: containers may still mount a tree that was corrupted."""
    yield key
    yield from (f"{key}-{number}" for number in itertools.count(2))


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
        """Makes the link lead there, replacing what has its name."""
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
    """Removes a file, a link or a directory, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _set_aside(directory: Path, name: Path) -> None:
    """Removes an empty directory; keeps another under a new name, because it may be in use."""
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        places = (name.with_name(f"{name.name}.before-{number}") for number in itertools.count(1))
        directory.rename(next(place for place in places if not place.exists()))


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two names in one step; False if system or file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
