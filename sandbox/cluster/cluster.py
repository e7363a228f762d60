"""The cluster: all its parts, brought up in order and taken down again.

In: the folders of the Kubernetes programs and of containerd's. Out: a running single-node cluster whose parts tests may
end and start.
Not here: how each part works.
Invariant: whatever happens while it comes up or runs, leaving the context removes everything.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.cluster.certificates import ClusterCa
from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.client import Client
from sandbox.cluster.containerd import Containerd, make_containerd
from sandbox.cluster.control_plane import ControlPlane, Etcd, make_control_plane, make_etcd
from sandbox.cluster.images import PAUSE, busybox_image, pause_image
from sandbox.cluster.kubelet import Kubelet, make_kubelet
from sandbox.cluster.layout import PREFIX, Layout
from sandbox.cluster.leftovers import remove_abandoned_clusters, remove_cluster, root_lock, turn
from sandbox.cluster.namespace import MountNamespace
from sandbox.cluster.network import create_network
from sandbox.cluster.sysctls import remember_sysctls
from sandbox.cluster.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Cluster:
    """One running Kubernetes."""

    layout: Layout
    ca: ClusterCa
    etcd: Etcd
    control_plane: ControlPlane
    containerd: Containerd
    kubelet: Kubelet

    @property
    def admin(self) -> Client:
        return self.control_plane.admin


@contextmanager
def running_cluster(programs: Path, containerd: Path) -> Iterator[Cluster]:
    layout = Layout.fresh()
    with ExitStack() as undo, ExitStack() as begin:
        begin.enter_context(turn())
        remove_abandoned_clusters()
        undo.enter_context(root_lock(layout.lock))
        undo.callback(remove_cluster, layout)
        if "VCUDA_E2E_KEEP_LOGS" in os.environ:
            undo.callback(_keep_logs, layout, Path(os.environ["VCUDA_E2E_KEEP_LOGS"]))
        yield _bring_up(layout, programs, containerd, undo, begin)


@contextmanager
def running_control_plane(programs: Path) -> Iterator[ControlPlane]:
    """etcd and the three programs without any node: for objects, and for nodes that are only objects."""
    layout = Layout.fresh()
    with ExitStack() as undo:
        with turn():
            remove_abandoned_clusters()
            undo.enter_context(root_lock(layout.lock))
        undo.callback(remove_cluster, layout)
        ca = ClusterCa(layout.certificates)
        cgroup = ClusterCgroup(layout.name)
        cgroup.create()
        etcd = make_etcd(layout, cgroup)
        control_plane = make_control_plane(layout, programs, ca=ca, cgroup=cgroup, etcd_url=etcd.url)
        undo.callback(etcd.process.kill)
        for component in control_plane.components:
            undo.callback(component.process.kill)
            undo.callback(component.client.close)
        undo.callback(control_plane.admin.close)
        etcd.start()
        _start_control_plane(control_plane)
        wait_until(lambda: _has_default_account(control_plane.admin), "namespace default has its account")
        yield control_plane


def _bring_up(layout: Layout, programs: Path, runtime: Path, undo: ExitStack, begin: ExitStack) -> Cluster:
    """`begin` is left when nothing more is shared with other clusters."""
    remember_sysctls(layout.sysctls, list(Path("/tmp").glob(f"{PREFIX}*/sysctls.json")))
    ca = ClusterCa(layout.certificates)
    cgroup = ClusterCgroup(layout.name)
    cgroup.create()
    namespace = MountNamespace(layout, cgroup)
    namespace.create()
    undo.callback(namespace.holder.kill)
    network = create_network(layout)
    begin.close()
    etcd = make_etcd(layout, cgroup)
    control_plane = make_control_plane(layout, programs, ca=ca, cgroup=cgroup, etcd_url=etcd.url)
    containerd = make_containerd(layout, runtime, cgroup, namespace, pause=PAUSE)
    kubelet = make_kubelet(
        layout,
        programs,
        ca=ca,
        control_plane=control_plane,
        network=network,
        cgroup=cgroup,
        namespace=namespace,
    )
    cluster = Cluster(layout, ca, etcd, control_plane, containerd, kubelet)
    _undo_with(cluster, undo)
    _start(cluster)
    return cluster


def _undo_with(cluster: Cluster, undo: ExitStack) -> None:
    """Ends the programs, the last started first; the client's connections go before the server."""
    for process in (cluster.etcd.process, cluster.containerd.process):
        undo.callback(process.kill)
    for component in cluster.control_plane.components:
        undo.callback(component.process.kill)
        undo.callback(component.client.close)
    undo.callback(cluster.admin.close)
    undo.callback(cluster.kubelet.process.kill)


def _start(cluster: Cluster) -> None:
    cluster.containerd.process.start()
    cluster.etcd.start()
    _start_control_plane(cluster.control_plane)
    cluster.containerd.wait_ready()
    kubelet_began = cluster.kubelet.begin()
    import_images(cluster.containerd)
    cluster.kubelet.wait_ready(since=kubelet_began)
    wait_until(lambda: _has_default_account(cluster.admin), "namespace default has its service account")


def _start_control_plane(control_plane: ControlPlane) -> None:
    """The controller manager gives up if the API server does not answer within ten seconds, so that comes first."""
    control_plane.api_server.start()
    others = (control_plane.controller_manager, control_plane.scheduler)
    for component in others:
        component.process.start()
    for component in others:
        component.wait_ready()


def import_images(containerd: Containerd) -> None:
    for image in (pause_image(), busybox_image()):
        containerd.ctr("images", "import", "-", stdin=image, doing="importing an image")


def _has_default_account(admin: Client) -> bool:
    accounts = admin.get("/api/v1/namespaces/default/serviceaccounts")["items"]
    return any(account["metadata"]["name"] == "default" for account in accounts)


def _keep_logs(layout: Layout, folder: Path) -> None:
    """VCUDA_E2E_KEEP_LOGS=DIR: what to read after a failure on another machine."""
    shutil.copytree(layout.logs, folder / layout.name, dirs_exist_ok=True)
