"""The GPU containers of a cluster at one moment, seen from outside.

In: the cluster's cgroups and `/proc`. Out: `Running` values. Neither kubelet, containerd nor the agent is asked. Not
here: what must be true of them (`violations`).
Invariant: all containers of one look ran at the same moment, the one at which the last of them had been read.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.cluster.cgroups import hierarchies
from tests.e2e.node.limits import Limits, parse_limits
from tests.e2e.node.view import GRANT

_POD = re.compile(r"/pod([0-9a-f-]+)/[0-9a-f]{64}$")
_GPU = re.compile(r"nvidia[0-9]+")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Running:
    """One container: what it asked for (by its environment), and what it has. No limits: no file of the right form."""

    uid: str
    pid: int
    began: str
    pod: str
    container: str
    cores: int
    blocks: int
    gpus: tuple[str, ...]
    device_nodes: tuple[str, ...]
    grant: str
    limits: Limits | None

    @property
    def where(self) -> str:
        return f"{self.pod}/{self.container} ({self.uid[:8]})"

    @property
    def key(self) -> tuple[str, str, str]:
        """Another one after each restart."""
        return self.uid, self.container, self.began

    @property
    def has_nothing(self) -> bool:
        """Kubelet started it without any answer to Allocate."""
        return not (self.grant or self.gpus or self.device_nodes or self.limits)


def running_now(name: str) -> list[Running]:
    """`name` is that of the cluster's cgroup."""
    found = [each for uid, pid in _first_processes(name) if (each := read(uid, pid)) is not None]
    return [each for each in found if _is_alive(each)]


def pod_cgroups(name: str) -> set[str]:
    """UIDs of the pods for which there is a cgroup."""
    found = set()
    for root in _roots(name):
        for folder, _, _ in os.walk(root):
            if match := re.search(r"/pod([0-9a-f-]+)$", folder):
                found.add(match[1])
    return found


def _roots(name: str) -> list[Path]:
    return [root for each in hierarchies() if (root := each / name / "kubepods").exists()]


def _first_processes(name: str) -> Iterator[tuple[str, int]]:
    """Of each container the first process, from one hierarchy: all have the same containers."""
    for folder, _, _ in os.walk(_roots(name)[0]) if _roots(name) else ():
        match = _POD.search(folder)
        if match:
            try:
                pids = (Path(folder) / "cgroup.procs").read_text().split()
            except OSError:
                continue  # it has ended
            if pids:
                yield match[1], int(pids[0])


def read(uid: str, pid: int) -> Running | None:
    """None if it is no GPU container, not yet one (runc prepares it), or has ended."""
    process = PROC / str(pid)
    try:
        began = _start_time(pid)
        environment = _environment(process)
        if "SOAK_CONTAINER" not in environment:
            return None
        mounts = {fields[4]: fields[3] for fields in map(str.split, (process / "mountinfo").read_text().splitlines())}
        visible = environment.get("NVIDIA_VISIBLE_DEVICES", "")
        return Running(
            uid=uid,
            pid=pid,
            began=began,
            pod=environment["SOAK_POD"],
            container=environment["SOAK_CONTAINER"],
            cores=int(environment["SOAK_CORES"]),
            blocks=int(environment["SOAK_BLOCKS"]),
            gpus=tuple(sorted(visible.split(","))) if visible else (),
            device_nodes=_device_nodes(process / "root/dev"),
            grant=Path(mounts.get(GRANT, "")).name,
            limits=_limits(process / "root" / GRANT.strip("/") / "vcuda.config"),
        )
    except (OSError, KeyError):
        return None


def _environment(process: Path) -> dict[str, str]:
    entries = (process / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _device_nodes(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir() if _GPU.fullmatch(path.name)))


def _limits(file: Path) -> Limits | None:
    try:
        return parse_limits(file.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _start_time(pid: int) -> str:
    return _fields(pid)[19]


def _is_alive(each: Running) -> bool:
    try:
        fields = _fields(each.pid)
    except OSError:
        return False
    return fields[19] == each.began and fields[0] != "Z"


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat, after the name, which may contain spaces."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
