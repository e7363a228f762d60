"""A cluster on which another system serves the GPUs, and the commands of the page that moves it.

In: the e2e cluster, the released chart and image in a registry. Out: a `Scene`. Invariant: afterwards the node is as it
was before any test, however the scene ended.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.simulate.gpu_profile import parse_profile
from sandbox.cluster import pods
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.reset import reset
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import PROFILES
from tests.daemonset.chart import Object
from tests.e2e.installed.registry import Registry
from tests.e2e.moving.page import Page

SYSTEM = "kube-system"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{pods.NAMESPACE}/deployments"
PROFILE = PROFILES / "hgx-a100.json"
STAND_INS = Path(__file__).parent
PROGRAM = STAND_INS / "stand_in.py"

REFUSED = ("cannot allocate unhealthy devices", "HTTP Error 403: Forbidden")
"""Kubelet's words, between the last plugin of a resource and the next; and gpu-manager's, whose Allocate annotates the
pod, while the API server still applies the policy that Helm has just removed: it learns of that by its watch, later.
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """`page` has the commands."""

    cluster: Cluster
    page: Page

    @property
    def admin(self) -> Client:
        return self.cluster.admin

    @property
    def node(self) -> str:
        return self.cluster.kubelet.node

    def node_object(self) -> Object:
        return self.admin.get(f"/api/v1/nodes/{self.node}")

    def allocatable(self, resource: str) -> int:
        return int(self.node_object()["status"]["allocatable"].get(resource, 0))

    def wait_allocatable(self, resource: str, count: int) -> None:
        wait_until(lambda: self.allocatable(resource) == count, f"the node offers {count} {resource}")

    def pods_of(self, label: str, namespace: str = pods.NAMESPACE) -> list[Object]:
        """Those that are not being deleted."""
        found = self.admin.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={label}")["items"]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def wait_one_runs(self, label: str, *, other_than: str = "") -> Object:
        """The one pod with this label, once all its containers run.

        One that was refused on the way from one system to the other stays, and its controller makes another.
        """

        def running() -> Object | None:
            found = [each for each in self.pods_of(label) if not _was_refused(each)]
            is_new = len(found) == 1 and found[0]["metadata"]["uid"] != other_than
            statuses = found[0]["status"].get("containerStatuses", []) if is_new else []
            return found[0] if statuses and all("running" in each["state"] for each in statuses) else None

        return wait_until(running, f"a pod {label} runs", evidence=lambda: json.dumps(self.pods_of(label), indent=1))

    def view(self, *words: str) -> Object:
        """What `vcuda WORDS -o json` says."""
        found: Object = json.loads(self.page.shell(f"set +x; vcuda {' '.join(words)} -o json").partition("set +x\n")[2])
        return found


def _was_refused(pod: Object) -> bool:
    return any(words in pod["status"].get("message", "") for words in REFUSED)


def deployment(name: str, pod: Object) -> Object:
    """One replica that its controller makes again."""
    template = {"metadata": {"labels": {"app": name}, **pod["metadata"]}, "spec": pod["spec"]}
    template["metadata"].pop("name", None)
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def uuids() -> list[str]:
    """Of the emulated machine's GPUs."""
    return [gpu.uuid for gpu in parse_profile(PROFILE.read_bytes()).inventory.gpus]


@contextmanager
def moving(cluster: Cluster, registry: Registry, page: str, *, kubectl: Path, helm: Path) -> Iterator[Scene]:
    """Afterwards the node offers nothing of another device plugin.

    Kubelet tells of a resource that has ended once. If its write is refused then, the node offers it for ever, because
    what no plugin says is taken from the node object (kubelet's nodestatus/setters.go).
    """
    kubeconfig = cluster.control_plane.admin_kubeconfig
    scene = Scene(cluster, Page(f"how-to/{page}", cluster.kubelet.node, kubeconfig, registry, kubectl, helm))
    unknown = {AnnotationNames().inventory: None}  # agents of other tests may have told the same
    cluster.admin.merge(f"/api/v1/nodes/{scene.node}", {"metadata": {"annotations": unknown}})
    try:
        yield scene
    finally:
        subprocess.run(
            [helm, "--kubeconfig", kubeconfig, "uninstall", "vcuda", "-n", SYSTEM, "--wait", "--ignore-not-found"],
            check=False,
            capture_output=True,
        )
        reset(cluster)


@contextmanager
def applied(scene: Scene, objects: list[Object], folder: Path) -> Iterator[None]:
    """The old system, until the context ends or the page's commands removed it."""
    file = folder / "old.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    scene.page.shell(f"kubectl apply -f {file}")
    try:
        yield
    finally:
        scene.page.shell(f"kubectl delete --ignore-not-found --wait=true -f {file}")


def exists(client: Client, path: str) -> bool:
    try:
        client.get(path)
    except ApiError:
        return False
    return True
