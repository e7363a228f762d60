"""What the API server does with a new pod before it is stored: it asks the webhook. The stand-in server leaves it out.

In: a pod as a user wrote it. Out: the pod as it is stored, or a `DeniedError` with the webhook's sentence. The
CA is the caBundle of the webhook's configuration in the store at that moment. Not here: the match
conditions (the caller sends only pods that concern the webhook).
"""

import base64
import copy
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from sandbox.apiserver import ApiServer
from sandbox.scheduler import SchedulerProcess

CONFIGURATIONS = "mutatingwebhookconfigurations"
CONFIGURATION = "vcuda-scheduler"
SHIPPED = Path(__file__).parents[1] / "daemonset/scheduler/webhook.yaml"
Json = dict[str, Any]


class DeniedError(Exception):
    """The pod is not stored; the message is the webhook's."""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """A pod before and after the webhook."""

    asked: Json
    stored: Json
    warnings: tuple[str, ...]


def install_webhook(server: ApiServer) -> None:
    """The shipped configuration, as `kubectl apply` leaves it: without a caBundle."""
    server.store.create(CONFIGURATIONS, yaml.safe_load(SHIPPED.read_text()))


def ca_bundle(server: ApiServer) -> str:
    """Empty until `vcuda scheduler` has written it."""
    hook = server.store.get(CONFIGURATIONS, CONFIGURATION)["webhooks"][0]
    return base64.b64decode(hook["clientConfig"].get("caBundle") or "").decode()


async def create_pod(server: ApiServer, scheduler: SchedulerProcess, pod: Json) -> Reviewed:
    """As the API server answers `kubectl create`."""
    asked = copy.deepcopy(pod)
    _default_requests(asked)
    namespace = asked["metadata"].get("namespace", "default")
    status, answer = await scheduler.ask("/webhook?timeout=5s", _review(asked, namespace), ca=ca_bundle(server))
    if status != 200:
        raise DeniedError(f'failed calling webhook "pods.vcuda.tencent.com": {answer}')
    response = answer["response"]
    if not response["allowed"]:
        raise DeniedError(response["status"]["message"])
    changed = jsonpatch.apply_patch(asked, json.loads(base64.b64decode(response.get("patch") or "W10=")))
    stored = server.store.create("pods", changed, namespace=namespace)
    return Reviewed(pod, stored, tuple(response.get("warnings") or ()))


def _review(pod: Json, namespace: str) -> Json:
    request = {
        "uid": str(uuid.uuid4()),
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": pod["metadata"]["name"],
        "namespace": namespace,
        "operation": "CREATE",
        "object": pod,
        "oldObject": None,
        "dryRun": False,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _default_requests(pod: Json) -> None:
    """The API server completes requests from limits before it calls webhooks, and names a scheduler."""
    spec = pod["spec"]
    spec.setdefault("schedulerName", "default-scheduler")
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        resources = container.setdefault("resources", {})
        resources["requests"] = {**resources.get("limits", {}), **resources.get("requests", {})}
