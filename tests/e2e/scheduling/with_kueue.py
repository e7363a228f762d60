"""Kueue as its chart installs it, with the queues of docs/how-to/kueue.md, in the namespace of the tests.

In: the cluster, Kueue's program and chart, Helm. Out: a `Queues`. Invariant: leaving the context removes the queues
while Kueue runs, because it takes off their finalizers, and then all that the chart has made.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.images import BUSYBOX
from sandbox.cluster.kueue import FLAVORS, NAMESPACE, kueue_running
from sandbox.cluster.processes import Process
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY
from tests.e2e.node.view import SHOW_AND_STAY
from tests.e2e.node.workload import CORE, MEMORY
from tests.e2e.released import Helm
from tests.fenced import fenced

QUEUES, JOB, POD, POLICY, CONFIGURATION = fenced(REPOSITORY / "docs" / "how-to" / "kueue.md", "yaml")
CORES, BLOCKS = 200, 640
"""The quota: half of what the node has."""
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_LOCAL = f"{_KUEUE}/namespaces/default"
_PATHS = {
    "ResourceFlavor": FLAVORS,
    "ClusterQueue": f"{_KUEUE}/clusterqueues",
    "LocalQueue": f"{_LOCAL}/localqueues",
}
_NAMESPACES = "/api/v1/namespaces"


@dataclass(frozen=True, slots=True)
class Queues:
    """The queue `gpu`, and what waits in it."""

    process: Process
    admin: Client

    def counted(self) -> dict[str, int]:
        """GPUs' cores and blocks that Kueue has counted of those that it admitted."""
        admitted = [each for each in self._workloads() if "admission" in each.get("status", {})]
        sets = [one["resourceUsage"] for each in admitted for one in each["status"]["admission"]["podSetAssignments"]]
        return {name: sum(int(each.get(name, 0)) for each in sets) for name in (CORE, MEMORY)}

    def waits_for(self, owner: str) -> str:
        """Why Kueue has not admitted it; empty where it has, or has not looked at it."""
        for each in self._workloads():
            if any(one["name"] == owner for one in each["metadata"].get("ownerReferences", [])):
                for condition in each.get("status", {}).get("conditions", []):
                    if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                        return str(condition["message"])
        return ""

    def clear(self) -> None:
        """Kueue ends a group of pods with its Workload; its pods that are deleted alone may stay."""
        wait_until(lambda: not self._delete_workloads(), "no Workload is left", evidence=self.process.log_tail)

    def _delete_workloads(self) -> bool:
        found = [each["metadata"]["name"] for each in self._workloads()]
        for name in found:
            with contextlib.suppress(ApiError):
                self.admin.delete(f"{_LOCAL}/workloads/{name}")
        return bool(found)

    def _workloads(self) -> list[JsonObject]:
        found: list[JsonObject] = self.admin.get(f"{_LOCAL}/workloads")["items"]
        return found

    def set_quota(self, cores: int) -> None:
        path = f"{_PATHS['ClusterQueue']}/gpu"
        groups = self.admin.get(path)["spec"]["resourceGroups"]
        for each in groups[0]["flavors"][0]["resources"]:
            each["nominalQuota"] = {CORE: str(cores), MEMORY: str(BLOCKS)}.get(each["name"], each["nominalQuota"])
        self.admin.merge(path, {"spec": {"resourceGroups": groups}})


@contextlib.contextmanager
def queues(cluster: Cluster, programs: Path, helm: str, folder: Path) -> Iterator[Queues]:
    admin, install = cluster.admin, Helm(helm, cluster.control_plane.admin_kubeconfig, NAMESPACE)
    with contextlib.ExitStack() as undo:
        admin.post(_NAMESPACES, {"metadata": {"name": NAMESPACE}})
        undo.callback(_remove, admin, f"{_NAMESPACES}/{NAMESPACE}")
        undo.callback(install, "uninstall", "kueue")
        install("install", "kueue", str(programs / "charts" / "kueue"), "--set=controllerManager.replicas=0")
        (node,) = admin.get("/api/v1/nodes")["items"]
        (address,) = (each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP")
        process = undo.enter_context(
            kueue_running(
                cluster.control_plane,
                programs / "kueue",
                folder,
                address=address,
                settings=yaml.safe_load(CONFIGURATION),
            )
        )
        for item in documents(QUEUES):
            admin.post(_PATHS[item["kind"]], item)
            undo.callback(_remove, admin, f"{_PATHS[item['kind']]}/{item['metadata']['name']}")
        yield Queues(process, admin)


def documents(text: str) -> list[JsonObject]:
    return [*yaml.safe_load_all(text.replace("team-a", "default"))]


def at_home(spec: JsonObject, limits: JsonObject | None) -> None:
    """The page's pod with an image that is there, on a node with two cores; with other limits, if there are any."""
    (container,) = spec["containers"]
    container |= {"image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", SHOW_AND_STAY]}
    container["resources"]["requests"] = {"cpu": "20m", "memory": "16Mi"}
    if limits is not None:
        container["resources"]["limits"] = limits
    spec |= {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}


def _remove(admin: Client, path: str) -> None:
    """Until it is gone: a finalizer may be on it."""
    with contextlib.suppress(ApiError):
        admin.delete(path)
    wait_until(lambda: _is_gone(admin, path), f"{path} is gone")


def _is_gone(admin: Client, path: str) -> bool:
    try:
        admin.get(path)
    except ApiError as error:
        return error.status == 404
    return False
