"""containerd of our own, beside any that the machine runs.

In: its programs, the layout, the mount namespace and the cgroup to run in. Out: a process and its socket.
Not here: how images are made (`images`).
Invariant: it keeps everything under its own root and state; what is hard-coded elsewhere the mount namespace covers.
"""

from dataclasses import dataclass
from pathlib import Path

from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.layout import Layout
from sandbox.cluster.namespace import MountNamespace
from sandbox.cluster.processes import SEARCH_PATH, Process, run
from sandbox.cluster.waiting import HarnessError, wait_until

# restrict_oom_score_adj: without CAP_SYS_RESOURCE runc dies of a negative oom_score_adj.
# netns_mounts_under_state_dir: /run/netns belongs to the machine.
CONFIGURATION = """
version = 3
root = "{folder}/root"
state = "{folder}/state"
oom_score = 0
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi", "{cdi}"]
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{cni}"
[plugins."io.containerd.grpc.v1.cri"]
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
"""


@dataclass(frozen=True, slots=True)
class Containerd:
    """The container runtime and its command-line client, which lie in `programs`."""

    layout: Layout
    programs: Path
    process: Process

    def start(self) -> None:
        self.process.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        wait_until(self._answers, "containerd answers", evidence=self.process.log_tail)

    def ctr(self, *arguments: str, stdin: bytes | None = None, doing: str) -> str:
        server = ["--address", str(self.layout.containerd_socket), "--namespace", "k8s.io"]
        return run([str(self.programs / "ctr"), *server, *arguments], doing=doing, stdin=stdin)

    def _answers(self) -> bool:
        self.process.require_running()
        try:
            return " ok" in self.ctr("plugins", "ls", "id==cri", doing="asking for its CRI plugin")
        except HarnessError:
            return False


def make_containerd(
    layout: Layout, programs: Path, cgroup: ClusterCgroup, namespace: MountNamespace, *, pause: str
) -> Containerd:
    layout.containerd.mkdir(parents=True, exist_ok=True)
    configuration = layout.containerd / "config.toml"
    configuration.write_text(
        CONFIGURATION.format(
            folder=layout.containerd, socket=layout.containerd_socket, pause=pause, cni=layout.cni, cdi=layout.cdi
        ).lstrip()
    )
    command = cgroup.joining(namespace.entering([str(programs / "containerd"), "--config", str(configuration)]))
    own_shim_first = {"PATH": f"{programs}:{SEARCH_PATH}"}
    process = Process("containerd", command, layout.logs / "containerd.log", own_shim_first)
    return Containerd(layout, programs, process)
