"""The mount namespace in which containerd and kubelet run.

In: the folders of this machine that those two write to whatever they are told (`COVERED`). Out: `entering(command)`.
Not here: the programs.
Folders that this machine lacks are made and stay, empty: Linux takes away the bind mounts of all other namespaces
when a folder is removed, and so those of another cluster on this machine.
Invariant: a mount made by containerd or kubelet is never visible outside, so none can be left over; mounts made outside
(by the agent, say) are visible inside, because the namespace is a slave of the machine's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.layout import Layout
from sandbox.cluster.processes import Process
from sandbox.cluster.waiting import wait_until

COVERED = (
    "/run/cdi",  # where containerd looks for devices of CDI, as /var/run/cdi
    "/run/containerd",  # shim sockets and runc's state: hard-coded in the shim
    "/var/lib/cni",  # libcni's result cache
    "/var/log/containers",  # kubelet's links to pod logs
    "/opt/containerd",
    "/usr/libexec/kubernetes",
    "/etc/gpu-manager",  # what the chart's DaemonSet keeps on a node
    "/run/vcuda",
)
KUBELET_HOME = "/var/lib/kubelet"

HOLD = """
mount --make-rshared /
while [ $# -gt 0 ]; do mount --bind "$1" "$2" || exit 1; shift 2; done
echo held
exec sleep infinity
"""


@dataclass(slots=True)
class MountNamespace:
    """A mount namespace kept alive by one sleeping process."""

    layout: Layout
    cgroup: ClusterCgroup
    holder: Process = field(init=False)

    def __post_init__(self) -> None:
        binds = [str(path) for pair in self._covers().items() for path in pair]
        unshare = ["unshare", "--mount", "--propagation", "slave", "/bin/sh", "-ec", HOLD, "hold", *binds]
        self.holder = Process("the mount namespace", self.cgroup.joining(unshare), self.layout.logs / "namespace.log")

    def create(self) -> None:
        for source, target in self._covers().items():
            source.mkdir(parents=True, exist_ok=True)
            target.mkdir(parents=True, exist_ok=True)
        self.holder.start()
        wait_until(self._held, "the mount namespace is ready", evidence=self.holder.log_tail)

    def entering(self, command: list[str]) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--", *command]

    def _held(self) -> bool:
        self.holder.require_running()
        return self.holder.log_tail(1).endswith("held")

    def _covers(self) -> Mapping[Path, Path]:
        covers = {self.layout.covers / target.strip("/").replace("/", "-"): Path(target) for target in COVERED}
        return {**covers, self.layout.kubelet: Path(KUBELET_HOME)}
