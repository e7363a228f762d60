"""One more real node on the same machine: its own containerd, kubelet, network, cgroup and mount namespace.

In: the cluster and a name. Out: the cluster as it is seen from that node, so that everything that works with a
`Cluster` works there. Kubelet 1.36 keeps its device plugins at /var/lib/kubelet whatever it is told (`layout`), so each
kubelet has a mount namespace in which that is its own folder. Two kubelets at one containerd would end each other's
pods, so each has its own.
Invariant: leaving the context removes the node and everything of it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.cluster import Cluster, import_images
from sandbox.cluster.containerd import make_containerd
from sandbox.cluster.images import PAUSE
from sandbox.cluster.kubelet import make_kubelet
from sandbox.cluster.layout import Layout
from sandbox.cluster.leftovers import remove_cluster, root_lock
from sandbox.cluster.namespace import MountNamespace
from sandbox.cluster.network import create_network


@contextmanager
def further_node(cluster: Cluster, programs: Path, name: str) -> Iterator[Cluster]:
    layout = Layout.fresh()
    with ExitStack() as undo:
        undo.enter_context(root_lock(layout.lock))
        undo.callback(remove_cluster, layout)
        undo.callback(cluster.admin.delete, f"/api/v1/nodes/{name}")
        yield _bring_up(cluster, programs, layout, name, undo)


def _bring_up(cluster: Cluster, programs: Path, layout: Layout, name: str, undo: ExitStack) -> Cluster:
    cgroup = ClusterCgroup(layout.name)
    cgroup.create()
    namespace = MountNamespace(layout, cgroup)
    namespace.create()
    undo.callback(namespace.holder.kill)
    containerd = make_containerd(layout, cluster.containerd.programs, cgroup, namespace, pause=PAUSE)
    kubelet = make_kubelet(
        layout,
        programs,
        ca=cluster.ca,
        control_plane=cluster.control_plane,
        network=create_network(layout),
        cgroup=cgroup,
        namespace=namespace,
        node=name,
    )
    undo.callback(containerd.process.kill)
    undo.callback(kubelet.process.kill)
    containerd.start()
    kubelet_began = kubelet.begin()
    import_images(containerd)
    kubelet.wait_ready(since=kubelet_began)
    return replace(cluster, layout=layout, containerd=containerd, kubelet=kubelet)
