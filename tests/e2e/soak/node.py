"""The node of a soak: our agent and our scheduler on the cluster, with disks that can be filled.

In: the cluster, further flags of the agent. Out: a `Node` whose programs all run. Not here: what is done to it.
The agent runs in the mount namespace of kubelet and containerd, where two small file systems lie below its journal
and below its grants: both sides see the same files there, which need not be so across namespaces.
Invariant: leaving the context ends the programs and takes the file systems away.
"""

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.control_plane import Component
from sandbox.cluster.identities import Identity
from sandbox.cluster.processes import Process, run
from sandbox.cluster.schedulers import scheduler_with
from sandbox.emulated_gpus import EmulatedGpus
from tests.e2e.node.agent import Agent, make_agent
from tests.e2e.node.scene import everything, wait_ledger_empty, wait_offered
from tests.e2e.scheduling.installation import NAME, VcudaScheduler, installed
from tests.e2e.scheduling.world import profile_of
from tests.offered import blocks_of_each

FLAGS = ("--health-recovery=10s", "--virtual-manager-tmpfs=true")
"""A GPU that comes back is used again before the soak is over; and as in the chart, the grants lie on a tmpfs."""
JOURNAL_SIZE, GRANTS_SIZE = "8m", "64m"


@dataclass(frozen=True, slots=True)
class Node:
    """Everything that faults are done to. The two folders are as this process sees them."""

    cluster: Cluster
    agent: Agent
    scheduler: VcudaScheduler
    kube_scheduler: Component
    journal: Path
    grants: Path
    mounts: Path
    """The mount table of the namespace in which containers are started."""

    @property
    def programs(self) -> dict[str, Process]:
        plane = self.cluster.control_plane
        return {
            "agent": self.agent.process,
            "scheduler": self.scheduler.process,
            "kube-scheduler": self.kube_scheduler.process,
            "kubelet": self.cluster.kubelet.process,
            "containerd": self.cluster.containerd.process,
            "API server": plane.api_server.process,
            "controller manager": plane.controller_manager.process,
        }

    @property
    def kubelet_checkpoint(self) -> Path:
        return self.cluster.layout.device_plugins / "kubelet_internal_checkpoint"


@contextmanager
def running_node(cluster: Cluster, *flags: str) -> Iterator[Node]:
    """`flags` are further ones of the agent."""
    folder = cluster.layout.root / f"soak-{secrets.token_hex(3)}"
    with ExitStack() as stack:
        folder.mkdir()
        stack.callback(shutil.rmtree, folder)
        ours = stack.enter_context(installed(cluster.control_plane, folder))
        agent = _agent(cluster, folder / "node", flags, stack)
        ours.start()
        kube_scheduler = scheduler_with(cluster.control_plane, NAME, ours.address())
        stack.callback(kube_scheduler.kill)
        kube_scheduler.start()
        seen = _seen_from_here(cluster, folder / "node")
        mounts = _holder(cluster) / "mounts"
        yield Node(cluster, agent, ours, kube_scheduler, seen / "checkpoint", seen / "vm", mounts)


@contextmanager
def spinning(cluster: Cluster, count: int) -> Iterator[None]:
    """So many processes that use a core each."""
    command = ClusterCgroup(cluster.layout.name).joining(["/bin/sh", "-c", "while :; do :; done"])
    with ExitStack() as stack:
        for number in range(count):
            each = Process(f"spinning process {number}", command, cluster.layout.logs / "spinning.log")
            stack.callback(each.kill)
            each.start()
        yield


def _agent(cluster: Cluster, folder: Path, flags: Sequence[str], stack: ExitStack) -> Agent:
    (folder / "gpus").mkdir(parents=True)
    for name, size, mode in (("checkpoint", JOURNAL_SIZE, "0700"), ("vm", GRANTS_SIZE, "0755")):
        _mount(cluster, folder / name, size, mode, stack)
    gpus = EmulatedGpus(profile_of(folder, cluster.kubelet.node), folder / "gpus" / "state")
    agent = make_agent(cluster, folder, gpus, Identity(cluster.admin, "vcuda-agent"), *FLAGS, *flags)
    agent.process.command = [*_entering(cluster), *agent.process.command]
    agent = replace(agent, grants=_seen_from_here(cluster, agent.grants))
    stack.callback(agent.process.stop)
    agent.start()
    wait_offered(cluster.admin, everything(blocks_of_each(gpus.profile)))
    wait_ledger_empty(agent)
    return agent


def _mount(cluster: Cluster, folder: Path, size: str, mode: str, stack: ExitStack) -> None:
    folder.mkdir()
    mount = [*_entering(cluster), "mount", "-t", "tmpfs", "-o", f"size={size},mode={mode}", "soak", str(folder)]
    run(mount, doing="mounting a small file system")
    unmount = [*_entering(cluster), "umount", "--lazy", "--recursive", str(folder)]
    stack.callback(run, unmount, doing="unmounting it")


def _entering(cluster: Cluster) -> list[str]:
    return ["nsenter", f"--mount={_holder(cluster) / 'ns/mnt'}", "--"]


def _holder(cluster: Cluster) -> Path:
    """The folder in `/proc` of the process that keeps the namespace alive: kubelet's command enters it there."""
    where = next(word for word in cluster.kubelet.process.command if word.startswith("--mount=/proc/"))
    return Path(where.removeprefix("--mount=")).parents[1]


def _seen_from_here(cluster: Cluster, path: Path) -> Path:
    return _holder(cluster) / "root" / path.relative_to("/")
