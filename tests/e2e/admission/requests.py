"""What the tests of admission send: pods, namespaces and objects of the API group, and as which account.

In: the administrator's client. Out: manifests, clients of other accounts, refusals. Invariant: whatever is made in the
cluster here is removed at the end of its context.
"""

import base64
import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from deviceplugin.cluster.webhook.resources import GpuKind, KnownGpus
from deviceplugin.config.scheduler import HamiSettings, WebhookSettings
from sandbox.cluster import pods
from sandbox.cluster.admission import WebhookServer
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.policies import ADMISSION_PATHS, wait_until_in_force
from sandbox.cluster.waiting import wait_until
from tests.daemonset.manifests import Object, documents

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
ALLOCATION, INDEX = "tencent.com/vcuda-allocation", "tencent.com/predicate-gpu-idx-0"
KNOWN = KnownGpus(160, most=8, kinds=(GpuKind("NVIDIA A100", 40960), GpuKind("NVIDIA A100", 81920)))
# Every one translated and hidden that can be, so that the API server sees all kinds of patches.
SETTINGS = WebhookSettings(hami=HamiSettings(), hide_gpus=True)
DRY = f"{pods.PODS}?dryRun=All"
MIRROR = "kubernetes.io/config.mirror"


def as_account(admin: Client, account: str, namespace: str = "kube-system") -> Client:
    """A service account, and for its rights a cluster administrator."""
    user = f"system:serviceaccount:{namespace}:{account}"
    return Client(admin.server, admin.pool, {"Impersonate-User": user, "Impersonate-Group": "system:masters"})


def gpu_pod(name: str, limits: dict[str, int], *, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    made = pods.pod(name, [pods.container("main", "sleep 1", limits)], **spec)
    made["metadata"]["annotations"] = annotations or {}
    return made


@contextlib.contextmanager
def applied(admin: Client, *objects: Object) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        for item in objects:
            path = ADMISSION_PATHS[item["kind"]]
            admin.post(f"{path}?fieldValidation=Strict", item)
            undo.callback(admin.delete, f"{path}/{item['metadata']['name']}")
        if any("Policy" in item["kind"] for item in objects):
            wait_until_in_force(admin)
        yield


def configuration(server: WebhookServer, cluster: Cluster) -> Object:
    """The shipped one, but for the way to the server."""
    made = copy.deepcopy(documents("scheduler/webhook.yaml")[0])
    bundle = base64.b64encode(cluster.ca.certificate.read_bytes()).decode()
    made["webhooks"][0]["clientConfig"] = {"url": server.url, "caBundle": bundle}
    return made


def refusal(client: Client, manifest: Object) -> str:
    with pytest.raises(ApiError) as refused:
        client.post(DRY, manifest)
    return str(refused.value)


def in_namespace(namespace: str, manifest: Object) -> tuple[str, Object]:
    manifest = copy.deepcopy(manifest)
    manifest["metadata"]["namespace"] = namespace
    manifest["spec"].pop("serviceAccountName", None)
    return f"/api/v1/namespaces/{namespace}/pods?dryRun=All", manifest


def as_kubelet(admin: Client, node: str) -> Client:
    groups = "system:nodes"  # urllib3 sends a header once; the API server adds system:authenticated
    return Client(admin.server, admin.pool, {"Impersonate-User": f"system:node:{node}", "Impersonate-Group": groups})


def static_pod(name: str, node: Object, **annotations: str) -> Object:
    """A mirror pod at the API server, as the node's kubelet makes it."""
    mirror = {MIRROR: "abc", "kubernetes.io/config.source": "file", **annotations}
    made = gpu_pod(name, {CORE: 100}, annotations=mirror, nodeName=node["metadata"]["name"])
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "controller": True,
        **{k: node["metadata"][k] for k in ("name", "uid")},
    }
    made["metadata"]["ownerReferences"] = [owner]
    made["spec"]["automountServiceAccountToken"] = False
    return made


@contextlib.contextmanager
def labelled_namespace(client: Client, name: str, labels: dict[str, str]) -> Iterator[str]:
    client.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    try:
        wait_until(lambda: _has_account(client, name), "the namespace has its service account")
        yield name
    finally:
        client.delete(f"/api/v1/namespaces/{name}")


def _has_account(client: Client, namespace: str) -> bool:
    found = client.get(f"/api/v1/namespaces/{namespace}/serviceaccounts")["items"]
    return "default" in [each["metadata"]["name"] for each in found]
