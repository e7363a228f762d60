"""Processes of containers, from the kernel: /proc and the control groups' file systems.

In: PIDs as this process sees them (the agent runs in the host's pid namespace); a container's pod and id. Out: frozen
facts, or None for what cannot be read: a process may end between any two lines. Nothing is cached and nothing raises.
Not here: what the names mean (`cgroup`), which container belongs to which grant (`containers`).
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.container.cgroup import (
    ContainerGroup,
    Naming,
    container_of,
    group_with,
    parse_memberships,
    paths_of,
    root_of,
)
from deviceplugin.container.mount_points import MountedFolder, read_mounts
from deviceplugin.model.allocation import PodUid

_CONTROLLERS = ("memory", "pids", "cpu", "cpu,cpuacct", "devices", "systemd")
_MOST_GROUPS = 4096
_MOST_PIDS = 1 << 16


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies one process: `inner` is its PID in its own pid namespace, `namespace` the inode of that namespace."""

    pid: int
    inner: int
    namespace: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Members:
    """The processes of a group and those below. Not `complete` where some are hidden from this pid namespace."""

    pids: tuple[int, ...]
    complete: bool = True


class ProcessTable:
    """What /proc says of single processes."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def container_of(self, pid: int) -> ContainerGroup | None:
        data = self._read(pid, "cgroup")
        return container_of(parse_memberships(data)) if data is not None else None

    def identity(self, pid: int) -> ProcessIdentity | None:
        status, stat = self._read(pid, "status"), self._read(pid, "stat")
        if status is None or stat is None:
            return None
        try:
            inode = (self._proc / str(pid) / "ns" / "pid").stat().st_ino
            return ProcessIdentity(pid, inner_pid(status), inode, start_time(stat))
        except (OSError, ValueError):
            return None

    def exists(self, pid: int) -> bool:
        return (self._proc / str(pid)).exists()

    def start_time(self, pid: int) -> int | None:
        stat = self._read(pid, "stat")
        try:
            return None if stat is None else start_time(stat)
        except ValueError:
            return None

    def members(self, pod: PodUid, container_id: str) -> Members:
        """Reads every process; only for a container whose group cannot be found."""
        found = [pid for pid in self._all() if self.group_of(pid, pod, container_id)]
        return Members(tuple(sorted(found)), complete=bool(found))

    def group_of(self, pid: int, pod: PodUid, container_id: str) -> str:
        """The path of the container's group, from one of its processes; empty for a process that is not in it."""
        memberships = parse_memberships(self._read(pid, "cgroup") or b"")
        group = container_of(memberships)
        if group is None:
            return group_with(memberships, container_id)
        return group.path if (group.pod, group.container_id) == (pod, container_id) else ""

    def mounted(self, names: Collection[str], base: Path, *, pods: Mapping[str, PodUid] = {}) -> frozenset[str]:
        """Those of the directories `names` in `base` that a living process has mounted. Reads every process.

        It counts what is mounted, not where its process is: control groups have many names. `pods`: whose a directory
        is; a process of that pod with a mount of that name counts too, where `base` was mounted again since it started.
        """
        source, found, known = self._source(base), set[str](), set[int]()
        for pid in self._all():
            if (space := self._mount_namespace(pid)) in known:
                continue
            text = self._read(pid, "mountinfo")
            if text is None:
                continue
            if space is not None:
                known.add(space)
            shown = [name for name in names if f"/{name}".encode() in text]
            if not shown:
                continue
            proved = {source.child_shown(each) for each in read_mounts(text)} if source is not None else set[str]()
            group = self.container_of(pid)
            found.update(name for name in shown if name in proved or (group and pods.get(name) == group.pod))
        return frozenset(found)

    def _source(self, base: Path) -> MountedFolder | None:
        text = self._read("self", "mountinfo")
        return MountedFolder.of(base.resolve(), list(read_mounts(text))) if text is not None else None

    def _mount_namespace(self, pid: int) -> int | None:
        """Its processes see the same; None where it cannot be read."""
        try:
            return (self._proc / str(pid) / "ns" / "mnt").stat().st_ino
        except OSError:
            return None

    def own_root(self) -> str:
        """Kubelet's root among the groups, if this process is in a pod of the same kubelet."""
        data = self._read("self", "cgroup")
        roots = [root_of(path) for path in parse_memberships(data or b"")]
        return next((root for root in roots if root and ".." not in root), "")

    def _all(self) -> Iterator[int]:
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._proc):
                if entry.name.isdecimal():
                    yield int(entry.name)

    def _read(self, pid: int | str, name: str) -> bytes | None:
        try:
            return (self._proc / str(pid) / name).read_bytes()
        except OSError:
            return None


class CgroupTree:
    """The groups' directories: one hierarchy with v2, several with v1. `naming` None: kubelet's way is not known."""

    def __init__(
        self, root: Path = Path("/sys/fs/cgroup"), *, naming: Naming | None = None, kubelet_root: str = ""
    ) -> None:
        self._root = root
        self._naming = naming
        self._kubelet_root = kubelet_root

    def directory(self, path: str) -> Path | None:
        """Of a group whose path is known from one of its processes."""
        return self._existing((path,))

    def find(self, pod: PodUid, container_id: str) -> Path | None:
        """Of a container whose names alone are known."""
        paths = paths_of(pod, container_id, self._naming)
        return self._existing([f"{root}{path}" for root in dict.fromkeys((self._kubelet_root, "")) for path in paths])

    def members(self, directory: Path) -> Members | None:
        """Sorted; None where the group has gone, and with it every process in it."""
        if not _is_directory(directory):
            return None
        found: set[int] = set()
        for each in _groups(directory):
            with contextlib.suppress(OSError, ValueError):
                found.update(map(int, (each / "cgroup.procs").read_bytes().split()))
            if len(found) > _MOST_PIDS:
                break
        return Members(tuple(sorted(found - {0})), complete=0 not in found)

    def _existing(self, paths: tuple[str, ...] | list[str]) -> Path | None:
        for hierarchy in self._hierarchies():
            for path in paths:
                directory = hierarchy / path.lstrip("/")
                if ".." not in path and _is_directory(directory):
                    return directory
        return None

    def _hierarchies(self) -> Iterator[Path]:
        if (self._root / "cgroup.controllers").exists():
            yield self._root
            return
        for name in (*_CONTROLLERS, "unified"):
            if (self._root / name).is_dir():
                yield self._root / name


def inner_pid(status: bytes) -> int:
    """The PID in the innermost namespace, from /proc/PID/status; ValueError where it does not say."""
    for line in status.split(b"\n"):
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    raise ValueError("no NSpid")


def start_time(stat: bytes) -> int:
    """Field 22 of /proc/PID/stat, else ValueError; field 2, a name, may hold anything, brackets and blanks included."""
    fields = stat[stat.rindex(b")") + 2 :].split()
    if len(fields) < 20:
        raise ValueError("no field 22")
    return int(fields[19])


def _is_directory(path: Path) -> bool:
    """False also for a name that is too long for one."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _groups(directory: Path) -> Iterator[Path]:
    """The directory and all below, a bounded number; a directory with two links has none below."""
    waiting = [directory]
    for _ in range(_MOST_GROUPS):
        if not waiting:
            return
        each = waiting.pop()
        yield each
        with contextlib.suppress(OSError):
            if each.stat().st_nlink != 2:
                waiting += [Path(entry.path) for entry in os.scandir(each) if entry.is_dir(follow_symlinks=False)]
