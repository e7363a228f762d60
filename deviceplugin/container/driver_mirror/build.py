"""Writes a planned tree to disk, complete and durable, in a directory that no container uses yet.

In: a plan and the files of earlier trees by content. Out: the tree and its manifest, or an error and a half-made
directory for `trees` to remove. A file of the node is copied, once for both flavours, by reflink where the file system
can; what earlier trees have is hard-linked. Invariants: nothing that existed before is written to; no inode of the node
is in a tree, because a container that can remount its mount writable would write into the node's driver.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from deviceplugin.container.driver_mirror.components import sha256_of
from deviceplugin.container.driver_mirror.plan import FLAVOURS, LIBRARIES, PROGRAMS, FileEntry, LinkEntry, MirrorPlan
from deviceplugin.container.driver_mirror.search import identity_of
from deviceplugin.errors import ContainerError
from deviceplugin.ledger.durable_files import sync_directory

MANIFEST = "manifest.json"
_NO_HARD_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EROFS, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}
_CHUNK = 16 << 20
_LABEL = "security.selinux"
_READ_AND_EXECUTE = 0o555
_READ = 0o444
_FOR_ALL = 0o755
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
    """None where the tree is not a finished one."""
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
    """False where the system does not allow it."""
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
