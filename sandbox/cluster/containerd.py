"""containerd of our own, beside any that the machine runs.

In: the layout, the mount namespace and the cgroup to run in. Out: a process and its socket.
Not here: how images are made (`images`).
Invariant: it keeps everything under its own root and state; what is hard-coded elsewhere the mount namespace covers.
"""

from dataclasses import dataclass
from shutil import which

from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.layout import Layout
from sandbox.cluster.namespace import MountNamespace
from sandbox.cluster.processes import SEARCH_PATH, Process, run
from sandbox.cluster.waiting import HarnessError, wait_until

# restrict_oom_score_adj: without CAP_SYS_RESOURCE runc dies of a negative oom_score_adj.
# netns_mounts_under_state_dir: /run/netns belongs to the machine.
CONFIGURATION = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
oom_score = 0
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
"""


@dataclass(frozen=True, slots=True)
class Containerd:
    """The container runtime and its command-line client."""

    layout: Layout
    process: Process

    def start(self) -> None:
        self.process.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        wait_until(self._answers, "containerd answers", evidence=self.process.log_tail)

    def ctr(self, *arguments: str, stdin: bytes | None = None, doing: str) -> str:
        command = ["ctr", "--address", str(self.layout.containerd_socket), "--namespace", "k8s.io", *arguments]
        return run(command, doing=doing, stdin=stdin)

    def _answers(self) -> bool:
        self.process.require_running()
        try:
            return " ok" in self.ctr("plugins", "ls", "id==cri", doing="asking containerd for its CRI plugin")
        except HarnessError:
            return False


def make_containerd(layout: Layout, cgroup: ClusterCgroup, namespace: MountNamespace, *, pause: str) -> Containerd:
    layout.containerd.mkdir(parents=True, exist_ok=True)
    configuration = layout.containerd / "config.toml"
    configuration.write_text(
        CONFIGURATION.format(
            folder=layout.containerd, socket=layout.containerd_socket, pause=pause, cni=layout.cni
        ).lstrip()
    )
    program = which("containerd", path=SEARCH_PATH) or "containerd"
    command = cgroup.joining(namespace.entering([program, "--config", str(configuration)]))
    return Containerd(layout, Process("containerd", command, layout.logs / "containerd.log"))
