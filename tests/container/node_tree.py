"""A node's /proc and /sys/fs/cgroup in a directory, with processes put in by hand.

In: groups and processes. Out: files as the kernel shows them, as far as the agent reads them. A namespace is a file
whose inode stands for it, as behind /proc/PID/ns/pid.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class NodeTree:
    """`is_unified`: cgroup v2; otherwise v1 with two controllers."""

    root: Path
    is_unified: bool = True
    _groups: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.proc.mkdir(parents=True)
        for hierarchy in self._hierarchies():
            hierarchy.mkdir(parents=True)
        if self.is_unified:
            (self.cgroup / "cgroup.controllers").write_text("cpu memory pids\n")

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    @property
    def cgroup(self) -> Path:
        return self.root / "cgroup"

    def namespace(self, name: str) -> int:
        """The inode of a pid namespace."""
        file = self.root / f"ns-{name}"
        file.touch()
        return file.stat().st_ino

    def start(
        self,
        pid: int,
        group: str,
        *,
        inner: int | None = None,
        namespace: str = "c",
        born: int = 100,
        mounted: str = "/",
        at: str = "/etc/vcuda",
        device: str = "0:40",
    ) -> None:
        """A process; its own pid namespace calls it `inner`. `mounted`: a directory of the node that it sees."""
        here = self.proc / str(pid)
        (here / "ns").mkdir(parents=True)
        self.namespace(namespace)
        (here / "ns" / "pid").symlink_to(self.root / f"ns-{namespace}")
        levels = f"{pid}\t{inner}" if inner is not None else f"{pid}"
        (here / "status").write_text(f"Name:\tpython\nPid:\t{pid}\nNSpid:\t{levels}\nThreads:\t1\n")
        fields = ["S", *["0"] * 18, str(born), *["0"] * 10]
        (here / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")
        (here / "cgroup").write_text(self._membership(group))
        (here / "mountinfo").write_text(f"36 35 {device} {mounted} {at} ro,nosuid - tmpfs vcuda rw\n")
        self._groups[pid] = group
        self._write(group)

    def end(self, pid: int) -> None:
        group = self._groups.pop(pid)
        shutil.rmtree(self.proc / str(pid))
        self._write(group)

    def remove(self, group: str) -> None:
        """The whole container is gone."""
        for pid in [pid for pid, where in self._groups.items() if where == group]:
            self.end(pid)
        for hierarchy in self._hierarchies():
            shutil.rmtree(hierarchy / group.lstrip("/"))

    def _write(self, group: str) -> None:
        listed = "".join(f"{pid}\n" for pid, where in self._groups.items() if where == group)
        for hierarchy in self._hierarchies():
            directory = hierarchy / group.lstrip("/")
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "cgroup.procs").write_text(listed)

    def _hierarchies(self) -> list[Path]:
        return [self.cgroup] if self.is_unified else [self.cgroup / "memory", self.cgroup / "pids"]

    def _membership(self, group: str) -> str:
        if self.is_unified:
            return f"0::{group}\n"
        return f"12:memory:{group}\n11:pids:{group}\n1:name=systemd:{group}\n0::/\n"
