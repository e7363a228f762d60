"""The chart installed by Helm on the e2e cluster, on no node: the tests run what they need of it themselves.

In: the cluster, Helm, values. Out: what Helm said, while it is installed. Invariant: the release, its namespace and the
namespace of the pods that are tried are gone afterwards.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from scripts import manifests
from tests.daemonset.chart import NAMESPACE, Object
from tests.daemonset.value_sets import VALUE_SETS

TRIED = "chart-test"
PODS = f"/api/v1/namespaces/{TRIED}/pods"
NOWHERE = {"no-such-node": "true"}
INSTALLED: Object = {
    "gpuNodes": ["no-such-node=true"],
    "scheduler": {"nodeSelector": NOWHERE},
    "webhook": {"namespaceSelector": [{"key": "chart-test", "operator": "Exists"}]},
}


@dataclass(frozen=True, slots=True)
class Helm:
    """Helm with the admin's rights."""

    program: str
    kubeconfig: Path
    namespace: str = NAMESPACE

    def __call__(self, *words: str) -> str:
        command = [self.program, "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout


@contextlib.contextmanager
def namespaces(admin: Client) -> Iterator[None]:
    """Those of the release and of the pods that are tried, and Volcano's of a set of values."""
    volcano = VALUE_SETS["volcano"]["volcano"]["namespace"]
    with contextlib.ExitStack() as undo:
        for name in (NAMESPACE, TRIED, volcano):
            _wait_absent(admin, name)
            admin.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": {"chart-test": "yes"}}})
            undo.callback(admin.delete, f"/api/v1/namespaces/{name}")
        wait_until(lambda: _accounts(admin) == {NAMESPACE, TRIED}, "the namespaces have their accounts")
        yield


def _wait_absent(admin: Client, name: str) -> None:
    wait_until(lambda: not _exists(admin, name), f"no {name} of before is left")


def _exists(admin: Client, name: str) -> bool:
    return any(item["metadata"]["name"] == name for item in admin.get("/api/v1/namespaces")["items"])


def _accounts(admin: Client) -> set[str]:
    items = admin.get("/api/v1/serviceaccounts")["items"]
    return {item["metadata"]["namespace"] for item in items} & {NAMESPACE, TRIED}


@contextlib.contextmanager
def release(cluster: Cluster, helm: str, *, folder: Path, more: Object | None = None) -> Iterator[str]:
    """Installed and upgraded once, as it will be by users. `more` are values beside INSTALLED."""
    values = folder / "values.yaml"
    values.write_text(yaml.safe_dump(INSTALLED | (more or {})))
    call = Helm(helm, cluster.control_plane.admin_kubeconfig)
    said = call("install", "vcuda", str(manifests.CHART), f"--values={values}")
    try:
        call("upgrade", "vcuda", str(manifests.CHART), f"--values={values}")
        yield said
    finally:
        call("uninstall", "vcuda")
        wait_until(lambda: not _is_in_force(cluster.admin), "the API server has forgotten webhook and policies")


def _is_in_force(admin: Client) -> bool:
    """The API server reads its policies once a second; what follows must not meet those of a release that is gone."""
    container = {"name": "c", "image": "none"}
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    metadata = {"name": "probe", "annotations": {"tencent.com/vcuda-allocation": "{}"}}
    try:
        admin.post(f"{PODS}?dryRun=All", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    except ApiError as error:
        if "vcuda" not in str(error):
            raise
        return True
    return False
