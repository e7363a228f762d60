"""Processes of containers, as the kernel shows them: in /proc, in control groups, and by what they have mounted.

In: PIDs as this process sees them (the agent runs in the host's pid namespace); a pod's UID and a container's id. Out:
frozen facts, or None for what cannot be read: a process may end between any two lines, and a line that is not
understood is left out. Nothing is cached and nothing raises. Not here: which container belongs to which grant
(`containers`).

Control groups are known by kubelet's names for them:

    cgroupfs   kubepods/[burstable|besteffort]/pod<UID>/<id>                              cri-o: crio-<id>
    systemd    kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<UID with _>.slice/<runtime>-<id>.scope

                                                                      ... where the runtime does not use systemd:
             [<the runtime's service>/]kubepods-burstable-pod<UID with _>.slice:<runtime>:<id>

below any root (kind, --cgroup-root), in one hierarchy (v2) or many (v1). A container may make groups below its own and
name them freely, so the outermost pod in a path counts. Other ways of naming exist (`cgroupsPerQOS: false`), so a name
that is not understood proves nothing: whether a container runs is proved by what it has mounted, and where it is, by
its id (`group_with`).

A mount (/proc/PID/mountinfo, proc_pid_mountinfo(5)) is identified by its file system's number and the directory of that
file system which it shows: nobody without rights on the node can make a mount that shows a directory of somebody else,
whatever its name.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from deviceplugin.model.allocation import PodUid


class ContainerGroup(msgspec.Struct, frozen=True):
    """A container's group: whose it is, and its path from the root of the hierarchy."""

    pod: PodUid
    container_id: str
    path: str


_MOST_BYTES = 64 << 10
_MOST_LINES = 64
_UID = r"(?P<uid>[0-9a-zA-Z][0-9a-zA-Z_-]{3,127})"
_CGROUPFS_POD = re.compile(rf"pod{_UID}")
_SYSTEMD_POD = re.compile(rf"(?:[\w.-]+-)?kubepods(?:-burstable|-besteffort)?-pod{_UID}\.slice")
_ID = re.compile(r"(?:(?:cri-containerd|crio|docker|libpod)-)?(?P<id>[0-9a-zA-Z][0-9a-zA-Z_.-]{7,127}?)(?:\.scope)?")
_SYSTEMD_BY_RUNTIME = re.compile(r"(?P<slice>[^:]+):[\w-]+:(?P<id>[0-9a-zA-Z][0-9a-zA-Z_.-]{7,127})")
_SHORTEST_ID = 12
_QOS = ("", "burstable", "besteffort")
_RUNTIMES = ("cri-containerd", "crio", "docker")


def parse_memberships(data: bytes) -> tuple[str, ...]:
    """The paths; a name with a newline cannot exist, one that is no UTF-8 is kept as it is."""
    found = []
    for line in data[:_MOST_BYTES].split(b"\n")[:_MOST_LINES]:
        number, _, rest = line.partition(b":")
        _controllers, _, path = rest.partition(b":")
        if number.isdigit() and path.startswith(b"/"):
            found.append(path.decode(errors="surrogateescape"))
    return tuple(found)


def container_of(paths: tuple[str, ...]) -> ContainerGroup | None:
    """The container that a process in these groups is in; None for one that is in no pod's container."""
    return next((found for path in paths if (found := container_in(path)) is not None), None)


def container_in(path: str) -> ContainerGroup | None:
    """The container whose group, or a group below, has this path."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if (found := _SYSTEMD_BY_RUNTIME.fullmatch(part)) and (pod := _SYSTEMD_POD.fullmatch(found["slice"])):
            return ContainerGroup(PodUid(pod["uid"].replace("_", "-")), found["id"], "/".join(parts[: index + 1]))
        if index + 1 == len(parts):
            break
        uid = _pod(part, below=parts[max(0, index - 2) : index])
        if uid is None:
            continue
        container = _ID.fullmatch(parts[index + 1])
        if container is None or parts[index + 1].endswith(".slice"):
            return None
        return ContainerGroup(uid, container["id"], "/".join(parts[: index + 2]))
    return None


def group_with(paths: tuple[str, ...], container_id: str) -> str:
    """The path of the outermost group that has this id in its name, as every runtime gives it; empty if none has."""
    if len(container_id) < _SHORTEST_ID:
        return ""
    for path in paths:
        parts = path.split("/")
        for index, part in enumerate(parts):
            if container_id in part:
                return "/".join(parts[: index + 1])
    return ""


def paths_of(pod: PodUid, container_id: str) -> tuple[str, ...]:
    """Where kubelet may have put a container's group, by either --cgroup-driver, from the root of a hierarchy."""
    pods = ["/".join(filter(None, ("/kubepods", qos, f"pod{pod}"))) for qos in _QOS]
    return (
        *(_systemd_path(pod, qos, f"{runtime}-{container_id}") for qos in _QOS for runtime in _RUNTIMES),
        *(f"{each}/{prefix}{container_id}" for each in pods for prefix in ("", "crio-")),
    )


def root_of(path: str) -> str:
    """What lies before kubelet's own part of a pod's path: empty, or the nested root of this node."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if part == "kubepods" or part == "kubepods.slice" or part.endswith("-kubepods.slice"):
            return "/".join(parts[:index])
    return ""


def _pod(part: str, *, below: list[str]) -> PodUid | None:
    if found := _SYSTEMD_POD.fullmatch(part):
        return PodUid(found["uid"].replace("_", "-"))
    found = _CGROUPFS_POD.fullmatch(part)
    if found and below and (below[-1] == "kubepods" or (below[-1] in _QOS and below[-2:-1] == ["kubepods"])):
        return PodUid(found["uid"])
    return None


def _systemd_path(pod: PodUid, qos: str, scope: str) -> str:
    slices = ["kubepods"] + ([f"kubepods-{qos}"] if qos else [])
    slices.append(f"{slices[-1]}-pod{pod.replace('-', '_')}")
    return "/" + "/".join([*(f"{name}.slice" for name in slices), f"{scope}.scope"])


_ESCAPED = re.compile(r"\\([0-7]{3})")
_DELETED = "//deleted"


class MountPoint(msgspec.Struct, frozen=True):
    """`device`: the file system, `root` what of it is shown, `path` where, `type` the file system's kind.

    `shared`: what is mounted below it is seen in other mount namespaces too.
    """

    device: str
    root: str
    path: Path
    type: str
    shared: bool


def read_mounts(text: bytes) -> Iterator[MountPoint]:
    for line in text.decode(errors="surrogateescape").split("\n"):
        if (found := _parse(line)) is not None:
            yield found


def _parse(line: str) -> MountPoint | None:
    """`36 35 98:0 /root /mount options shared:1 - type source options`; the optional fields end with the hyphen."""
    before, separator, after = line.partition(" - ")
    fields, kinds = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6:
        return None
    root, path = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), field) for field in fields[3:5])
    shared = any(each.startswith("shared:") for each in fields[6:])
    return MountPoint(fields[2], root, Path(path), kinds[0], shared)


class MountedFolder(msgspec.Struct, frozen=True):
    """A directory as its file system names it, wherever it is mounted; `root` has no slash at its end."""

    device: str
    root: str

    @classmethod
    def of(cls, directory: Path, mounts: Iterable[MountPoint]) -> "MountedFolder | None":
        """By what this process sees mounted: the last of the deepest mounts above it counts."""
        above = [each for each in mounts if directory.is_relative_to(each.path)]
        if not above:
            return None
        depth = max(len(each.path.parts) for each in above)
        mount = [each for each in above if len(each.path.parts) == depth][-1]
        below = directory.relative_to(mount.path).parts
        return cls(mount.device, "/".join((mount.root.rstrip("/"), *below)))

    def child_shown(self, mount: MountPoint) -> str:
        """The name of the directory in this one of which a mount shows something, also where it was removed."""
        if mount.device != self.device or not mount.root.startswith(f"{self.root}/"):
            return ""
        return mount.root.removesuffix(_DELETED)[len(self.root) + 1 :].partition("/")[0]


_CONTROLLERS = ("memory", "pids", "cpu", "cpu,cpuacct", "devices", "systemd")
_MOST_GROUPS = 4096
_MOST_PIDS = 1 << 16


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Identifies one process: `inner` is its PID in its own pid namespace, `namespace` the inode of that namespace."""

    pid: int
    inner: int
    namespace: int
    start_time: int


class Members(msgspec.Struct, frozen=True):
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
        """Its processes see the same; None if it cannot be read."""
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
    """The groups' directories: one hierarchy with v2, several with v1."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), *, kubelet_root: str = "") -> None:
        self._root = root
        self._kubelet_root = kubelet_root

    def directory(self, path: str) -> Path | None:
        """Of a group whose path is known from one of its processes."""
        return self._existing((path,))

    def find(self, pod: PodUid, container_id: str) -> Path | None:
        """Of a container whose names alone are known."""
        paths = paths_of(pod, container_id)
        return self._existing([f"{root}{path}" for root in dict.fromkeys((self._kubelet_root, "")) for path in paths])

    def members(self, directory: Path) -> Members | None:
        """Sorted; None if the group has gone, and with it every process in it."""
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
    """The PID in the innermost namespace, from /proc/PID/status; ValueError if it does not say."""
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
