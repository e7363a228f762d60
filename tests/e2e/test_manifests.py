"""The shipped manifests on a real API server: accepted as they stand, and holding the agent to its node.

No agent runs here. Its requests are made with the token of a pod that has its service account, on a node that exists
only as an object, so that no kubelet interferes. What is applied are the defaults: `daemonset/base`, no component.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.policies import ADMISSION_PATHS, wait_until_in_force
from tests.daemonset.manifests import Object, base, confinement, documents, with_component

pytestmark = pytest.mark.e2e

PODS = "/api/v1/namespaces/default/pods"
SYSTEM = "/api/v1/namespaces/kube-system"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
PATHS = {
    "Service": f"{SYSTEM}/services",
    "ServiceAccount": f"{SYSTEM}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "DaemonSet": "/apis/apps/v1/namespaces/kube-system/daemonsets",
    "Pod": PODS,
    **ADMISSION_PATHS,
}
OWN, OTHER = "manifests-own", "manifests-other"
REFUSED = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
WAITING = {"name": "c", "ready": False, "restartCount": 0, "image": "none", "imageID": ""}
WAITS = {
    "phase": "Pending",
    "containerStatuses": [{**WAITING, "state": {"waiting": {"reason": "CreateContainerConfigError"}}}],
}
LISTED, GAIA = "tencent.com/vcuda-node-labels", "gaia.tencent.com/gpu-model"
OF_KUBERNETES = (
    "node-restriction.kubernetes.io/quarantined",
    "topology.kubernetes.io/zone",
    "node-role.kubernetes.io/gpu",
    "kubernetes.io/hostname",
    "a.k8s.io/b",
    "k8s.io/c",
)
"""The list names them too: kubelet may write it."""


@pytest.mark.parametrize(
    "manifest",
    [
        *base().values(),
        *with_component("nvidia-runtime", with_component("cdi", with_component("nodes-proxy", base()))).values(),
        *confinement(),
        *documents("sample-pod.yaml"),
    ],
    ids=lambda manifest: manifest["kind"],
)
def test_the_api_server_takes_every_manifest_and_knows_every_field(cluster: Cluster, manifest: Object) -> None:
    metadata = manifest["metadata"]
    other_name = {**manifest, "metadata": {**metadata, "name": f"{metadata['name']}-dry"}}  # the real one may be there
    cluster.admin.post(f"{PATHS[manifest['kind']]}?dryRun=All&fieldValidation=Strict", other_name)


def _pod(name: str, node: str, *, gpus: bool = True, account: str = "") -> Object:
    container: Object = {"name": "c", "image": "none"}
    if gpus:
        container["resources"] = {"limits": {"tencent.com/vcuda-core": "100"}}
    spec: Object = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    spec |= {"serviceAccountName": account} if account else {"automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


STATUSES = {"running": {}, "refused": REFUSED, "waiting": WAITS, "plain": REFUSED}


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Client]:
    """A cluster with the base's rights and the policies, two nodes, and the same pods on both."""
    admin = cluster.admin
    rights = [base()[kind] for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")]
    with contextlib.ExitStack() as undo:
        for manifest in [*rights, *confinement()]:
            admin.post(PATHS[manifest["kind"]], manifest)
            undo.callback(admin.delete, f"{PATHS[manifest['kind']]}/{manifest['metadata']['name']}")
        for node in (OWN, OTHER):
            labels = {"team": "a", "old": "1", "notkubernetes.io/a": "1", "tencent.com/gpu-count": "8"}
            labels |= dict.fromkeys(OF_KUBERNETES, "1")
            listed = ",".join(("old", "notkubernetes.io/a", "tencent.com/gpu-count", *OF_KUBERNETES))
            notes = {LISTED: listed, "note": "1", "tencent.com/vcuda-cordon": "0"}
            admin.post(NODES, {"metadata": {"name": node, "labels": labels, "annotations": notes}})
            undo.callback(admin.delete, f"{NODES}/{node}")
            for state, status in STATUSES.items():
                name = f"{state}-{node}"
                admin.post(PODS, _pod(name, node, gpus=state != "plain"))
                undo.callback(_remove, admin, f"{PODS}/{name}")
                if status:
                    admin.merge(f"{PODS}/{name}/status", {"status": status})
        told = event(node=OTHER)
        admin.post(EVENTS, {**told, "metadata": {"name": "of-another"}})
        undo.callback(_remove, admin, FOREIGN_EVENT)
        wait_until_in_force(admin)
        yield admin


def _remove(admin: Client, path: str) -> None:
    with contextlib.suppress(ApiError):
        admin.delete(f"{path}?gracePeriodSeconds=0")


@pytest.fixture(scope="module")
def agent(admin: Client, cluster: Cluster) -> Iterator[Client]:
    """A client with the token of the agent's pod on OWN."""
    path = f"{SYSTEM}/pods"
    made = admin.post(path, _pod("agent-of-own", OWN, gpus=False, account="vcuda-agent"))
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "agent-of-own", "uid": made["metadata"]["uid"]}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    token = admin.post(f"{SYSTEM}/serviceaccounts/vcuda-agent/token", asked)["status"]["token"]
    client = Client.by_token(cluster.control_plane.server, cluster.ca.certificate, token)
    try:
        yield client
    finally:
        client.close()
        _remove(admin, f"{path}/agent-of-own")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request of the agent on OWN, and what the refusal says; empty where it is allowed. It changes nothing, so that
    none depends on another.
    """

    method: str
    path: str
    body: Object | None = None
    refusal: str = ""

    def by(self, client: Client) -> str:
        kind = "application/strategic-merge-patch+json" if self.method == "PATCH" else "application/json"
        query = "" if self.method == "GET" else f"{'&' if '?' in self.path else '?'}dryRun=All"
        return client.text(self.method, f"{self.path}{query}", body=self.body, content_type=kind)


def notes(**written: str | None) -> Object:
    return {"metadata": {"annotations": written}}


def event(*, kind: str = "Pod", name: str = "p", node: str = OWN, component: str = "vcuda-agent") -> Object:
    """As the agent on OWN writes it, but for what is given."""
    reporter = {"reportingComponent": component, "reportingInstance": node}
    about = {"kind": kind, "name": name, **({"namespace": "default"} if kind == "Pod" else {})}
    said = {"reason": "r", "message": "m", "type": "Normal", "source": {"component": component, "host": node}}
    return {"metadata": {"generateName": "e-"}, "involvedObject": about, **said, **reporter}


def labels(**written: str | None) -> Object:
    return {"metadata": {"labels": written}}


ANNOTATED = notes(**{"tencent.com/gpu-assigned": "true", "tencent.com/predicate-gpu-idx-0": "1"})
IMAGE: Object = {"spec": {"containers": [{"name": "c", "image": "other"}]}}
BINDING: Object = {"apiVersion": "v1", "kind": "Binding", "metadata": {}, "target": {"kind": "Node", "name": OWN}}
EVICTION: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {}}
OWNED = {"apiVersion": "v1", "kind": "Node", "name": OWN, "uid": "1"}
POD, NODE = f"{PODS}/running-{OWN}", f"{NODES}/{OWN}"
ONLY = "only those annotations of a pod that say"
ON_ITS_NODE = {
    "annotate a pod": Attempt("PATCH", POD, ANNOTATED),
    "annotate a pod with something else": Attempt("PATCH", POD, notes(a="b"), ONLY),
    "raise a pod's limit": Attempt("PATCH", POD, notes(**{"tencent.com/vcuda-core-limit": "100"}), ONLY),
    "label a pod": Attempt("PATCH", POD, labels(a="b"), "but its annotations"),
    "own a pod": Attempt("PATCH", POD, {"metadata": {"ownerReferences": [OWNED]}}, "but its annotations"),
    "hold a pod": Attempt("PATCH", POD, {"metadata": {"finalizers": ["a.org/b"]}}, "but its annotations"),
    "change an image": Attempt("PATCH", POD, IMAGE, "but its annotations"),
    "change a status": Attempt("PATCH", f"{POD}/status", {"status": REFUSED}, "cannot patch resource"),
    "delete a running pod": Attempt("DELETE", POD, None, "only pods whose GPUs kubelet refused"),
    "delete a refused pod without a GPU": Attempt("DELETE", f"{PODS}/plain-{OWN}", None, "only pods whose GPUs"),
    "delete a refused pod": Attempt("DELETE", f"{PODS}/refused-{OWN}"),
    "delete a pod that waits for its GPU": Attempt("DELETE", f"{PODS}/waiting-{OWN}"),
    "write its labels": Attempt(
        "PATCH", NODE, labels(**{"tencent.com/gpu-model": "A", "tencent.com/gpu-count": None, GAIA: "A"})
    ),
    "remove a label that it had set": Attempt("PATCH", NODE, labels(old=None)),
    "remove a label that its kubelet could remove": Attempt("PATCH", NODE, labels(**{"notkubernetes.io/a": None})),
    **{
        f"remove {label}, which its kubelet only listed": Attempt(
            "PATCH", NODE, labels(**{label: None}), "changes only the labels tencent"
        )
        for label in OF_KUBERNETES
    },
    "keep in the list what is no label of its own": Attempt(
        "PATCH", NODE, notes(**{LISTED: "old,tencent.com/gpu-model"}), "lists only the labels"
    ),
    "write its annotations": Attempt(
        "PATCH", NODE, notes(**{"tencent.com/vcuda-inventory": "{}", LISTED: "tencent.com/gpu-model"})
    ),
    "change what an operator labelled": Attempt("PATCH", NODE, labels(team="b"), "changes only the labels tencent"),
    "remove what an operator labelled": Attempt("PATCH", NODE, labels(team=None), "changes only the labels tencent"),
    "say that a label is its own": Attempt("PATCH", NODE, notes(**{LISTED: "team"}), "lists only the labels"),
    "draw pods that trust a label": Attempt(
        "PATCH", NODE, labels(**{"node-restriction.kubernetes.io/trusted": "yes"}), "changes only the labels"
    ),
    "become a control plane": Attempt(
        "PATCH", NODE, labels(**{"node-role.kubernetes.io/control-plane": ""}), "changes only the labels"
    ),
    "write an annotation of others": Attempt("PATCH", NODE, notes(note="2"), "changes only the annotations tencent"),
    "remove the operator's cordon": Attempt(
        "PATCH", NODE, notes(**{"tencent.com/vcuda-cordon": None}), "changes only the annotations tencent"
    ),
    "cordon it": Attempt("PATCH", NODE, {"spec": {"unschedulable": True}}, "labels and annotations"),
    "taint it": Attempt("PATCH", NODE, {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, "labels and annot"),
    "hold it": Attempt("PATCH", NODE, {"metadata": {"finalizers": ["a.org/b"]}}, "labels and annotations"),
    "tell of a pod": Attempt("POST", EVENTS, event()),
    "tell of its node": Attempt("POST", EVENTS, event(kind="Node", name=OWN)),
    "tell as kubelet": Attempt("POST", EVENTS, event(component="kubelet"), "in its own name and that of its node"),
    "list the pods": Attempt("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{OWN}"),
    "read secrets": Attempt("GET", "/api/v1/secrets", None, "cannot list resource"),
    "make a pod": Attempt("POST", PODS, _pod("made", OWN), "cannot create resource"),
}  # fmt: skip
FOREIGN_EVENT = f"{EVENTS}/of-another"
RUNNING, NODE_B, OWN_ONLY = f"{PODS}/running-{OTHER}", f"{NODES}/{OTHER}", "own node only"
ON_ANOTHER_NODE = {
    "annotate a pod": Attempt("PATCH", RUNNING, ANNOTATED, OWN_ONLY),
    "change an image": Attempt("PATCH", RUNNING, IMAGE, OWN_ONLY),
    "label a pod": Attempt("PATCH", RUNNING, labels(a="b"), OWN_ONLY),
    "replace a pod": Attempt("PUT", RUNNING, _pod(f"running-{OTHER}", OTHER), "cannot update resource"),
    "change a pod's status": Attempt("PATCH", f"{RUNNING}/status", {"status": REFUSED}, "cannot patch resource"),
    "resize a pod": Attempt("PATCH", f"{RUNNING}/resize", IMAGE, "cannot patch resource"),
    "debug a pod": Attempt("PATCH", f"{RUNNING}/ephemeralcontainers", {"spec": {}}, "cannot patch resource"),
    "bind a pod": Attempt("POST", f"{RUNNING}/binding", BINDING, "cannot create resource"),
    "evict a pod": Attempt("POST", f"{RUNNING}/eviction", EVICTION, "cannot create resource"),
    "run a command": Attempt("POST", f"{RUNNING}/exec?command=id", None, "cannot create resource"),
    "read a log": Attempt("GET", f"{RUNNING}/log", None, "cannot get resource"),
    "delete a running pod": Attempt("DELETE", RUNNING, None, OWN_ONLY),
    "delete a refused pod": Attempt("DELETE", f"{PODS}/refused-{OTHER}", None, OWN_ONLY),
    "delete a pod that waits": Attempt("DELETE", f"{PODS}/waiting-{OTHER}", None, OWN_ONLY),
    "delete all pods": Attempt("DELETE", PODS, None, "cannot deletecollection resource"),
    "make a pod": Attempt("POST", PODS, _pod("made", OTHER), "cannot create resource"),
    "label it": Attempt("PATCH", NODE_B, labels(**{"tencent.com/gpu-model": "A"}), OWN_ONLY),
    "annotate it": Attempt("PATCH", NODE_B, notes(**{"tencent.com/vcuda-inventory": "{}"}), OWN_ONLY),
    "cordon it": Attempt("PATCH", NODE_B, {"spec": {"unschedulable": True}}, OWN_ONLY),
    "replace it": Attempt("PUT", NODE_B, {"metadata": {"name": OTHER}}, "cannot update resource"),
    "change its status": Attempt("PATCH", f"{NODE_B}/status", {"status": {}}, "cannot patch resource"),
    "delete it": Attempt("DELETE", NODE_B, None, "cannot delete resource"),
    "make one": Attempt("POST", NODES, {"metadata": {"name": "made"}}, "cannot create resource"),
    "tell in the name of its agent": Attempt("POST", EVENTS, event(node=OTHER), "in its own name and that of its node"),
    "tell of it": Attempt("POST", EVENTS, event(kind="Node", name=OTHER), "about no other node"),
    "change what its agent told": Attempt("PATCH", FOREIGN_EVENT, {"message": "x"}, "changes no other events"),
    "take what its agent told": Attempt("PATCH", FOREIGN_EVENT, event(), "changes no other events"),
    "go through its kubelet": Attempt("GET", f"{NODE_B}/proxy/pods", None, "cannot get resource"),
}


def _check(client: Client, attempt: Attempt) -> None:
    if not attempt.refusal:
        assert attempt.by(client)
        return
    with pytest.raises(ApiError, match=attempt.refusal):
        attempt.by(client)


@pytest.mark.parametrize("attempt", ON_ITS_NODE.values(), ids=ON_ITS_NODE.keys())
def test_on_its_own_node_the_agent_may_do_what_it_needs_and_no_more(agent: Client, attempt: Attempt) -> None:
    _check(agent, attempt)


@pytest.mark.parametrize("attempt", ON_ANOTHER_NODE.values(), ids=ON_ANOTHER_NODE.keys())
def test_on_another_node_it_may_do_nothing(agent: Client, attempt: Attempt) -> None:
    """Security 1: what root on one GPU node can do with the token that it finds there."""
    _check(agent, attempt)


def test_the_status_of_its_node_stays_as_kubelet_wrote_it(admin: Client, agent: Client) -> None:
    """The API server itself ignores a status in a change of the node."""
    change = {"status": {"capacity": {"tencent.com/vcuda-core": "800"}}, **labels(**{"tencent.com/gpu-cuda": "1"})}
    changed = agent.merge(NODE, change)
    assert changed["metadata"]["labels"]["tencent.com/gpu-cuda"] == "1"
    assert "tencent.com/vcuda-core" not in admin.get(NODE)["status"].get("capacity", {})


def test_a_token_without_a_node_changes_nothing(admin: Client, agent: Client, cluster: Cluster) -> None:
    """One that is bound to no pod, as `kubectl create token vcuda-agent` makes it."""
    asked: Object = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = admin.post(f"{SYSTEM}/serviceaccounts/vcuda-agent/token", asked)["status"]["token"]
    client = Client.by_token(cluster.control_plane.server, cluster.ca.certificate, token)
    try:
        _check(client, Attempt("PATCH", POD, ANNOTATED, OWN_ONLY))
        _check(client, Attempt("PATCH", NODE, labels(**{"tencent.com/gpu-model": "A"}), OWN_ONLY))
    finally:
        client.close()
