"""Kueue's controllers beside the cluster, with the rights, configuration, webhooks and certificates of its chart.

In: the program, and the objects of the chart at the API server. Out: the program with the token of its account; its
Service leads to this machine. Not here: its visibility API, and a pod. Invariant: leaving the context ends the program.
"""

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import urllib3
import yaml

from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.control_plane import ControlPlane
from sandbox.cluster.kubeconfig import write_kubeconfig
from sandbox.cluster.processes import Process, free_ports
from sandbox.cluster.waiting import wait_until

NAMESPACE = "kueue-system"
FLAVORS = "/apis/kueue.x-k8s.io/v1beta2/resourceflavors"
_CORE = f"/api/v1/namespaces/{NAMESPACE}"
_SERVICE, _SECRET, _CONFIGURATION = "kueue-webhook-service", "kueue-webhook-server-cert", "kueue-manager-config"
_VISIBILITY = ("v1beta1.visibility.kueue.x-k8s.io", "v1beta2.visibility.kueue.x-k8s.io")


@contextlib.contextmanager
def kueue_running(
    plane: ControlPlane, program: Path, folder: Path, *, address: str, settings: JsonObject
) -> Iterator[Process]:
    """`address` is one of this machine that may be an endpoint; `settings` go over those of the chart."""
    webhook, health = free_ports(2)
    certificates = folder / "certificates"
    certificates.mkdir()
    _lead_here(plane.admin, address, webhook)
    configuration = folder / "configuration.yaml"
    here = {
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": address, "port": webhook, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
    }
    configuration.write_text(yaml.safe_dump(_of_the_chart(plane.admin) | settings | here))
    command = [
        str(program),
        f"--kubeconfig={_kubeconfig(plane, folder)}",
        f"--config={configuration}",
        "--feature-gates=VisibilityOnDemand=false",
        "--zap-log-level=2",
    ]
    process = Process("kueue", plane.files.cgroup.joining(command), plane.files.layout.logs / "kueue.log")
    try:
        process.start()
        wait_until(
            lambda: _mounted(plane.admin, certificates), "Kueue has made its certificate", evidence=process.log_tail
        )
        probes = Client(f"http://127.0.0.1:{health}", urllib3.PoolManager(), {})
        wait_until(lambda: _answers(process, probes, plane.admin), "Kueue is ready", evidence=process.log_tail)
        yield process
    finally:
        process.stop()


def _lead_here(admin: Client, address: str, port: int) -> None:
    """What kube-proxy and the pod would do."""
    for name in _VISIBILITY:  # without a server they hold up the deletion of every namespace
        with contextlib.suppress(ApiError):
            admin.delete(f"/apis/apiregistration.k8s.io/v1/apiservices/{name}")
    admin.merge(f"{_CORE}/services/{_SERVICE}", {"spec": {"selector": None}})
    admin.post(
        f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices",
        {
            "metadata": {"name": _SERVICE, "labels": {"kubernetes.io/service-name": _SERVICE}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
    )


def _of_the_chart(admin: Client) -> JsonObject:
    text = admin.get(f"{_CORE}/configmaps/{_CONFIGURATION}")["data"]["controller_manager_config.yaml"]
    found: JsonObject = yaml.safe_load(text)
    return found


def _kubeconfig(plane: ControlPlane, folder: Path) -> Path:
    request = f"{_CORE}/serviceaccounts/kueue-controller-manager/token"
    token = plane.admin.post(request, {"spec": {"expirationSeconds": 7200}})["status"]["token"]
    return write_kubeconfig(
        folder / "kueue.kubeconfig", server=plane.server, ca=plane.files.ca.certificate, identity=str(token)
    )


def _mounted(admin: Client, folder: Path) -> bool:
    """As kubelet does it with the volume of the Secret."""
    data = admin.get(f"{_CORE}/secrets/{_SECRET}").get("data") or {}
    for name, text in data.items():
        (folder / name).write_bytes(base64.b64decode(text))
    return "tls.crt" in data


def _answers(process: Process, probes: Client, admin: Client) -> bool:
    """The API server has its CA too."""
    process.require_running()
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
    try:
        return probes.ready() and bool(admin.post(f"{FLAVORS}?dryRun=All", flavor))
    except ApiError:
        return False
