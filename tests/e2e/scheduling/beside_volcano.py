"""vcuda's container in the pod of Volcano's scheduler, as a process: with the chart's flags and rights.

In: the cluster in which our scheduler is installed, the chart. Out: the process, which leads as long as Volcano's
scheduler on this machine holds its Lease. Invariant: the chart's objects for Volcano are gone when the context ends.
"""

import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.control_plane import ControlPlane
from sandbox.cluster.kubeconfig import write_kubeconfig
from sandbox.cluster.processes import Process, free_ports
from scripts import manifests
from tests.e2e.scheduling.installation import ADMISSION, PROGRAM, RBAC

NAMESPACE, ACCOUNT = "volcano-system", "volcano-scheduler"
_NAMESPACES = "/api/v1/namespaces"
_POLICY = f"{ADMISSION}/validatingadmissionpolicies"
_PATHS = {
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{NAMESPACE}/rolebindings",
    "ValidatingAdmissionPolicy": _POLICY,
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}


@dataclass(frozen=True, slots=True)
class Beside:
    """`port` is the one that Volcano's scheduler asks."""

    process: Process
    port: int


@contextmanager
def beside_volcano(plane: ControlPlane, folder: Path, *flags: str) -> Iterator[Beside]:
    """`flags` come after the chart's. The process is the caller's to start, when Volcano runs."""
    rendered = manifests.by_template(manifests.render(manifests.helm(), "--set=volcano.enabled=true"))
    port, secure = free_ports(2)
    with ExitStack() as undo:
        _make(plane.admin, _NAMESPACES, {"metadata": {"name": NAMESPACE}}, undo)
        accounts = f"{_NAMESPACES}/{NAMESPACE}/serviceaccounts"
        _make(plane.admin, accounts, {"metadata": {"name": ACCOUNT}}, undo)
        for item in yaml.safe_load_all(rendered["volcano/rbac.yaml"]):
            _make(plane.admin, _PATHS[item["kind"]], item, undo)
        for item in yaml.safe_load_all(rendered["scheduler/policy.yaml"]):
            if item["kind"] == "ValidatingAdmissionPolicy":
                plane.admin.merge(f"{_POLICY}/{item['metadata']['name']}", {"spec": item["spec"]})
        token = plane.admin.post(f"{accounts}/{ACCOUNT}/token", {"spec": {"expirationSeconds": 7200}})
        kubeconfig = write_kubeconfig(
            folder / "beside.kubeconfig",
            server=plane.server,
            ca=plane.files.ca.certificate,
            identity=str(token["status"]["token"]),
        )
        here = (
            f"--kubeconfig={kubeconfig}",
            f"--namespace={NAMESPACE}",
            f"--identity={socket.gethostname()}",
            "--listen-addr=127.0.0.1",
            f"--listen-port={secure}",
            f"--loopback-port={port}",
            "--drain=0s",
            "--log-level=debug",
        )
        command = [str(PROGRAM), *_arguments(rendered["volcano/configmap.yaml"]), *here, *flags]
        log = plane.files.layout.logs / "vcuda-beside-volcano.log"
        process = Process("vcuda beside Volcano", plane.files.cgroup.joining(command), log)
        undo.callback(process.stop)
        yield Beside(process, port)


def patch_of(text: str) -> str:
    """What the page tells to apply, from the chart's ConfigMap."""
    return str(yaml.safe_load(text)["data"]["deployment-patch.yaml"])


def _arguments(text: str) -> list[str]:
    """Of the container that the chart's patch adds."""
    (container,) = yaml.safe_load(patch_of(text))["spec"]["template"]["spec"]["initContainers"]
    return [str(each) for each in container["args"]]


def _make(admin: Client, path: str, body: JsonObject, undo: ExitStack) -> None:
    admin.post(path, body)
    undo.callback(_remove, admin, f"{path}/{body['metadata']['name']}")


def _remove(admin: Client, path: str) -> None:
    with contextlib.suppress(ApiError):
        admin.delete(path)
