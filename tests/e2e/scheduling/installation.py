"""The scheduler's shipped manifests, applied to the test cluster, and `vcuda scheduler` as a process beside it.

In: the cluster. Out: our scheduler with exactly the rights, the webhook and the policies of the chart; only the
addresses differ, because it runs on this machine and not in a pod. Certificates are its own: it makes its CA,
writes the caBundle, and kube-scheduler trusts what lies in the Secret.
Invariant: leaving the context removes every object that was applied.
"""

import base64
import contextlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import urllib3
import yaml

from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.control_plane import ControlPlane
from sandbox.cluster.kubeconfig import write_kubeconfig
from sandbox.cluster.policies import ADMISSION_PATHS, wait_until_in_force
from sandbox.cluster.processes import Process, free_ports
from sandbox.cluster.schedulers import ExtenderAddress
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY

PROGRAM = Path(sys.executable).with_name("vcuda")
MANIFESTS = REPOSITORY / "daemonset"
SYSTEM = "kube-system"
NAME = "vcuda-scheduler"
SECRET = "vcuda-scheduler-tls"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATHS = {
    "ServiceAccount": f"/api/v1/namespaces/{SYSTEM}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{SYSTEM}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{SYSTEM}/rolebindings",
    **ADMISSION_PATHS,
}
SCHEDULER_FILES = ("serviceaccount", "rbac", "policy", "webhook")
AGENT_FILES = ("serviceaccount", "clusterrole")


@dataclass(frozen=True, slots=True)
class VcudaScheduler:
    """The process; it may be killed and started again, and is then reached at the same place."""

    process: Process
    admin: Client
    port: int
    bundle: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Until it is ready and the API server trusts it."""
        self.process.start()
        wait_until(self._ready, "vcuda scheduler is ready", evidence=self.process.log_tail)

    def kill(self) -> None:
        self.process.kill()

    def restart_with(self, flag: str) -> None:
        """From now on; of a flag that is given twice the last counts."""
        self.kill()
        self.process.command = [*self.process.command, flag]
        self.start()

    def address(self) -> ExtenderAddress:
        return ExtenderAddress(self.url, self.bundle)

    def client(self) -> Client:
        """For a test that plays kube-scheduler or asks for an explanation."""
        return Client(self.url, urllib3.PoolManager(ca_certs=str(self.bundle)), {})

    def _ready(self) -> bool:
        self.process.require_running()
        if not self._fetch_bundle():
            return False
        hook = self.admin.get(f"{PATHS['MutatingWebhookConfiguration']}/{NAME}")["webhooks"][0]
        return bool(hook["clientConfig"].get("caBundle")) and self.client().ready("/readyz")

    def _fetch_bundle(self) -> bool:
        try:
            secret = self.admin.get(f"/api/v1/namespaces/{SYSTEM}/secrets/{SECRET}")
        except ApiError:
            return False
        self.bundle.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
        return True


@contextmanager
def installed(plane: ControlPlane, folder: Path, *flags: str) -> Iterator[VcudaScheduler]:
    """The manifests are applied; the process is there and the caller's to start."""
    (port,) = free_ports(1)
    with ExitStack() as undo:
        for item in _documents(port):
            _apply(plane.admin, item, undo)
        wait_until_in_force(plane.admin)
        undo.callback(_remove, plane.admin, f"/api/v1/namespaces/{SYSTEM}/secrets/{SECRET}")
        kubeconfig = account_kubeconfig(plane, folder / "scheduler.kubeconfig", NAME)
        command = [
            str(PROGRAM),
            "scheduler",
            f"--kubeconfig={kubeconfig}",
            f"--namespace={SYSTEM}",
            "--identity=e2e",
            "--listen-addr=127.0.0.1",
            f"--listen-port={port}",
            "--leader-election=none",
            f"--certificate-secret={SECRET}",
            "--drain=0s",
            "--log-level=debug",
            *flags,
        ]
        log = plane.files.layout.logs / "vcuda-scheduler.log"
        process = Process("vcuda scheduler", plane.files.cgroup.joining(command), log)
        undo.callback(process.stop)
        yield VcudaScheduler(process, plane.admin, port, folder / "bundle.crt")


def account_kubeconfig(plane: ControlPlane, path: Path, account: str) -> Path:
    """A service account's own token, as a pod has it."""
    request = f"{PATHS['ServiceAccount']}/{account}/token"
    token = plane.admin.post(request, {"spec": {"expirationSeconds": 7200}})["status"]["token"]
    return write_kubeconfig(path, server=plane.server, ca=plane.files.ca.certificate, identity=str(token))


def _documents(port: int) -> Iterator[JsonObject]:
    for folder, names in (("base", AGENT_FILES), ("scheduler", SCHEDULER_FILES)):
        for name in names:
            for item in yaml.safe_load_all((MANIFESTS / folder / f"{name}.yaml").read_text()):
                yield _here(item, port)


def _here(item: JsonObject, port: int) -> JsonObject:
    """No Service of this cluster leads anywhere, so the webhook is called at its address."""
    if item["kind"] == "MutatingWebhookConfiguration":
        for hook in item["webhooks"]:
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/webhook"}
    return item


def _apply(admin: Client, item: JsonObject, undo: ExitStack) -> None:
    path = PATHS[item["kind"]]
    namespace = item["metadata"].get("namespace", SYSTEM)
    path = path.replace(f"/namespaces/{SYSTEM}/", f"/namespaces/{namespace}/")
    admin.post(path, item)
    undo.callback(_remove, admin, f"{path}/{item['metadata']['name']}")


def _remove(admin: Client, path: str) -> None:
    with contextlib.suppress(ApiError):
        admin.delete(path)
