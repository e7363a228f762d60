"""kubelet: the node.

In: the layout, the programs, the pods' network, the container runtime's socket. Out: a process that can be stopped,
killed and started while its pods run on, and the node's readiness as the API server sees it.
Not here: where kubelet keeps its sockets (`layout`).
Invariant: authorisation decisions are cached for a moment only, so that a permission taken away is gone at once.
"""

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path

from sandbox.cluster.certificates import ClusterCa
from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.control_plane import ControlPlane
from sandbox.cluster.kubeconfig import write_kubeconfig
from sandbox.cluster.layout import Layout
from sandbox.cluster.namespace import MountNamespace
from sandbox.cluster.network import PodNetwork
from sandbox.cluster.processes import Process, free_ports
from sandbox.cluster.waiting import wait_until

NODE = "vcuda-node"
PORT = 10250  # as everywhere; the node's address is the cluster's own, so it is free
MOST_PODS = 300
ALMOST_NOTHING = "1%"


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The kubelet process, its HTTPS address and its node."""

    process: Process
    url: str
    admin: Client
    node: str = NODE

    def start(self) -> None:
        """Returns when kubelet has said Ready since this start, not merely before it."""
        self.wait_ready(since=self.begin())

    def begin(self) -> dt.datetime:
        """Returns at once; what it returns is for `wait_ready`."""
        began = dt.datetime.now(dt.UTC).replace(microsecond=0)  # heartbeats have whole seconds
        self.process.start()
        return began

    def wait_ready(self, *, since: dt.datetime) -> None:
        wait_until(
            lambda: self._ready_since(since),
            f"node {self.node} is Ready",
            evidence=self.process.log_tail,
        )

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def _ready_since(self, began: dt.datetime) -> bool:
        self.process.require_running()
        try:
            status = self.admin.get(f"/api/v1/nodes/{self.node}")["status"]
        except ApiError:
            return False
        return any(
            each["type"] == "Ready"
            and each["status"] == "True"
            and dt.datetime.fromisoformat(each["lastHeartbeatTime"]) > began
            for each in status.get("conditions", [])
        )


def make_kubelet(
    layout: Layout,
    programs: Path,
    *,
    ca: ClusterCa,
    control_plane: ControlPlane,
    network: PodNetwork,
    cgroup: ClusterCgroup,
    namespace: MountNamespace,
    node: str = NODE,
) -> Kubelet:
    (healthz_port,) = free_ports(1)
    identity = ca.issue(f"kubelet-{node}", common_name=f"system:node:{node}", organization="system:nodes")
    kubeconfig = write_kubeconfig(
        layout.root / "kubelet.kubeconfig",
        server=control_plane.server,
        ca=ca.certificate,
        identity=identity,
    )
    document = _configuration(layout, ca, network, cgroup, node)
    document.update(port=PORT, healthzPort=healthz_port)
    configuration = layout.root / "kubelet.json"
    configuration.write_text(json.dumps(document, indent=2))
    flags = [
        f"--config={configuration}",
        f"--kubeconfig={kubeconfig}",
        f"--root-dir={layout.kubelet}",
        f"--hostname-override={node}",
        f"--node-ip={network.node_address}",
    ]
    command = cgroup.joining(namespace.entering([str(programs / "kubelet"), *flags]))
    process = Process("kubelet", command, layout.logs / "kubelet.log")
    return Kubelet(process, f"https://{network.node_address}:{PORT}", control_plane.admin, node)


def _configuration(
    layout: Layout, ca: ClusterCa, network: PodNetwork, cgroup: ClusterCgroup, node: str
) -> dict[str, object]:
    serving = ca.issue(
        f"kubelet-serving-{node}",
        common_name=f"system:node:{node}",
        organization="system:nodes",
        names=[node, network.node_address],
    )
    layout.static_pods.mkdir(parents=True, exist_ok=True)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node_address,
        "healthzBindAddress": "127.0.0.1",
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": "1s"},
            "x509": {"clientCAFile": str(ca.certificate)},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "1s", "cacheUnauthorizedTTL": "1s"},
        },
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup.kubelet_root,
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "maxPods": MOST_PODS,
        "nodeStatusUpdateFrequency": "1s",  # capacity is awaited by many tests
        "oomScoreAdj": 0,
        "podLogsDir": str(layout.root / "pod-logs"),
        "volumePluginDir": str(layout.root / "volume-plugins"),
        "staticPodPath": str(layout.static_pods),
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": ALMOST_NOTHING,
            "nodefs.inodesFree": ALMOST_NOTHING,
            "imagefs.available": ALMOST_NOTHING,
        },
    }
