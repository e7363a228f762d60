"""What the chart installs, at work: our scheduler and kube-scheduler with the arguments, configuration and rights of
the release, on hollow nodes.

The two programs run here and not in their pod, so what differs is replaced: the port, the path of the authority, the
way to the API server. Everything else is what the API server holds after `helm install`.
"""

import base64
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from deviceplugin.model.annotation_names import AnnotationNames
from tests.daemonset.chart import NAMESPACE, Object, helm_program
from tests.e2e.cluster.client import ApiError, Client
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.hollow import hollow_nodes
from tests.e2e.cluster.kubeconfig import write_kubeconfig
from tests.e2e.cluster.processes import Process, free_ports
from tests.e2e.cluster.waiting import wait_until
from tests.e2e.node.agent import PROGRAM
from tests.e2e.released import PODS, namespaces, release
from tests.fakes.inventories import made_up_inventory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300, func_only=True)]

NODE = "chart-hollow"
RELEASED = f"/api/v1/namespaces/{NAMESPACE}"
SECRET = f"{RELEASED}/secrets/vcuda-scheduler-tls"
HOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/vcuda-scheduler"


@dataclass(frozen=True, slots=True)
class Installed:
    """Where the programs of the release find the cluster, and what it told them."""

    admin: Client
    folder: Path
    kubeconfig: Path
    port: int

    def arguments(self) -> list[str]:
        """Those of the Deployment's sidecar, but for its port."""
        deployment = self.admin.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/vcuda-scheduler")
        arguments: list[str] = deployment["spec"]["template"]["spec"]["initContainers"][0]["args"]
        assert "--listen-port=8443" in arguments
        own = [f"--listen-port={self.port}", f"--kubeconfig={self.kubeconfig}"]
        return [*(each for each in arguments if each != "--listen-port=8443"), *own]

    def configuration(self) -> Path:
        """kube-scheduler's, but for port, kubeconfig and the place of the authority."""
        text = self.admin.get(f"{RELEASED}/configmaps/vcuda-scheduler")["data"]["kube-scheduler.yaml"]
        authority = self.folder / "ca.crt"
        authority.write_bytes(base64.b64decode(self.admin.get(SECRET)["data"]["ca.crt"]))
        configuration = yaml.safe_load(text)
        (extender,) = configuration["extenders"]
        extender["urlPrefix"] = extender["urlPrefix"].replace("8443", str(self.port))
        extender["tlsConfig"]["caFile"] = str(authority)
        configuration["clientConnection"]["kubeconfig"] = str(self.kubeconfig)
        path = self.folder / "kube-scheduler.yaml"
        path.write_text(yaml.safe_dump(configuration))
        return path

    def is_there(self, path: str) -> bool:
        try:
            return bool(self.admin.get(path))
        except ApiError as error:
            if error.status != 404:
                raise
            return False


@pytest.fixture
def installed(cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installed]:
    with namespaces(cluster.admin), release(cluster, helm_program(request), folder=tmp_path):
        account = f"{RELEASED}/serviceaccounts/vcuda-scheduler/token"
        token = cluster.admin.post(account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        kubeconfig = write_kubeconfig(
            tmp_path / "scheduler.kubeconfig",
            server=cluster.control_plane.server,
            authority=cluster.authority.certificate,
            identity=token,
        )
        (port,) = free_ports(1)
        yield Installed(cluster.admin, tmp_path, kubeconfig, port)


def _share(name: str) -> Object:
    counts = {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "16"}
    container = {"name": "c", "image": "none", "resources": {"limits": counts, "requests": counts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        # The webhook's Service leads nowhere here; what the webhook does has its own tests.
        "metadata": {"name": name, "labels": {"tencent.com/vcuda-webhook": "ignore"}},
        "spec": {
            "schedulerName": "vcuda-scheduler",
            "automountServiceAccountToken": False,
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "containers": [container],
        },
    }


def test_what_was_installed_makes_its_certificate_and_places_a_pod_with_the_rights_that_it_was_given(
    installed: Installed, cluster: Cluster, programs: Path
) -> None:
    admin, names = installed.admin, AnnotationNames()
    extender = Process(
        "chart-extender",
        [
            str(PROGRAM),
            *installed.arguments(),
            f"--listen-port={installed.port}",
            f"--kubeconfig={installed.kubeconfig}",
        ],
        cluster.layout.logs / "chart-extender.log",
        environment={"POD_NAME": socket.gethostname(), "POD_NAMESPACE": NAMESPACE},
    )
    with ExitStack() as undo:
        undo.enter_context(hollow_nodes(admin, {NODE: made_up_inventory(NODE)}))
        extender.start()
        undo.callback(extender.kill)
        wait_until(
            lambda: installed.is_there(SECRET), "the certificate is there", seconds=30, evidence=extender.log_tail
        )
        wait_until(
            lambda: "caBundle" in admin.get(HOOK)["webhooks"][0]["clientConfig"],
            "the webhook's caBundle is set",
            seconds=30,
            evidence=extender.log_tail,
        )
        kube_scheduler = Process(
            "chart-kube-scheduler",
            [str(programs / "kube-scheduler"), f"--config={installed.configuration()}", "--secure-port=0"],
            cluster.layout.logs / "chart-kube-scheduler.log",
        )
        kube_scheduler.start()
        undo.callback(kube_scheduler.kill)
        admin.post(PODS, _share("placed"))
        undo.callback(admin.delete, f"{PODS}/placed?gracePeriodSeconds=0")
        wait_until(
            lambda: admin.get(f"{PODS}/placed")["spec"].get("nodeName") == NODE,
            "the pod has its node",
            seconds=60,
            evidence=lambda: extender.log_tail() + kube_scheduler.log_tail(),
        )
        annotations = admin.get(f"{PODS}/placed")["metadata"]["annotations"]
        assert annotations[names.predicate_node] == NODE
        assert names.allocation in annotations
        log = extender.log_tail() + kube_scheduler.log_tail()
        assert "forbidden" not in log.lower(), log
