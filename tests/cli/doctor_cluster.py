"""A whole installation behind a stand-in API server, healthy until a test breaks a part of it.

In: a `Release` of objects as the API server has them. Out: a real HTTP server. Its lists are paged two items at a time,
it says who may do what, and it lets a pod through the webhook of the release, or does not.
"""

import base64
import datetime as dt
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from deviceplugin import __version__
from deviceplugin.cluster.certificates.keypair import make_ca
from tests.cli.view_server import SERVICE, Cluster, status
from tests.scheduler.scene import gpu_node, webhook_configuration

Json = dict[str, Any]
NAMESPACE = "kube-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CA = make_ca(dt.datetime.now(dt.UTC), dt.timedelta(days=3650))
"""With an end that its metric has too."""


def own_pod(name: str, app: str, *, node: str, ready: bool = True, waiting: str = "", says: str = "") -> Json:
    container = "agent" if app == "vcuda-agent" else "extender"
    port = {"name": "http", "containerPort": 5678} if container == "agent" else {"name": "https", "containerPort": 8443}
    state = {"waiting": {"reason": waiting, "message": says}} if waiting else {"running": {}}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": app}},
        "spec": {
            "nodeName": node,
            "containers": [{"name": container, "image": "vcuda:1", "ports": [port]}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [
                {"name": container, "ready": ready, "image": "vcuda:1", "imageID": "sha256:1", "state": state}
            ],
        },
    }


def scheduler_metrics(*, leads: bool, version: str = __version__, ca_ends: float | None = None, asked: int = 3) -> str:
    ends = CA.certificate.not_valid_after_utc.timestamp() if ca_ends is None else ca_ends
    return "\n".join(
        [
            f'vcuda_scheduler_build_info{{version="{version}"}} 1.0',
            f"vcuda_scheduler_leader {float(leads)}",
            f'vcuda_scheduler_certificate_expiration_timestamp_seconds{{certificate="ca"}} {ends!r}',
            f'vcuda_scheduler_requests_total{{verb="filter",outcome="chosen"}} {float(asked)}',
            'vcuda_scheduler_requests_total{verb="filter",outcome="refused"} 0.0',
            "",
        ]
    )


def webhook(ca: bytes = CA.chain) -> Json:
    made = webhook_configuration()
    made["webhooks"][0]["clientConfig"]["service"]["namespace"] = NAMESPACE
    made["webhooks"][0]["clientConfig"]["caBundle"] = base64.b64encode(ca).decode()
    made["webhooks"][0]["namespaceSelector"] = {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "left-out"]},
            {"key": "tencent.com/vcuda-webhook", "operator": "NotIn", "values": ["ignore"]},
        ]
    }
    return made


@dataclass
class Release(Cluster):
    """`forbidden`: paths, or the beginnings of them, to which the caller has no right."""

    version: str = "v1.36.1"
    objects: list[Json] = field(default_factory=lambda: [gpu_node("node-a"), gpu_node("node-b")])
    own_pods: list[Json] = field(
        default_factory=lambda: [
            own_pod("vcuda-agent-a", "vcuda-agent", node="node-a"),
            own_pod("vcuda-agent-b", "vcuda-agent", node="node-b"),
            own_pod("vcuda-scheduler-1", "vcuda-scheduler", node="node-a"),
            own_pod("vcuda-scheduler-2", "vcuda-scheduler", node="node-b"),
        ]
    )
    metrics: dict[str, str] = field(
        default_factory=lambda: {
            "https:vcuda-scheduler-1:8443": scheduler_metrics(leads=True),
            "https:vcuda-scheduler-2:8443": scheduler_metrics(leads=False),
            "vcuda-agent-a:5678": f'vcuda_build_info{{version="{__version__}"}} 1.0\n',
        }
    )
    daemon_set: Json | None = field(
        default_factory=lambda: {"desiredNumberScheduled": 2, "numberReady": 2, "updatedNumberScheduled": 2}
    )
    deployment: Json | None = field(default_factory=lambda: {"readyReplicas": 2, "updatedReplicas": 2, "replicas": 2})
    webhook: Json | None = field(default_factory=webhook)
    slices: list[Json] | None = field(default_factory=list)
    mutates: bool = True
    labels: dict[str, str] = field(default_factory=dict)
    admission_error: tuple[int, str] | None = None
    view: Json = field(default_factory=dict)
    forbidden: tuple[str, ...] = ()
    may_not: tuple[str, ...] = ()
    tried: list[tuple[str, Json]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if any(path.startswith(each) for each in self.forbidden):
            return status(403, f'User "ann" cannot get path "{path}"')
        if request.method == "POST" and path.endswith("/selfsubjectaccessreviews"):
            asked = (await request.json())["spec"]["resourceAttributes"]
            what = f"{asked['verb']} {asked['resource']}/{asked['subresource']}"
            refused = what in self.may_not or f"{what} {asked['name']}" in self.may_not
            return web.json_response({"status": {"allowed": not refused}}, status=201)
        if request.method == "POST" and path.endswith("/pods"):
            return self._admit(path, dict(request.query), await request.json())
        if path == f"{SERVICE}/view/cluster" and path not in self.answers:
            response = await super().answer(request)
            assert isinstance(response, web.Response)
            assert isinstance(response.body, bytes)
            return web.json_response(json.loads(response.body) | self.view)
        return await super().answer(request)

    def _admit(self, path: str, query: dict[str, str], pod: Json) -> web.Response:
        assert query["dryRun"] == "All", "nothing may be created"
        self.tried.append((path, pod))
        if self.admission_error:
            return status(*self.admission_error)
        pod["spec"]["schedulerName"] = "vcuda-scheduler" if self.mutates else "default-scheduler"
        return web.json_response(pod, status=201)

    def _api(self, path: str, query: dict[str, str]) -> web.Response:
        apps = f"/apis/apps/v1/namespaces/{NAMESPACE}"
        single: dict[str, Json | None] = {
            "/version": {"major": "1", "gitVersion": self.version},
            f"{apps}/daemonsets/vcuda-agent": self._workload(self.daemon_set),
            f"{apps}/deployments/vcuda-scheduler": self._workload(self.deployment),
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/vcuda-scheduler": self.webhook,
        }
        if path in single:
            found = single[path]
            return status(404, f"{path} not found") if found is None else web.json_response(found)
        if path.startswith("/api/v1/namespaces/") and path.count("/") == 4:
            return web.json_response({"metadata": {"name": path.rpartition("/")[2], "labels": self.labels}})
        if path == "/apis/resource.k8s.io/v1/resourceslices":
            return status(404, "404 page not found") if self.slices is None else self._listed(self.slices, query)
        if path == "/api/v1/nodes":
            return self._listed(self.objects, query)
        if path == PODS and "labelSelector" in query:
            wanted = query["labelSelector"].rpartition("=")[2]
            own = [each for each in self.own_pods if each["metadata"]["labels"]["app.kubernetes.io/name"] == wanted]
            return self._listed(own, query)
        if path.startswith(f"{PODS}/") and path.endswith("/proxy/metrics"):
            target = path.removeprefix(f"{PODS}/").removesuffix("/proxy/metrics")
            if target in self.metrics:
                return web.Response(text=self.metrics[target])
            return status(503, f"error trying to reach service: dial {target}")
        return super()._api(path, query)

    def _workload(self, found: Json | None) -> Json | None:
        if found is None:
            return None
        return {"metadata": {"name": "x"}, "spec": {"replicas": found.get("replicas")}, "status": found}

    def _listed(self, items: list[Json], query: dict[str, str]) -> web.Response:
        begin = int(query.get("continue", "0"))
        end = begin + 2
        more = {"continue": str(end)} if end < len(items) else {}
        return web.json_response({"items": items[begin:end], "metadata": more})
