"""`vcuda agent` as a process on the cluster's node.

In: the cluster, a folder of the agent's own, emulated GPUs, an identity, flags. Out: the process and its address. Not
here: starting it, and what it answers. Invariant: journal, grants, driver mirror and device nodes lie in the folder.
"""

import sys
from pathlib import Path

from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.device_nodes import make_device_nodes
from sandbox.cluster.identities import Identity
from sandbox.cluster.processes import Process, free_ports
from sandbox.emulated_gpus import INTERPOSERS, EmulatedGpus

PROGRAM = Path(sys.executable).with_name("vcuda")
GRANTS = "vm"


def agent_process(
    cluster: Cluster, folder: Path, gpus: EmulatedGpus, identity: Identity, *flags: str
) -> tuple[Process, str]:
    (port,) = free_ports(1)
    driver = gpus.install(folder / "driver")
    devices = make_device_nodes(folder / "node", len(gpus.minors()))
    kubeconfig = identity.kubeconfig(
        folder / "kubeconfig",
        server=cluster.control_plane.server,
        ca=cluster.ca.certificate,
        node=cluster.kubelet.node,
    )
    command = [
        str(PROGRAM),
        "agent",
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={cluster.kubelet.node}",
        f"--device-plugin-path={cluster.layout.device_plugins}",
        f"--kubelet-root={cluster.layout.kubelet}",
        f"--kubelet-pods-endpoint={cluster.kubelet.url}/pods",
        f"--kubelet-ca-file={cluster.ca.certificate}",
        f"--virtual-manager-path={folder / GRANTS}",
        f"--checkpoint-path={folder / 'checkpoint'}",
        f"--driver-mirror-path={folder / 'vdriver'}",
        f"--driver-root={driver.path}",
        f"--driver-version-file={driver.version_file}",
        f"--library-path={INTERPOSERS}",
        f"--device-root={devices}",
        f"--container-runtime-endpoint={cluster.layout.containerd_socket}",
        f"--display-socket={folder / 'display.sock'}",
        "--share-mode=true",
        "--query-addr=127.0.0.1",
        f"--query-port={port}",
        *flags,
    ]
    environment = {**gpus.environment, "VCUDA_DEBUG": "1"}
    joined = ClusterCgroup(cluster.layout.name).joining(command)
    process = Process("vcuda agent", joined, cluster.layout.logs / f"agent-{folder.name}.log", environment)
    return process, f"http://127.0.0.1:{port}"
