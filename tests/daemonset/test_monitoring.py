"""Monitors, rules and dashboards as the chart makes them."""

import json

import pytest
import yaml

from scripts import manifests
from tests.daemonset.chart import NAMESPACE, Chart, Object, Rendered

ON: Object = {
    "enabled": True,
    "labels": {"release": "prom"},
    "rules": {"enabled": True},
    "dashboards": {"enabled": True},
}
RULES = manifests.CHART / "rules" / "vcuda.yaml"
DASHBOARDS = manifests.CHART / "dashboards"


@pytest.fixture(scope="module")
def monitored(chart: Chart) -> Rendered:
    return chart.render({"monitoring": ON})


def groups(rendered: Rendered) -> dict[str, list[Object]]:
    spec = rendered.get("PrometheusRule", "vcuda")["spec"]
    return {group["name"]: group["rules"] for group in spec["groups"]}


def test_nothing_is_there_unless_asked(defaults: Rendered) -> None:
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        assert not defaults.names(kind)
    assert not [name for name in defaults.names("ConfigMap") if "dashboard" in name]


def test_a_cluster_without_the_prometheus_operator_is_told_so(chart: Chart) -> None:
    asked: dict[str, Object] = {"enabled": {"enabled": True}, "rules.enabled": {"rules": {"enabled": True}}}
    for value, monitoring in asked.items():
        said = chart.refusal({"monitoring": monitoring})
        assert f"monitoring.{value} needs the API monitoring.coreos.com/v1 of the Prometheus operator" in said
        assert "helm template: --api-versions=monitoring.coreos.com/v1" in said


def test_metrics_of_containers_keep_their_pods(monitored: Rendered) -> None:
    (endpoint,) = monitored.get("PodMonitor", "vcuda-agent")["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    (port,) = monitored.agent["containers"][0]["ports"]
    assert endpoint["port"] == port["name"]


def endpoints(rendered: Rendered) -> dict[str, Object]:
    """Of every monitor, by its name."""
    found = {"vcuda-agent": rendered.get("PodMonitor", "vcuda-agent")["spec"]["podMetricsEndpoints"]}
    for name in rendered.names("ServiceMonitor"):
        found[name] = rendered.get("ServiceMonitor", name)["spec"]["endpoints"]
    return {name: endpoint for name, (endpoint,) in found.items()}


def test_targets_have_the_labels_that_the_rules_expect(monitored: Rendered) -> None:
    found = endpoints(monitored)
    assert set(found) == {"vcuda-agent", "vcuda-scheduler", "vcuda-kube-scheduler"}
    for name, endpoint in found.items():
        assert endpoint["relabelings"] == [
            {"action": "replace", "targetLabel": "job", "replacement": name},
            {"action": "replace", "targetLabel": "node", "sourceLabels": ["__meta_kubernetes_pod_node_name"]},
        ]


def test_how_often_and_what_else_is_done_to_metrics_are_values(chart: Chart) -> None:
    drop = {"sourceLabels": ["__name__"], "regex": "process_.*", "action": "drop"}
    more = {"targetLabel": "cluster", "replacement": "west"}
    given = {"interval": "30s", "scrapeTimeout": "20s", "relabelings": [more], "metricRelabelings": [drop]}
    rendered = chart.render({"monitoring": {**ON, **given}})
    for endpoint in endpoints(rendered).values():
        assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("30s", "20s")
        assert endpoint["relabelings"][2:] == [more]
        assert endpoint["metricRelabelings"] == [drop]


def test_kube_schedulers_own_metrics_are_reached_by_a_port_of_the_service(monitored: Rendered, chart: Chart) -> None:
    found = endpoints(monitored)
    assert (found["vcuda-scheduler"]["port"], found["vcuda-kube-scheduler"]["port"]) == ("https", "kube-scheduler")
    assert "bearerTokenFile" not in found["vcuda-scheduler"], "a Prometheus may refuse monitors that name files"
    ports = {each["name"]: each for each in monitored.get("Service", "vcuda-scheduler")["spec"]["ports"]}
    names = {port["name"] for each in monitored.scheduler["containers"] for port in each["ports"]}
    assert ports["kube-scheduler"]["targetPort"] in names
    policy = {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}
    guarded = chart.render({"scheduler": {"networkPolicy": policy}})
    (rule,) = guarded.get("NetworkPolicy", "vcuda-scheduler")["spec"]["ingress"]
    assert {each["port"] for each in rule["ports"]} == {"https", ports["kube-scheduler"]["targetPort"]}


def test_a_kube_scheduler_that_is_not_the_charts_is_not_scraped(chart: Chart) -> None:
    switched_off: Object = {"monitoring": {**ON, "kubeScheduler": False}}
    elsewhere: Object = {"leaderElection": "own", "callers": {"ca": {"name": "callers"}}}
    for values in (switched_off, {"monitoring": ON, "scheduler": elsewhere}):
        rendered = chart.render(values)
        assert rendered.names("ServiceMonitor") == {"vcuda-scheduler"}, values
        (port,) = rendered.get("Service", "vcuda-scheduler")["spec"]["ports"]
        assert endpoints(rendered)["vcuda-scheduler"]["port"] == port["name"] == "https", values


def test_the_rules_are_those_of_the_file(monitored: Rendered) -> None:
    written = {group["name"]: group["rules"] for group in yaml.safe_load(RULES.read_text())["groups"]}
    assert groups(monitored) == written
    assert monitored.get("PrometheusRule", "vcuda")["metadata"]["labels"]["release"] == "prom"


def test_rules_can_be_chosen_and_lead_where_the_operator_publishes_the_runbooks(chart: Chart) -> None:
    rules = {
        "enabled": True,
        "labels": {"role": "alerts"},
        "disabled": ["VcudaPodsPending", "VcudaGpuErrors"],
        "runbooks": "https://wiki.example.org/gpu",
    }
    rendered = chart.render({"monitoring": {"labels": {"release": "prom"}, "rules": rules}})
    alerts = {rule["alert"]: rule for group in groups(rendered).values() for rule in group if "alert" in rule}
    assert not {"VcudaPodsPending", "VcudaGpuErrors"} & alerts.keys()
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example.org/gpu#{name.lower()}"
    labels = rendered.get("PrometheusRule", "vcuda")["metadata"]["labels"]
    assert (labels["role"], "release" in labels) == ("alerts", False)
    assert not rendered.names("PodMonitor"), "rules alone are enough for a Prometheus that is configured by hand"


def test_an_alert_that_does_not_exist_cannot_be_left_out(chart: Chart) -> None:
    values: Object = {"monitoring": {"rules": {"enabled": True, "disabled": ["VcudaPodWaiting"]}}}
    said = chart.refusal(values, *manifests.CLUSTER)
    assert "monitoring.rules.disabled: there is no alert VcudaPodWaiting; the alerts are VcudaAgentDown, " in said


def test_what_is_not_installed_raises_no_alerts(chart: Chart) -> None:
    """Otherwise an installation without scheduler would miss one for ever."""
    without = {
        part: set(groups(chart.render({"monitoring": ON, part: {"enabled": False}}))) for part in ("scheduler", "agent")
    }
    assert without == {"scheduler": {"vcuda-recording", "vcuda-agent"}, "agent": {"vcuda-scheduler"}}


def test_each_dashboard_is_in_a_config_map_of_the_sidecar(monitored: Rendered, chart: Chart) -> None:
    files = {path.stem: path for path in DASHBOARDS.glob("*.json")}
    assert len(files) == 3
    for name, path in files.items():
        found = monitored.get("ConfigMap", f"vcuda-dashboard-{name}")
        assert found["metadata"]["namespace"] == NAMESPACE
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(found["data"][f"vcuda-{name}.json"]) == json.loads(path.read_text())
    given = {"enabled": True, "labels": {"dashboards": "yes"}, "annotations": {"grafana_folder": "GPUs"}}
    rendered = chart.render({"monitoring": {"dashboards": given}})
    metadata = rendered.get("ConfigMap", "vcuda-dashboard-node")["metadata"]
    assert metadata["labels"]["dashboards"] == "yes"
    assert metadata["annotations"] == {"grafana_folder": "GPUs"}
