"""The chart on a real API server: installed by Helm, every field known, the expressions meaning what they say.

No program of ours runs here: the node selectors fit no node. What the webhook would be asked about shows in which pods
cannot be created while it is away, and what the accounts may do is tried as those accounts.
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
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY
from scripts import manifests
from tests.daemonset.chart import NAMESPACE, Object, render
from tests.daemonset.value_sets import VALUE_SETS
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
    "MutatingWebhookConfiguration": ("/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
    "ValidatingAdmissionPolicy": ("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": ("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings"),
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
        wait_until(lambda: _is_denied(admin), "webhook and policy are in force")
        yield said


def _container(limits: Object | None = None, *, kind: str = "limits") -> Object:
    container: Object = {"name": "c", "image": "none"}
    if limits:
        counts = {"limits": limits, "requests": limits} if kind == "limits" else {kind: limits}
        container["resources"] = counts
    return container


def _pod(name: str, *containers: Object, init: Object | None = None, **metadata: Object) -> Object:
    spec: Object = {"automountServiceAccountToken": False, "containers": list(containers) or [_container()]}
    if init:
        spec["initContainers"] = [{**init, "name": "i"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


SHARE: Object = {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "16"}
FORGED: Object = {"tencent.com/vcuda-allocation": "{}"}


def _is_denied(admin: Client) -> bool:
    try:
        admin.post(f"{PODS}?dryRun=All", _pod("probe", _container(SHARE)))
    except ApiError as error:
        return "failed calling webhook" in str(error)
    return False


WAITS = {
    "a share": _pod("share", _container(SHARE)),
    "a whole GPU in an init container": _pod("init", init=_container({"tencent.com/vcuda-core": "100"})),
    "the second container": _pod("second", _container(), {**_container(SHARE), "name": "d"}),
    "HAMi's words": _pod("hami", _container({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "512"})),
    "annotations of ours without a GPU": _pod("forged", annotations=FORGED),
    "annotations of ours in spite of the label": _pod(
        "both", annotations=FORGED, labels={"tencent.com/vcuda-webhook": "ignore"}
    ),
}
PASSES = {
    "no GPU": _pod("plain"),
    "CPU and memory": _pod("cpu", _container({"cpu": "1", "memory": "1Gi"})),
    "somebody else's device": _pod("other", _container({"example.com/fpga": "1"})),
    "annotations of others": _pod("annotated", annotations={"tencent.com/vcuda-gpu-policy": "link"}),
    "a GPU with the label to leave it alone": _pod(
        "ignored", _container(SHARE), labels={"tencent.com/vcuda-webhook": "ignore"}
    ),
    "a GPU of NVIDIA's own plugin": _pod("whole", _container({"nvidia.com/gpu": "1"})),
    "HAMi's label": _pod("hami-ignored", _container(SHARE), labels={"hami.io/webhook": "ignore"}),
}


@pytest.mark.parametrize("pod", WAITS.values(), ids=WAITS.keys())
def test_while_the_webhook_is_away_a_pod_that_needs_it_is_not_created(
    installed: str, admin: Client, pod: Object
) -> None:
    with pytest.raises(ApiError, match="failed calling webhook"):
        admin.post(f"{PODS}?dryRun=All", pod)


@pytest.mark.parametrize("pod", PASSES.values(), ids=PASSES.keys())
def test_while_the_webhook_is_away_every_other_pod_is_created(installed: str, admin: Client, pod: Object) -> None:
    assert admin.post(f"{PODS}?dryRun=All", pod)["metadata"]["name"] == pod["metadata"]["name"]


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
    admin.post(SECRET.rpartition("/")[0], {"metadata": {"name": "vcuda-scheduler-tls"}, "data": made["data"]})
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


def _as(admin: Client, account: str, *, node: str = "") -> Client:
    """`node`: where the pod runs whose token it is."""
    of_the_token = {"Impersonate-Extra-authentication.kubernetes.io%2Fnode-name": node} if node else {}
    user = {"Impersonate-User": f"system:serviceaccount:{NAMESPACE}:{account}"}
    return Client(admin.server, admin.pool, {**user, **of_the_token})


def _as_user(admin: Client) -> Client:
    """A user who may do anything with pods and is none of vcuda's programs."""
    headers = {"Impersonate-User": "somebody", "Impersonate-Group": "system:masters"}
    return Client(admin.server, admin.pool, headers)


@pytest.fixture
def pod(installed: str, admin: Client) -> Iterator[str]:
    """A pod that nothing has placed."""
    plain = _pod("held")
    plain["spec"]["schedulerName"] = "nobody"
    admin.post(PODS, plain)
    yield f"{PODS}/held"
    admin.delete(f"{PODS}/held?gracePeriodSeconds=0")


OWN: Object = {
    "metadata": {"annotations": {"tencent.com/vcuda-allocation": "{}", "tencent.com/predicate-gpu-idx-0": "1"}}
}
BINDING: Object = {
    "kind": "Binding",
    "target": {"kind": "Node", "name": "none"},
    "metadata": {"name": "held", **OWN["metadata"]},
}


@pytest.fixture
def bound(admin: Client, pod: str) -> str:
    """The pod on a node that does not exist."""
    admin.post(f"{pod}/binding", {"kind": "Binding", "metadata": {"name": "held"}, "target": {"name": "nowhere"}})
    return pod


def test_no_other_account_writes_changes_or_removes_allocation_annotations(admin: Client, bound: str) -> None:
    pod, user, agent = bound, _as_user(admin), _as(admin, "vcuda-agent", node="nowhere")
    with pytest.raises(ApiError, match="are written by vcuda alone"):
        user.merge(pod, OWN)
    agent.merge(pod, OWN)
    for change in ("other", None):
        with pytest.raises(ApiError, match=r"tencent.com/vcuda-allocation is written by vcuda alone"):
            user.merge(pod, {"metadata": {"annotations": {"tencent.com/vcuda-allocation": change}}})
    user.merge(pod, {"metadata": {"annotations": {"tencent.com/vcuda-gpu-policy": "link", "note": "mine"}}})
    user.merge(pod, {"metadata": {"labels": {"a": "b"}}})


def test_an_agent_of_another_node_writes_them_neither(admin: Client, bound: str) -> None:
    """The release's defaults confine it."""
    for other in (_as(admin, "vcuda-agent", node="elsewhere"), _as(admin, "vcuda-agent")):
        with pytest.raises(ApiError, match="the vcuda agent changes pods of its own node only"):
            other.merge(bound, OWN)


def test_no_other_account_writes_it_by_a_binding(admin: Client, pod: str) -> None:
    with pytest.raises(ApiError, match="are written by vcuda alone"):
        _as_user(admin).post(f"{pod}/binding", BINDING)
    assert "nodeName" not in admin.get(pod)["spec"]


def test_the_scheduler_writes_it_with_the_binding(admin: Client, pod: str) -> None:
    _as(admin, "vcuda-scheduler").post(f"{pod}/binding", BINDING)
    found = admin.get(pod)
    assert found["spec"]["nodeName"] == "none"
    assert found["metadata"]["annotations"].items() >= OWN["metadata"]["annotations"].items()


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
