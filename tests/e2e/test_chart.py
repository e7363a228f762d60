"""The chart on a real API server: installed by Helm, every field known, its CA kept, the scheduler's rights.

No program of ours runs here: the node selectors fit no node. Not here: what the expressions of webhook and policies
mean (tests/e2e/admission, with the manifests that the chart renders).
"""

import base64
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from deviceplugin.kube.cluster_client import Secret
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.policies import ADMISSION, wait_until_in_force
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY
from scripts import manifests
from tests.daemonset.chart import NAMESPACE, Object, render
from tests.daemonset.value_sets import VALUE_SETS
from tests.e2e.admission.requests import CORE, gpu_pod
from tests.e2e.released import INSTALLED, PODS, TRIED, Helm, namespaces, release
from tests.fenced import fenced
from tests.programs import helm_program

pytestmark = pytest.mark.e2e

WEBHOOK: Object = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "vcuda-scheduler"}}
SERVER_KINDS = {
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "MutatingWebhookConfiguration": (ADMISSION, "mutatingwebhookconfigurations"),
    "ValidatingAdmissionPolicy": (ADMISSION, "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": (ADMISSION, "validatingadmissionpolicybindings"),
    "DeviceClass": ("/apis/resource.k8s.io/v1", "deviceclasses"),
}
FOREIGN_KINDS = {"Certificate", "Issuer", "ServiceMonitor", "PodMonitor", "PrometheusRule"}
"""Of cert-manager and the Prometheus operator: test_foreign_kinds.py gives the API server their definitions."""


def _path(manifest: Object) -> str:
    group, plural = SERVER_KINDS[manifest["kind"]]
    namespace = manifest["metadata"].get("namespace")
    return f"{group}/namespaces/{namespace}/{plural}" if namespace else f"{group}/{plural}"


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> str:
    return helm_program(request)


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Client]:
    with namespaces(cluster.admin):
        yield cluster.admin


@pytest.mark.parametrize("name", VALUE_SETS)
def test_the_api_server_takes_every_object_and_knows_every_field(
    admin: Client,
    helm: str,
    tmp_path: Path,
    name: str,
) -> None:
    seen = 0
    for manifest in render(helm, VALUE_SETS[name], folder=tmp_path):
        if manifest["kind"] in FOREIGN_KINDS:
            continue
        if manifest["kind"] == "Pod":  # of `helm test`; a dry run makes no account for it
            del manifest["spec"]["serviceAccountName"]
        admin.post(f"{_path(manifest)}?dryRun=All&fieldValidation=Strict", manifest)
        seen += 1
    assert seen >= 4


@pytest.fixture(scope="module")
def installed(admin: Client, cluster: Cluster, helm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The release, and what Helm said about it."""
    with release(cluster, helm, folder=tmp_path_factory.mktemp("chart")) as said:
        wait_until_in_force(admin)
        wait_until(lambda: _is_denied(admin), "the webhook is in force")
        yield said


def _is_denied(admin: Client) -> bool:
    try:
        admin.post(f"{PODS}?dryRun=All", gpu_pod("probe", {CORE: 20}))
    except ApiError as error:
        return "failed calling webhook" in str(error)
    return False


def test_the_notes_say_what_to_do_next(installed: str) -> None:
    assert "kubectl label node NODE no-such-node=true" in installed
    assert f"kubectl -n {NAMESPACE} rollout status deployment/vcuda-scheduler" in installed
    assert "If that plugin does not run: --set hami.translate=all" in installed
    assert "WARNING" not in installed


SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/vcuda-scheduler-tls"


def _trusted(admin: Client) -> str:
    (hook,) = admin.get(f"{_path(WEBHOOK)}/{WEBHOOK['metadata']['name']}")["webhooks"]
    return str(hook["clientConfig"].get("caBundle", ""))


def test_the_ca_outlives_upgrade_and_rollback_and_a_deleted_secret_gets_a_new_one_at_the_next_upgrade(
    installed: str, admin: Client, cluster: Cluster, helm: str, tmp_path: Path
) -> None:
    made = admin.get(SECRET)["data"]
    assert _trusted(admin) == made["ca.crt"], "after an install and an upgrade"
    damaged = base64.b64encode(b"damaged").decode()
    scheduler = _as(admin, "vcuda-scheduler")
    scheduler.merge(SECRET, {"data": {"ca.key": damaged}})
    scheduler.merge(SECRET, {"data": {"ca.key": made["ca.key"]}})
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(INSTALLED | {"monitoring": {"interval": "30s"}}))
    call = Helm(helm, cluster.control_plane.admin_kubeconfig)
    call("upgrade", "vcuda", str(manifests.CHART), f"--values={values}")
    assert admin.get(SECRET)["data"] == made
    call("rollback", "vcuda")
    assert (_trusted(admin), admin.get(SECRET)["data"]) == (made["ca.crt"], made)
    admin.delete(SECRET)
    again = Secret(NAMESPACE, "vcuda-scheduler-tls", {}, annotations={"helm.sh/resource-policy": "keep"})
    admin.post(SECRET.rpartition("/")[0], {"apiVersion": "v1", "kind": "Secret", **again.created_as(), "data": made})
    call("upgrade", "vcuda", str(manifests.CHART), f"--values={values}")
    assert (_trusted(admin), admin.get(SECRET)["data"]) == (made["ca.crt"], made), "what a replica wrote again"
    admin.delete(SECRET)
    call("upgrade", "vcuda", str(manifests.CHART), f"--values={values}")
    assert admin.get(SECRET)["data"]["ca.key"] != made["ca.key"]
    assert _trusted(admin) == admin.get(SECRET)["data"]["ca.crt"] != made["ca.crt"]


def test_who_writes_the_bundle_can_be_changed_and_the_ca_stays(
    installed: str, admin: Client, cluster: Cluster, helm: str, tmp_path: Path
) -> None:
    """From the release before, where the scheduler made the Secret and wrote the caBundle, and back."""
    values, call = tmp_path / "values.yaml", Helm(helm, cluster.control_plane.admin_kubeconfig)
    values.write_text(yaml.safe_dump(INSTALLED))
    upgrade = ("upgrade", "vcuda", str(manifests.CHART), f"--values={values}")
    path, made = f"{_path(WEBHOOK)}/{WEBHOOK['metadata']['name']}", admin.get(SECRET)
    call(*upgrade, "--set=webhook.certificates.patch=true")
    assert admin.get(SECRET)["data"] == made["data"], "the replicas serve what is in it"
    (hook,) = admin.get(path)["webhooks"]
    hook["clientConfig"]["caBundle"] = made["data"]["ca.crt"]
    scheduler = _as(admin, "vcuda-scheduler")
    scheduler.merge(path, {"webhooks": [hook]})
    call(*upgrade, "--set=webhook.certificates.patch=true", "--set=webhook.timeoutSeconds=4")
    assert _trusted(admin) == made["data"]["ca.crt"], "Helm leaves what the scheduler wrote"
    admin.delete(SECRET)
    of_scheduler = {"name": "vcuda-scheduler-tls", "annotations": {"helm.sh/resource-policy": "keep"}}
    admin.post(SECRET.rpartition("/")[0], {"metadata": of_scheduler, "data": made["data"]})
    call(*upgrade)
    assert (_trusted(admin), admin.get(SECRET)["data"]) == (made["data"]["ca.crt"], made["data"])
    with pytest.raises(ApiError, match="cannot patch resource"):
        scheduler.merge(path, {"webhooks": [hook]})


def _understood(configuration: Object, cluster: Cluster, programs: Path, folder: Path) -> Object:
    """What kube-scheduler makes of a configuration; it reads certificates at once."""
    for extender in configuration.get("extenders", ()):
        if "tlsConfig" not in extender:
            continue
        shown = cluster.ca.issue("caller", common_name="system:kube-scheduler")
        files = {"caFile": cluster.ca.certificate, "certFile": shown.certificate, "keyFile": shown.key}
        extender["tlsConfig"].update({name: str(file) for name, file in files.items()})
    configuration.setdefault("clientConnection", {})["kubeconfig"] = str(cluster.control_plane.admin_kubeconfig)
    given, written = folder / "given.yaml", folder / "written.yaml"
    given.write_text(yaml.safe_dump(configuration))
    command = [str(programs / "kube-scheduler"), f"--config={given}", f"--write-config-to={written}", "--secure-port=0"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    understood: Object = yaml.safe_load(written.read_text())
    return understood


def test_kube_scheduler_reads_its_configuration_without_complaint(
    installed: str, admin: Client, cluster: Cluster, programs: Path, tmp_path: Path
) -> None:
    text = admin.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/vcuda-scheduler")["data"]["kube-scheduler.yaml"]
    understood = _understood(yaml.safe_load(text), cluster, programs, tmp_path)
    (extender,) = understood["extenders"]
    managed = [resource["name"] for resource in extender["managedResources"]]
    assert managed == ["tencent.com/vcuda-core", "tencent.com/vcuda-memory"]
    assert (extender["httpTimeout"], extender["urlPrefix"]) == ("10s", "http://127.0.0.1:8444")
    assert [profile["schedulerName"] for profile in understood["profiles"]] == ["vcuda-scheduler"]


def test_kube_scheduler_on_the_nodes_network_takes_the_certificate_that_it_is_to_show(
    cluster: Cluster, helm: str, programs: Path, tmp_path: Path
) -> None:
    configuration = render(helm, VALUE_SETS["the nodes' network"], folder=tmp_path).configuration
    (extender,) = _understood(configuration, cluster, programs, tmp_path)["extenders"]
    assert (extender["urlPrefix"], extender["enableHTTPS"]) == ("https://127.0.0.1:8443", True)
    assert set(extender["tlsConfig"]) == {"serverName", "caFile", "certFile", "keyFile"}


def test_kube_scheduler_reads_the_profile_that_the_docs_give(cluster: Cluster, programs: Path, tmp_path: Path) -> None:
    page = REPOSITORY / "docs/simulate.md"
    (sample,) = (text for text in fenced(page, "yaml") if "KubeSchedulerConfiguration" in text)
    (profile,) = _understood(yaml.safe_load(sample), cluster, programs, tmp_path)["profiles"]
    args = {each["name"]: each["args"] for each in profile["pluginConfig"]}
    assert args["NodeResourcesFit"]["scoringStrategy"]["type"] == "MostAllocated"


def _as(admin: Client, account: str) -> Client:
    return Client(admin.server, admin.pool, {"Impersonate-User": f"system:serviceaccount:{NAMESPACE}:{account}"})


@dataclass(frozen=True, slots=True)
class Right:
    """One request, as SelfSubjectAccessReview asks about it."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.verb, self.resource, self.subresource, self.name, self.namespace)))

    def review(self) -> Object:
        attributes = {
            "verb": self.verb, "resource": self.resource, "group": self.group, "namespace": self.namespace,
            "name": self.name, "subresource": self.subresource,
        }  # fmt: skip
        return {"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}


LEASES, HOOKS = "coordination.k8s.io", "admissionregistration.k8s.io"
GRANTED = [
    Right("list", "pods"),
    Right("watch", "pods"),
    Right("get", "pods", namespace=TRIED, name="a"),
    Right("create", "pods", namespace=TRIED, subresource="binding"),
    Right("patch", "nodes", name="n"),
    Right("create", "events", namespace=TRIED),
    Right("create", "leases", LEASES, NAMESPACE),
    Right("update", "leases", LEASES, NAMESPACE, "vcuda-scheduler"),
    Right("create", "secrets", namespace=NAMESPACE),
    Right("get", "secrets", namespace=NAMESPACE, name="vcuda-scheduler-tls"),
    Right("patch", "secrets", namespace=NAMESPACE, name="vcuda-scheduler-tls"),
    Right("list", "persistentvolumeclaims"),
    Right("get", "configmaps", namespace="kube-system", name="extension-apiserver-authentication"),
]
REFUSED = [
    Right("create", "pods", namespace=TRIED),
    Right("patch", "pods", namespace=TRIED, name="a"),
    Right("create", "pods", namespace=TRIED, subresource="exec"),
    Right("get", "secrets", namespace=NAMESPACE, name="another"),
    Right("list", "secrets", namespace=NAMESPACE),
    Right("get", "secrets", namespace=TRIED, name="vcuda-scheduler-tls"),
    Right("create", "secrets", namespace=TRIED),
    Right("update", "leases", LEASES, NAMESPACE, "another"),
    Right("patch", "mutatingwebhookconfigurations", HOOKS, name="vcuda-scheduler"),
    Right("get", "mutatingwebhookconfigurations", HOOKS, name="vcuda-scheduler"),
    Right("create", "mutatingwebhookconfigurations", HOOKS),
    Right("delete", "nodes", name="n"),
    Right("delete", "secrets", namespace=NAMESPACE, name="vcuda-scheduler-tls"),
    Right("get", "nodes", name="n", subresource="proxy"),
    Right("get", "configmaps", namespace=TRIED, name="a"),
]


@pytest.mark.parametrize("right", GRANTED, ids=str)
def test_the_scheduler_may_do_what_it_needs(installed: str, admin: Client, right: Right) -> None:
    assert _allowed(admin, right)


def _secret(name: str, kind: str = "Opaque", **annotations: str) -> Object:
    return {"kind": "Secret", "metadata": {"name": name, "annotations": annotations}, "type": kind}


def test_the_scheduler_creates_no_secret_but_its_own(installed: str, admin: Client) -> None:
    """Security 18: by such a Secret it would get the token of any account of its namespace."""
    scheduler, path = _as(admin, "vcuda-scheduler"), f"/api/v1/namespaces/{NAMESPACE}/secrets?dryRun=All"
    of_another = {"kubernetes.io/service-account.name": "default"}
    token = "kubernetes.io/service-account-token"
    for refused in (
        _secret("other"),
        _secret("other", token, **of_another),
        _secret("vcuda-scheduler-tls", token, **of_another),
    ):
        with pytest.raises(ApiError, match="writes only its own Secret vcuda-scheduler-tls"):
            scheduler.post(path, refused)
    with pytest.raises(ApiError, match="already exists"):  # the chart's: the policy has nothing against it
        scheduler.post(path, _secret("vcuda-scheduler-tls"))


@pytest.mark.parametrize("right", REFUSED, ids=str)
def test_the_scheduler_may_do_nothing_else(installed: str, admin: Client, right: Right) -> None:
    assert not _allowed(admin, right)


def _allowed(admin: Client, right: Right) -> bool:
    answer = _as(admin, "vcuda-scheduler").post(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {"apiVersion": "authorization.k8s.io/v1", **right.review()},
    )
    return bool(answer["status"]["allowed"])
