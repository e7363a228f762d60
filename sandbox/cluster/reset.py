"""The node as it was before any test: for the tests that come after one that failed and may have left anything.

In: the running cluster. Out: no pod, no claim, nothing that a chart or a test put into the API server, no word of vcuda
on the node object, and a kubelet that remembers no device. Not here: agents that tests started as processes, which end
with what started them. Invariant: what cannot be removed does not keep the rest from being removed.
"""

import contextlib

from sandbox.cluster import pods
from sandbox.cluster.claims import CLAIMS, CLASSES, SLICES, TEMPLATES
from sandbox.cluster.client import ApiError
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.policies import BINDINGS, POLICIES, WEBHOOKS
from sandbox.cluster.waiting import DeadlineError, wait_until

_BY_HELM = "?labelSelector=app.kubernetes.io/managed-by=Helm"
_SYSTEM, _RIGHTS = "namespaces/kube-system", "/apis/rbac.authorization.k8s.io/v1"
_PODS = (f"/api/v1/{_SYSTEM}/pods", f"/api/v1/namespaces/{pods.NAMESPACE}/pods")
_COLLECTIONS = (
    WEBHOOKS,  # first: nothing may stand in the way of the others
    BINDINGS,
    POLICIES,
    f"/apis/apps/v1/{_SYSTEM}/daemonsets",
    f"/apis/apps/v1/{_SYSTEM}/deployments",
    f"/apis/apps/v1/namespaces/{pods.NAMESPACE}/deployments",
    f"/apis/batch/v1/namespaces/{pods.NAMESPACE}/jobs",
    f"/api/v1/{_SYSTEM}/secrets?labelSelector=owner=helm",
    *(f"/api/v1/{_SYSTEM}/{kind}{_BY_HELM}" for kind in ("configmaps", "serviceaccounts", "secrets")),
    *(f"{_RIGHTS}/{kind}{_BY_HELM}" for kind in ("clusterroles", "clusterrolebindings")),
    *(f"{_RIGHTS}/{_SYSTEM}/{kind}{_BY_HELM}" for kind in ("roles", "rolebindings")),
    f"/apis/policy/v1/{_SYSTEM}/poddisruptionbudgets{_BY_HELM}",
    f"/apis/scheduling.k8s.io/v1/priorityclasses{_BY_HELM}",
    *(f"{path}?gracePeriodSeconds=1" for path in _PODS),
    TEMPLATES,
    CLAIMS,
    SLICES,
    CLASSES,
)
_REMEMBERED = ("device-plugins/kubelet_internal_checkpoint", "dra_manager_state", "dra_health_state")
_PATIENCE_S = 60.0


def reset(cluster: Cluster) -> None:
    for path in _COLLECTIONS:
        with contextlib.suppress(ApiError):
            cluster.admin.delete(path)
    _remove_services(cluster)
    _end_pods(cluster)
    _forget_node(cluster)
    cluster.kubelet.stop()
    for name in _REMEMBERED:
        (cluster.layout.kubelet / name).unlink(missing_ok=True)
    _forget_resources(cluster)
    cluster.kubelet.start()


def _remove_services(cluster: Cluster) -> None:
    """These cannot be deleted together."""
    path = f"/api/v1/{_SYSTEM}/services"
    with contextlib.suppress(ApiError):
        for each in cluster.admin.get(f"{path}{_BY_HELM}")["items"]:
            with contextlib.suppress(ApiError):
                cluster.admin.delete(f"{path}/{each['metadata']['name']}")


def _end_pods(cluster: Cluster) -> None:
    """Those that do not end are deleted without waiting for kubelet."""
    admin = cluster.admin

    def gone() -> bool:
        return not [pod for path in _PODS for pod in admin.get(path)["items"]]

    with contextlib.suppress(DeadlineError, ApiError):
        wait_until(gone, "all pods have ended", seconds=_PATIENCE_S)
    for path in _PODS:
        with contextlib.suppress(ApiError):
            admin.delete(f"{path}?gracePeriodSeconds=0")


def _forget_node(cluster: Cluster) -> None:
    """Labels and annotations but those of Kubernetes, and what keeps pods away."""
    path = f"/api/v1/nodes/{cluster.kubelet.node}"
    with contextlib.suppress(ApiError):
        meta = cluster.admin.get(path)["metadata"]
        foreign = {
            kind: {key: None for key in meta.get(kind, {}) if "kubernetes.io/" not in key}
            for kind in ("labels", "annotations")
        }
        cluster.admin.merge(path, {"metadata": foreign, "spec": {"unschedulable": None, "taints": None}})


def _forget_resources(cluster: Cluster) -> None:
    """Those of device plugins. Kubelet takes what no plugin has told it from the node object, so they would stay."""
    path = f"/api/v1/nodes/{cluster.kubelet.node}"
    with contextlib.suppress(ApiError):
        status = cluster.admin.get(path).get("status") or {}
        of_plugins = {
            kind: {name: None for name in status.get(kind) or {} if "/" in name} for kind in ("capacity", "allocatable")
        }
        cluster.admin.merge(f"{path}/status", {"status": of_plugins})
