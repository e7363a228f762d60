"""The cgroup under which all processes of one cluster live, on cgroup v1, hybrid and v2 alike.

In: the cluster's name. Out: a cgroup of that name in every mounted hierarchy: kubelet's `cgroupRoot`, and a leaf
`daemons` in which every program of the cluster starts, and so every shim too.
Not here: limits. Invariant: after `destroy` no process and no cgroup of that name is left.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.cluster.waiting import wait_until

V1_FILES_NEEDED_BY_TASKS = ("cpuset.mems", "cpuset.cpus")


def hierarchies() -> list[Path]:
    """Mount points of all cgroup hierarchies of this machine."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]


@dataclass(frozen=True, slots=True)
class ClusterCgroup:
    """One cluster's cgroup, by its name in each hierarchy."""

    name: str

    @property
    def kubelet_root(self) -> str:
        return f"/{self.name}"

    def create(self) -> None:
        for hierarchy in hierarchies():
            _share_controllers(hierarchy)
            (hierarchy / self.name / "daemons").mkdir(parents=True, exist_ok=True)
            for own in (hierarchy / self.name, hierarchy / self.name / "daemons"):
                for needed in V1_FILES_NEEDED_BY_TASKS:
                    if not _is_v2(hierarchy) and (own / needed).exists():
                        (own / needed).write_text((own.parent / needed).read_text())

    def joining(self, command: list[str]) -> list[str]:
        """The same command, run inside the leaf `daemons` so that all its descendants can be found again."""
        members = [str(path / "daemons" / "cgroup.procs") for path in self._present()]
        script = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 1; shift; done; shift; exec "$@"'
        return ["/bin/sh", "-c", script, "join", *members, "--", *command]

    def pids(self) -> set[int]:
        found: set[int] = set()
        for path in self._present():
            for folder, _, _ in os.walk(path):
                found.update(_read_pids(Path(folder) / "cgroup.procs"))
        return found - {os.getpid()}

    def destroy(self) -> None:
        wait_until(self._killed, f"the processes in cgroup {self.name} die")
        wait_until(self._removed, f"cgroup {self.name} goes")

    def _present(self) -> list[Path]:
        return [path for path in (hierarchy / self.name for hierarchy in hierarchies()) if path.exists()]

    def _killed(self) -> bool:
        left = self.pids()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not left

    def _removed(self) -> bool:
        for path in self._present():
            for inner in _deepest_first(path):
                try:
                    inner.rmdir()
                except OSError:
                    return False
        return True


def _is_v2(hierarchy: Path) -> bool:
    return (hierarchy / "cgroup.controllers").exists()


def _share_controllers(hierarchy: Path) -> None:
    if not _is_v2(hierarchy):
        return
    for controller in (hierarchy / "cgroup.controllers").read_text().split():
        try:
            (hierarchy / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError:
            continue  # kubelet names what it lacks better than we could


def _read_pids(members: Path) -> Iterator[int]:
    try:
        yield from (int(line) for line in members.read_text().split())
    except OSError:
        return  # the cgroup went away while we looked


def _deepest_first(path: Path) -> list[Path]:
    inner = [Path(folder) for folder, _, _ in os.walk(path, topdown=False)]
    return inner or [path]
