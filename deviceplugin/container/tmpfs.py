"""The tmpfs at --virtual-manager-path, so that files which containers write neither fill the node's disk nor run there.

In: the directory, and whether running containers may hold what lies in it on the disk. Out: a tmpfs that the container
runtime sees too, or the reason why the directory stays on the disk. It is `nosuid,nodev,noexec`. Its pages and extended
attributes are charged to the memory of the container that makes them.

One for all grants: containers mount the directory with their neighbours' rows, which come and go, and a directory is in
one file system. So no bound of it may be one that a container can use up for the others. The number of inodes has none,
because the kernel counts extended attributes as inodes. The size grows by what containers hold (`make_room`). The pages
that are used first are allocated with the files (`shared_file`), and growth is cut at each look (`shared_file`).

Invariants: never a second one on top, because a tmpfs that is there is used; never unmounted, because
containers have files of it mounted while agents come and go; never over files on the disk that a container may have
mounted. A reboot empties it: everything below it is made at PreStartContainer, the journal lies elsewhere.
"""

import ctypes
import os
import shutil
from pathlib import Path

import structlog

from deviceplugin.container.processes import MountPoint, read_mounts

log = structlog.get_logger("vcuda.container")
LEAST_SIZE = 1 << 30
"""16 GPUs with 100 shares each take 305 KiB for each share, and 12 KiB for each process beyond the first 64 of one."""

MOST_SIZE = 12 << 30
"""So much that the same shares may also fill their files, as far as nothing is cut."""

_PART = 16  # of the node's memory: what lies here is not free when its container is killed

SPARE = 128 << 20
"""With less room than this, the tmpfs grows: it is what 400 shares begin with."""

_INODES = "nr_inodes=0"  # no bound

TYPE = "tmpfs"
_SOURCE = "vcuda"
_FLAGS = 2 | 4 | 8  # nosuid, nodev, noexec
_REMOUNT = 32
_MODE = 0o700
_SELINUX_CONTEXT = "system_u:object_r:container_file_t:s0"


def provide(base: Path, *, held: bool, proc: Path = Path("/proc")) -> str:
    """Mounts the tmpfs where none is; empty, or why there is none. `base` is there."""
    path = base.resolve()
    mounts = _mounts(proc)
    here = [each for each in mounts if each.path == path]
    if here and here[-1].type == TYPE:
        _lift_inodes(path)
        return ""
    if here:
        return f"another file system is mounted there ({here[-1].type})"
    if held:
        return "containers that run have files there on the disk; it is mounted when the agent next starts without any"
    above = max((each for each in reversed(mounts) if path.is_relative_to(each.path)), key=_depth, default=None)
    if above is None or not above.shared:
        return "what the agent mounts is not seen on the node; set mountPropagation: Bidirectional"
    _clear(path)
    try:
        _mount(path, options(proc))
    except OSError as error:
        return f"it cannot be mounted: {error.strerror}"
    return ""


def make_room(base: Path, proc: Path = Path("/proc")) -> bool:
    """Whether it has grown, because containers hold nearly all of it: by as much as it is for all others at first.

    What they hold is in their own memory, which bounds it, and is cut when the kernel lets the agent cut it.
    """
    try:
        found = os.statvfs(base)
        if found.f_bavail * found.f_frsize >= SPARE or not _is_tmpfs(base.resolve(), proc):
            return False
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        _mount(base, f"size={used + size(proc)}", _REMOUNT)
    except OSError:
        return False
    return True


def _lift_inodes(path: Path) -> None:
    """A bound that an earlier version set, or the kernel by default."""
    try:
        if os.statvfs(path).f_files:
            _mount(path, _INODES, _REMOUNT)
    except OSError as error:
        log.warning("inodes_bounded", error=f"containers can use up the inodes of {path}: {error.strerror}")


def _is_tmpfs(path: Path, proc: Path) -> bool:
    return [each.type for each in _mounts(proc) if each.path == path][-1:] == [TYPE]


def _mounts(proc: Path) -> list[MountPoint]:
    try:
        return list(read_mounts((proc / "self" / "mountinfo").read_bytes()))
    except OSError:
        return []


def _depth(mount: MountPoint) -> int:
    return len(mount.path.parts)


def _clear(path: Path) -> None:
    """What an agent without tmpfs left on the disk: nobody could remove it below the mount."""
    for entry in (*path.glob("g-*"), path / "gpus"):
        shutil.rmtree(entry, ignore_errors=True)


def options(proc: Path) -> str:
    """With huge pages, a file would take more room than its size, as if its container had taken it."""
    plain = f"size={size(proc)},{_INODES},mode={_MODE:04o},huge=never"
    return f"{plain},context={_SELINUX_CONTEXT}" if _has_selinux(proc) else plain


def size(proc: Path) -> int:
    """Whole MiB, by the node's memory."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        (memory,) = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:"))
    except (OSError, ValueError, IndexError):
        return LEAST_SIZE
    return max(LEAST_SIZE, min(memory // _PART >> 20 << 20, MOST_SIZE))


def _has_selinux(proc: Path) -> bool:
    """Without a label, containers may not write to a tmpfs of the node."""
    try:
        return any(line.split()[-1:] == ["selinuxfs"] for line in (proc / "filesystems").read_text().splitlines())
    except OSError:
        return False


def _mount(path: Path, options: str, flags: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    given = ctypes.c_ulong(_FLAGS | flags)
    if libc.mount(_SOURCE.encode(), os.fsencode(path), TYPE.encode(), given, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
