"""Who may write what vcuda reads: each cell of the table in docs/threat-model.md, tried on the real API server.

No program of ours runs. The accounts have the rights and policies of the chart's defaults, with claims; the pod, the
nodes and the claim are objects that nothing runs. Every try is a dry run; what the API server ignored counts as
refused.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from sandbox.cluster.claims import CLAIMS, CLASSES, DRIVER, SLICES, TEMPLATES, WHOLE_GPUS
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.pods import NAMESPACE, PODS
from sandbox.cluster.policies import ADMISSION_PATHS, WEBHOOKS, wait_until_in_force
from sandbox.cluster.waiting import wait_until
from tests.daemonset.manifests import Object
from tests.docs.test_threat_model import WRITERS, WrittenField, written_fields
from tests.e2e.admission.requests import CORE, as_kubelet, gpu_pod
from tests.e2e.claims.scene import rendered

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

RBAC, SYSTEM = "/apis/rbac.authorization.k8s.io/v1", "/api/v1/namespaces/kube-system"
OWN, OTHER = "written-own", "written-other"
POD, NODE, CLAIM = f"{PODS}/written", f"/api/v1/nodes/{OWN}", f"{CLAIMS}/written"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/vcuda-scheduler"
SECRET = f"{SYSTEM}/secrets/vcuda-scheduler-tls"
LISTED, FREED = "tencent.com/vcuda-node-labels", "tencent.com/vcuda-freed"
KEPT = ("node-restriction.kubernetes.io/quarantined", "topology.kubernetes.io/zone", "node-role.kubernetes.io/gpu")
FILES = (
    "agent/serviceaccount.yaml",
    "agent/clusterrole.yaml",
    "agent/confined.yaml",
    "agent/claims.yaml",
    "scheduler/serviceaccount.yaml",
    "scheduler/rbac.yaml",
    "scheduler/policy.yaml",
)
PLACES = {
    **ADMISSION_PATHS,
    "ServiceAccount": f"{SYSTEM}/serviceaccounts",
    "DeviceClass": CLASSES,
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/kube-system/roles",
    "RoleBinding": f"{RBAC}/namespaces/kube-system/rolebindings",
}
EDIT = {
    "metadata": {"name": "written-tenant"},
    "subjects": [{"kind": "User", "name": "tenant", "apiGroup": "rbac.authorization.k8s.io"}],
    "roleRef": {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"},
}
WHOLE = {"name": "gpu", "exactly": {"deviceClassName": WHOLE_GPUS}}
DEVICE = {"driver": DRIVER, "pool": OWN, "device": "gpu-0"}
ALLOCATION = {
    "devices": {"results": [{**DEVICE, "request": "gpu"}]},
    "nodeSelector": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [OWN]}]}]
    },
}


def _account(admin: Client, name: str, node: str = "") -> Client:
    """`node`: where the pod runs whose token it is."""
    of_the_token = {"Impersonate-Extra-authentication.kubernetes.io%2Fnode-name": node} if node else {}
    user = {"Impersonate-User": f"system:serviceaccount:kube-system:{name}"}
    return Client(admin.server, admin.pool, {**user, **of_the_token})


def writers(admin: Client) -> dict[str, Client]:
    clients = (
        Client(admin.server, admin.pool, {"Impersonate-User": "tenant"}),
        as_kubelet(admin, OWN),
        as_kubelet(admin, OTHER),
        _account(admin, "vcuda-agent", OWN),
        _account(admin, "vcuda-agent", OTHER),
        _account(admin, "vcuda-scheduler"),
    )
    return dict(zip(WRITERS, clients, strict=True))


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Client]:
    """Rights, policies, two nodes, and on one of them a pod and a claim."""
    admin = cluster.admin
    texts = rendered("webhook.translateToClaims=true")
    manifests = [each for file in FILES for each in yaml.safe_load_all(texts[file]) if each]
    with contextlib.ExitStack() as undo:

        def make(path: str, body: Object) -> None:
            admin.post(path, body)
            undo.callback(_remove, admin, f"{path}/{body['metadata']['name']}")

        for each in manifests:
            inside = each["metadata"].get("namespace", "kube-system")
            make(PLACES[each["kind"]].replace("kube-system", inside), each)
        make(f"{RBAC}/namespaces/{NAMESPACE}/rolebindings", EDIT)
        for name in (OWN, OTHER):
            make("/api/v1/nodes", {"metadata": {"name": name, "labels": dict.fromkeys(KEPT, "1")}})
        bound = gpu_pod("written", {CORE: 20, "tencent.com/vcuda-memory": 1}, nodeName=OWN)
        bound["spec"]["tolerations"] = [{"operator": "Exists"}]
        make(PODS, bound)
        make(CLAIMS, {"metadata": {"name": "written"}, "spec": {"devices": {"requests": [WHOLE]}}})
        admin.merge(f"{CLAIM}/status", {"status": {"allocation": ALLOCATION}})
        for path in (LEASE, SECRET):
            _remove(admin, path)
            make(path.rpartition("/")[0], {"metadata": {"name": path.rpartition("/")[2]}})
        wait_until_in_force(admin)
        wait_until(lambda: _have_rights(admin), "the writers have their rights")
        yield admin


def _remove(admin: Client, path: str) -> None:
    with contextlib.suppress(ApiError):
        admin.delete(f"{path}?gracePeriodSeconds=0")


def _have_rights(admin: Client) -> bool:
    """The authorizer has read them, each kind by a watch: so the last that were stored are tried."""
    by, note = writers(admin), {"metadata": {"annotations": {"a": "b"}}}
    tries = ((by["tenant"], POD), (by["scheduler"], NODE), (by["scheduler"], SECRET))
    return not any("cannot patch resource" in refused(client, "PATCH", path, note) for client, path in tries)


def refused(client: Client, method: str, path: str, body: Object | None = None) -> str:
    """What the API server says; empty if it would do it."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        client.text(method, f"{path}?dryRun=All", body=body, content_type=kind)
    except ApiError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class Change:
    """A merge patch of one of these paths, or by PUT; or `post`ed to it."""

    paths: tuple[str, ...]
    body: Object
    post: bool = False

    def may(self, admin: Client, client: Client) -> bool:
        if self.post:
            return not refused(client, "POST", self.paths[0], self.body)
        return any(self._patched(client, path) or self._put(admin, client, path) for path in self.paths)

    def _patched(self, client: Client, path: str) -> bool:
        with contextlib.suppress(ApiError):
            return _has(client.merge(f"{path}?dryRun=All", self.body), self.body)
        return False

    def _put(self, admin: Client, client: Client, path: str) -> bool:
        whole = _merged(admin.get(path), self.body)
        with contextlib.suppress(ApiError):
            answer = yaml.safe_load(client.text("PUT", f"{path}?dryRun=All", body=whole))
            return _has(answer, self.body)
        return False


def _has(found: Any, asked: Any) -> bool:
    if isinstance(asked, Mapping):
        return isinstance(found, Mapping) and all(_has(found.get(key), value) for key, value in asked.items())
    if isinstance(asked, list):
        return isinstance(found, list) and len(found) == len(asked) and all(map(_has, found, asked))
    return bool(found == asked)


def _merged(before: Object, change: Object) -> Object:
    changed = {
        key: _merged(before.get(key, {}), value) if isinstance(value, dict) else value for key, value in change.items()
    }
    return {**before, **changed}


def _slice() -> Object:
    pools = {"name": OWN, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": OWN, "pool": pools, "devices": []}
    return {"metadata": {"generateName": f"{OWN}-vcuda-"}, "spec": spec}


def _more_cores() -> Object:
    container = {"name": "main", "resources": {"limits": {CORE: "30"}, "requests": {CORE: "30"}}}
    return {"spec": {"containers": [container]}}


OTHERS = {
    "limits vcuda-core": Change((POD, f"{POD}/resize"), _more_cores()),
    "vcuda-node-labels": Change((NODE,), {"metadata": {"annotations": {LISTED: "tencent.com/gpu-model"}}}),
    "status.phase": Change((POD, f"{POD}/status"), {"status": {"phase": "Failed"}}),
    "status.allocatable": Change((NODE, f"{NODE}/status"), {"status": {"allocatable": {CORE: "800"}}}),
    "ResourceSlice": Change((SLICES,), _slice(), post=True),
    "status.allocation": Change((CLAIM, f"{CLAIM}/status"), {"status": {"allocation": None}}),
    "status.devices": Change((CLAIM, f"{CLAIM}/status"), {"status": {"devices": [{**DEVICE, "data": {"a": 1}}]}}),
    "Lease vcuda-scheduler": Change((LEASE,), {"spec": {"holderIdentity": "x"}}),
    "Secret vcuda-scheduler-tls": Change((SECRET,), {"data": {"ca.crt": "eA=="}}),
}


def change_of(field: WrittenField) -> Change:
    if field.name in OTHERS:
        return OTHERS[field.name]
    kind, _, name = field.name.rpartition(" ")
    full = name if "/" in name or name == "clusterName" else f"tencent.com/{name}"
    path = {"pod": POD, "node": NODE}[field.of]
    where = "labels" if kind == "label" else "annotations"
    return Change((path, f"{path}/status"), {"metadata": {where: {full: "forged"}}})


TRIED = [each for each in written_fields() if each.of != "container"]


@pytest.mark.parametrize("field", TRIED, ids=lambda each: f"{each.of} {each.name}")
def test_the_table_says_who_may_write_it(admin: Client, field: WrittenField) -> None:
    """Security B-2, B-9, A-8: nothing is believed that somebody else can still change."""
    change = change_of(field)
    assert {name for name, client in writers(admin).items() if change.may(admin, client)} == field.writers


def test_kubelet_and_agent_together_remove_no_label_that_is_kept_from_both(admin: Client) -> None:
    """Security B-9: the one writes the list, the other removes what it names."""
    kubelet, agent = as_kubelet(admin, OWN), _account(admin, "vcuda-agent", OWN)
    own = "example.org/of-kubelet"
    kubelet.merge(NODE, {"metadata": {"labels": {own: "1"}, "annotations": {LISTED: ",".join((own, *KEPT))}}})
    try:
        for label in KEPT:
            change: Object = {"metadata": {"labels": {label: None}}}
            assert "changes only the labels" in refused(agent, "PATCH", NODE, change), label
        assert "restriction" in refused(kubelet, "PATCH", NODE, {"metadata": {"labels": {KEPT[0]: None}}})
        assert not refused(agent, "PATCH", NODE, {"metadata": {"labels": {own: None}, "annotations": {LISTED: ""}}})
    finally:
        admin.merge(NODE, {"metadata": {"labels": {own: None}, "annotations": {LISTED: None}}})


NOTHING, ONLY = "changes nothing of a node but an annotation", f"changes only the annotation {FREED} of a node"
LABEL = "tencent.com/vcuda-claims"
TEMPLATE: Object = {"spec": {"spec": {"devices": {"requests": [WHOLE]}}}}
OF_THE_SCHEDULER: dict[str, tuple[str, str, Object | None, str]] = {
    "wake kube-scheduler": ("PATCH", NODE, {"metadata": {"annotations": {FREED: "1"}}}, ""),
    "label a node": ("PATCH", NODE, {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, NOTHING),
    "free a quarantined node": ("PATCH", NODE, {"metadata": {"labels": {KEPT[0]: None}}}, NOTHING),
    "taint a node": ("PATCH", NODE, {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, NOTHING),
    "cordon a node": ("PATCH", NODE, {"spec": {"unschedulable": True}}, NOTHING),
    "hold a node": ("PATCH", NODE, {"metadata": {"finalizers": ["a.org/b"]}}, NOTHING),
    "say a node's GPUs": ("PATCH", NODE, {"metadata": {"annotations": {"tencent.com/vcuda-inventory": "{}"}}}, ONLY),
    "cordon GPUs": ("PATCH", NODE, {"metadata": {"annotations": {"tencent.com/vcuda-cordon": "0"}}}, ONLY),
    "annotate a node": ("PATCH", NODE, {"metadata": {"annotations": {"a": "b"}}}, ONLY),
    "make room": ("DELETE", POD, None, ""),
    "delete a pod that waits": ("DELETE", f"{PODS}/written-waiting", None, "deletes only pods that have a node"),
    "delete what keeps the node": ("DELETE", f"{SYSTEM}/pods/written-critical", None, "deletes only pods that have a"),
    "make a template": (
        "POST", TEMPLATES, {**TEMPLATE, "metadata": {"name": "vcuda-1x1c1b", "labels": {LABEL: "true"}}}, "",
    ),
    "make any template": ("POST", TEMPLATES, {**TEMPLATE, "metadata": {"name": "a"}}, "makes and deletes only"),
    "make one without the label": (
        "POST", TEMPLATES, {**TEMPLATE, "metadata": {"name": "vcuda-1x1c1b"}}, "makes and deletes only",
    ),
    "delete a template": ("DELETE", f"{TEMPLATES}/vcuda-written", None, ""),
    "delete a tenant's template": ("DELETE", f"{TEMPLATES}/written", None, "makes and deletes only"),
    "be sent what is written": (
        "PATCH", f"{WEBHOOKS}/vcuda-scheduler", {"webhooks": []}, "cannot patch resource",
    ),
    "read Secrets": ("GET", f"{SYSTEM}/secrets", None, "cannot list resource"),
    "write another Secret": ("POST", f"{SYSTEM}/secrets", {"metadata": {"name": "other"}}, "only its own Secret"),
    "change an image": (
        "PATCH", POD, {"spec": {"containers": [{"name": "main", "image": "evil"}]}}, "cannot patch resource",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def victims(admin: Client) -> Iterator[None]:
    """A pod that waits, one that keeps its node alive, and two templates."""
    waiting = gpu_pod("written-waiting", {CORE: 20}, schedulerName="nobody")
    critical = gpu_pod("written-critical", {}, nodeName=OWN, priorityClassName="system-node-critical")
    critical["metadata"]["namespace"] = "kube-system"
    templates = ({"name": "written"}, {"name": "vcuda-written", "labels": {LABEL: "true"}})
    with contextlib.ExitStack() as undo:
        for path, body in (
            (PODS, waiting),
            (f"{SYSTEM}/pods", critical),
            *((TEMPLATES, {**TEMPLATE, "metadata": each}) for each in templates),
        ):
            admin.post(path, body)
            undo.callback(_remove, admin, f"{path}/{body['metadata']['name']}")
        yield


@pytest.mark.usefixtures("victims")
@pytest.mark.parametrize(("method", "path", "body", "said"), OF_THE_SCHEDULER.values(), ids=OF_THE_SCHEDULER)
def test_the_scheduler_writes_what_it_writes_and_no_more(
    admin: Client, method: str, path: str, body: Object | None, said: str
) -> None:
    """Security B-12: who takes over the scheduler has its token."""
    found = refused(_account(admin, "vcuda-scheduler"), method, path, body)
    assert (said in found) if said else not found, found
