"""The chart's monitors carried out on real pods, as the Prometheus operator does it, for a Prometheus on this machine.

In: the release, and the monitors and rules of its chart in the registry. Out: a configuration of Prometheus with one
job for each endpoint, one target for each pod and the rules, and what a Prometheus with it has then seen. Invariant:
the account of Prometheus is gone afterwards.
"""

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from sandbox.prometheus import Json, Prometheus
from tests.daemonset.chart import Object, documents
from tests.e2e.installed.release import NAMESPACE, Release

_MONITORS, _RULES = "templates/scheduler/monitor.yaml", "templates/monitoring/rules.yaml"
_KINDS = {"PodMonitor": "podMetricsEndpoints", "ServiceMonitor": "endpoints"}


@dataclass(frozen=True, slots=True)
class Shown:
    """With what Prometheus reaches those who ask who it is: files of its own."""

    ca: Path
    token: Path


@contextmanager
def account(release: Release, folder: Path) -> Iterator[Shown]:
    """The service account of a Prometheus, with the one right that the guide asks for."""
    admin, accounts = release.admin, "/api/v1/namespaces/default/serviceaccounts"
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    metadata: Object = {"name": "prometheus"}
    admin.post(accounts, {"metadata": metadata})
    admin.post(
        f"{rbac}/clusterroles", {"metadata": metadata, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]}
    )
    admin.post(
        f"{rbac}/clusterrolebindings",
        {
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "prometheus"},
            "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": "default"}],
        },
    )
    shown = Shown(folder / "ca.crt", folder / "token")
    shown.token.write_text(admin.post(f"{accounts}/prometheus/token", {"spec": {}})["status"]["token"])
    secret = admin.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/vcuda-scheduler-tls")
    shown.ca.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    try:
        yield shown
    finally:
        for path in (f"{rbac}/clusterrolebindings", f"{rbac}/clusterroles", accounts):
            admin.delete(f"{path}/prometheus")


def configuration(release: Release, shown: Shown, rules: Path) -> Json:
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            job
            for monitor in _rendered(release, _MONITORS, "monitoring.enabled=true")
            for job in _jobs(release, monitor, shown)
        ],
    }


def rules(release: Release, folder: Path, *, pending: str | None = None) -> Path:
    """The file that the Prometheus operator makes of the PrometheusRule. `pending` replaces every `for`."""
    (found,) = _rendered(release, _RULES, "monitoring.rules.enabled=true")
    groups = found["spec"]["groups"]
    for rule in (each for group in groups for each in group["rules"] if "for" in each and pending is not None):
        rule["for"] = pending
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": groups}))
    return file


def _rendered(release: Release, template: str, value: str) -> list[Object]:
    """For a cluster with the Prometheus operator, which this one has not. Helm says first what it has fetched."""
    shown = ("--api-versions=monitoring.coreos.com/v1", f"--show-only={template}")
    said = release.say("template", "vcuda", *release.registry.chart, f"--set={value}", *shown)
    return [each for each in documents(said) if "kind" in each]


def _jobs(release: Release, monitor: Object, shown: Shown) -> Iterator[Json]:
    name = monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]
    for endpoint in monitor["spec"][_KINDS[monitor["kind"]]]:
        port = endpoint["port"]
        if monitor["kind"] == "ServiceMonitor":
            ports = release.admin.get(f"/api/v1/namespaces/{NAMESPACE}/services/{name}")["spec"]["ports"]
            (port,) = (each["targetPort"] for each in ports if each["name"] == endpoint["port"])
        yield {
            "job_name": f"{monitor['kind']}/{monitor['metadata']['name']}/{endpoint['port']}",
            "honor_labels": endpoint.get("honorLabels", False),
            "scheme": endpoint.get("scheme", "http"),
            "metrics_path": endpoint["path"],
            "static_configs": [_target(pod, port) for pod in release.pods(name)],
            "relabel_configs": [_in_snake_case(each) for each in endpoint["relabelings"]],
            **_credentials(release, endpoint, shown),
        }


def _target(pod: Object, port: str) -> Json:
    spec = pod["spec"]
    ((container, number),) = (
        (each["name"], found["containerPort"])
        for each in (*spec.get("initContainers", ()), *spec["containers"])
        for found in each.get("ports", ())
        if found["name"] == port
    )
    labels = {
        "namespace": pod["metadata"]["namespace"],
        "pod": pod["metadata"]["name"],
        "container": container,
        "__meta_kubernetes_pod_node_name": spec["nodeName"],
    }
    return {"targets": [f"{pod['status']['podIP']}:{number}"], "labels": labels}


def _credentials(release: Release, endpoint: Object, shown: Shown) -> Json:
    found: Json = {}
    if tls := endpoint.get("tlsConfig"):
        is_verified = not tls.get("insecureSkipVerify", False)
        found["tls_config"] = {"insecure_skip_verify": not is_verified}
        if is_verified:
            found["tls_config"] |= {"ca_file": str(shown.ca), "server_name": tls["serverName"]}
    if "bearerTokenFile" in endpoint:
        found["authorization"] = {"credentials_file": str(shown.token)}
    if given := endpoint.get("authorization"):
        assert (given["credentials"]["name"], given["credentials"]["key"]) == ("vcuda-agent-names", "token")
        found["authorization"] = {"type": given["type"], "credentials": release.names_token()}
    return found


def _in_snake_case(relabeling: Object) -> Json:
    return {re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", key): value for key, value in relabeling.items()}


async def scraped(settings: Json, home: Path) -> dict[str, dict[str, float]]:
    """What answers, by job; whose containers are shown; pods by kube-scheduler's queues; alerts, also pending ones."""
    queries = {
        "up": ("job", "sum by (job) (up)"),
        "pods": ("pod", "count by (pod) (vcuda_container_memory_limit_bytes)"),
        "queues": ("queue", 'sum by (queue) (scheduler_pending_pods{job="vcuda-kube-scheduler"})'),
        "alerts": ("alertname", "count by (alertname) (ALERTS)"),
    }
    prometheus = Prometheus(home, settings)
    try:
        await prometheus.start()
        await prometheus.wait_scraped("vcuda-agent", "vcuda-scheduler", "vcuda-kube-scheduler")
        found = {name: (label, await prometheus.query(query)) for name, (label, query) in queries.items()}
    finally:
        await prometheus.destroy()
    return {name: {labels[label]: value for labels, value in rows} for name, (label, rows) in found.items()}
