"""The shipped manifests on a real API server: accepted as they stand, and holding the agent to its node.

No agent runs here. Its requests are made as its service account, by impersonation, for a node that exists only as an
object, so that no kubelet interferes.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.daemonset.manifests import Object, base, documents, with_component

pytestmark = pytest.mark.e2e

PODS = "/api/v1/namespaces/default/pods"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "DaemonSet": "/apis/apps/v1/namespaces/kube-system/daemonsets",
    "Pod": PODS,
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
ACCOUNT = "system:serviceaccount:kube-system:vcuda-agent"
POLICY = documents("components/confined/policy.yaml")
OWN, OTHER = "manifests-own", "manifests-other"
REFUSED = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}


@pytest.mark.parametrize(
    "manifest",
    [
        *base().values(),
        *with_component("nvidia-runtime", with_component("cdi", with_component("nodes-proxy", base()))).values(),
        *POLICY,
        *documents("sample-pod.yaml"),
    ],
    ids=lambda manifest: manifest["kind"],
)
def test_the_api_server_takes_every_manifest_and_knows_every_field(cluster: Cluster, manifest: Object) -> None:
    metadata = manifest["metadata"]
    other_name = {**manifest, "metadata": {**metadata, "name": f"{metadata['name']}-dry"}}  # the real one may be there
    cluster.admin.post(f"{PATHS[manifest['kind']]}?dryRun=All&fieldValidation=Strict", other_name)


def as_agent(admin: Client, node: str) -> Client:
    """What the agent on `node` may do; the API server puts a pod's node into its token like this."""
    extra = {"Impersonate-Extra-authentication.kubernetes.io%2Fnode-name": node}
    return Client(admin.server, admin.pool, {"Impersonate-User": ACCOUNT, **extra})


def _pod(name: str, node: str) -> Object:
    spec = {"nodeName": node, "automountServiceAccountToken": False, "containers": [{"name": "c", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Client]:
    """A cluster with the base's rights and the policies, two nodes and three pods."""
    admin = cluster.admin
    rights = [base()[kind] for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")]
    with contextlib.ExitStack() as undo:
        for manifest in [*rights, *POLICY]:
            admin.post(PATHS[manifest["kind"]], manifest)
            undo.callback(admin.delete, f"{PATHS[manifest['kind']]}/{manifest['metadata']['name']}")
        for node in (OWN, OTHER):
            admin.post("/api/v1/nodes", {"metadata": {"name": node}})
            undo.callback(admin.delete, f"/api/v1/nodes/{node}")
        for name, node in (("running", OWN), ("refused", OWN), ("foreign", OTHER)):
            admin.post(PODS, _pod(name, node))
            undo.callback(_remove, admin, name)
        admin.merge(f"{PODS}/refused/status", {"status": REFUSED})
        admin.merge(f"{PODS}/foreign/status", {"status": REFUSED})
        probe = as_agent(admin, OTHER)
        wait_until(lambda: _is_denied(probe), "the policies are in force")
        yield admin


def _remove(admin: Client, name: str) -> None:
    with contextlib.suppress(ApiError):
        admin.delete(f"{PODS}/{name}?gracePeriodSeconds=0")


def _is_denied(client: Client) -> bool:
    try:
        client.merge(f"{PODS}/running", {"metadata": {"annotations": {"probe": "1"}}})
    except ApiError as error:
        return "own node only" in str(error)
    return False


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request of the agent on OWN, and what the refusal says; empty where it is allowed."""

    method: str
    path: str
    body: Object | None = None
    refusal: str = ""


ANNOTATED: Object = {"metadata": {"annotations": {"tencent.com/gpu-assigned": "true"}}}
NODES = "/api/v1/nodes"
ATTEMPTS = {
    "annotate a pod of its node": Attempt("PATCH", f"{PODS}/running", ANNOTATED),
    "annotate a pod elsewhere": Attempt("PATCH", f"{PODS}/foreign", ANNOTATED, "own node only"),
    "label a pod": Attempt("PATCH", f"{PODS}/running", {"metadata": {"labels": {"a": "b"}}}, "but its annotations"),
    "change an image": Attempt(
        "PATCH", f"{PODS}/running", {"spec": {"containers": [{"name": "c", "image": "other"}]}}, "but its annotations"
    ),
    "change a status": Attempt("PATCH", f"{PODS}/running/status", {"status": REFUSED}, "cannot patch resource"),
    "delete a running pod": Attempt("DELETE", f"{PODS}/running", None, "only pods that kubelet refused"),
    "delete a refused pod elsewhere": Attempt("DELETE", f"{PODS}/foreign", None, "own node only"),
    "delete a refused pod of its node": Attempt("DELETE", f"{PODS}/refused"),
    "label its node": Attempt("PATCH", f"{NODES}/{OWN}", {"metadata": {"labels": {"tencent.com/a": "b"}}}),
    "label another node": Attempt("PATCH", f"{NODES}/{OTHER}", {"metadata": {"labels": {"a": "b"}}}, "own node only"),
    "cordon its node": Attempt("PATCH", f"{NODES}/{OWN}", {"spec": {"unschedulable": True}}, "labels and annotations"),
    "list the pods of its node": Attempt("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{OWN}"),
    "read secrets": Attempt("GET", "/api/v1/secrets", None, "cannot list resource"),
    "make a pod": Attempt("POST", PODS, _pod("made", OWN), "cannot create resource"),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_the_agent_may_do_what_it_needs_and_no_more(admin: Client, attempt: Attempt) -> None:
    agent = as_agent(admin, OWN)
    content_type = "application/merge-patch+json" if attempt.method == "PATCH" else "application/json"
    if not attempt.refusal:
        assert agent.text(attempt.method, attempt.path, body=attempt.body, content_type=content_type)
        return
    with pytest.raises(ApiError, match=attempt.refusal):
        agent.text(attempt.method, attempt.path, body=attempt.body, content_type=content_type)
