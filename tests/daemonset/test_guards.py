"""Values that cannot be right together, or not in this cluster: one sentence each. Keys and flags are given once."""

import shutil
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import manifests
from tests.daemonset.chart import NAMESPACE, Chart, Object, documents
from tests.daemonset.value_sets import VALUE_SETS

REFUSED: dict[str, tuple[Object, str]] = {
    "cert-manager without its API": (
        {"webhook": {"certificates": {"from": "cert-manager"}}},
        "webhook.certificates.from=cert-manager needs the API cert-manager.io/v1",
    ),
    "a global value of nobody": ({"global": {"imagePullSecrets": []}}, "global.imagePullSecrets is not a value"),
    "a driver where there is none": (
        {"agent": {"driver": {"from": "emulated", "root": "/opt"}}}, "with agent.driver.from=emulated there is none",
    ),
    "a driver that the runtime brings": (
        {"platform": "talos", "agent": {"driver": {"root": "/opt"}}}, "not used with agent.driver.from=runtime",
    ),
    "a label of the agent's selector": (
        {"agent": {"podLabels": {"app.kubernetes.io/name": "mine"}}}, "agent.podLabels: the selectors of the chart",
    ),
    "a label of the scheduler's selector": (
        {"scheduler": {"podLabels": {"app.kubernetes.io/name": "mine"}}}, "scheduler.podLabels: the selectors",
    ),
    "a driver by flag": ({"agent": {"flags": {"driver-root": "/x"}}}, "set the value agent.driver.root instead"),
    "sharing by flag": ({"agent": {"flags": {"share-mode": False}}}, "set the value agent.shareMode instead"),
    "a port by flag": ({"scheduler": {"flags": {"listen-port": 1}}}, "set the value scheduler.port instead"),
    "gates by flag": (
        {"scheduler": {"kubeScheduler": {"flags": {"feature-gates": "A=true"}}}},
        "set the value scheduler.kubeScheduler.featureGates instead",
    ),
}  # fmt: skip


def test_what_cannot_be_right_is_refused_with_a_sentence(chart: Chart) -> None:
    found = {name: chart.refusal(values) for name, (values, _) in REFUSED.items()}
    assert {name: found[name] for name, (_, said) in REFUSED.items() if said not in found[name]} == {}


def test_values_of_an_older_chart_are_named_as_such(chart: Chart) -> None:
    """--reuse-values takes the defaults of the installed chart; a null leaves a new value out in the same way."""
    agent = dict.fromkeys(("stateDirectory", "extraVolumes", "annotations", "terminationGracePeriodSeconds"))
    scheduler = dict.fromkeys(("strategy", "podDisruptionBudget", "podSecurityContext", "annotations"))
    values = {"platform": None, "agent": {**agent, "driver": {"root": None}}, "scheduler": scheduler}
    said = chart.refusal(values)
    assert "--reset-then-reuse-values instead of --reuse-values" in said


class Once(yaml.SafeLoader):
    """Refuses a mapping with a key twice, as kustomize and kubectl do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(map(str, keys))), keys
        return super().construct_mapping(node, deep=deep)


OVER: Object = {
    "agent": {
        "podAnnotations": {"prometheus.io/scrape": "false"},
        "podLabels": {"app.kubernetes.io/version": "9"},
        "securityContext": {"readOnlyRootFilesystem": False},
        "flags": {"query-addr": "127.0.0.1", "wait-for-driver": False, "virtual-manager-tmpfs": False},
    },
    "scheduler": {
        "podAnnotations": {"kubectl.kubernetes.io/default-container": "kube-scheduler"},
        "podSecurityContext": {"runAsUser": 1000},
        "kubeScheduler": {"flags": {"profiling": True}},
    },
    "monitoring": {
        "enabled": True,
        "labels": {"app.kubernetes.io/part-of": "kube-prometheus"},
        "rules": {"enabled": True},
        "dashboards": {"enabled": True, "labels": {"app.kubernetes.io/part-of": "grafana"}},
    },
}


WITH_KEYS = ("a driver in another place", "everything else", "what installations seldom change")


@pytest.mark.parametrize("values", [OVER, *(VALUE_SETS[each] for each in WITH_KEYS)], ids=["over", *WITH_KEYS])
def test_no_key_and_no_flag_is_given_twice(helm: str, tmp_path: Path, values: Object) -> None:
    """Of the text itself: what `chart` renders is decoded by a parser that takes the last."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    for each in yaml.load_all(manifests.render(helm, f"--values={file}"), Once):
        for container in _containers(each or {}):
            words = container.get("args") or container.get("command") or []
            given = [word.split("=")[0] for word in words]
            assert len(given) == len(set(given)) or container["name"] == "device-nodes"


def _containers(manifest: Object) -> list[Object]:
    spec = manifest.get("spec", {}).get("template", {}).get("spec", {}) if "spec" in manifest else {}
    return [*spec.get("initContainers", []), *spec.get("containers", [])]


def test_the_operators_keys_replace_the_charts(chart: Chart) -> None:
    rendered = chart.render(OVER)
    template = rendered.get("DaemonSet", "vcuda-agent")["spec"]["template"]
    (agent,) = template["spec"]["containers"]
    assert template["metadata"]["annotations"]["prometheus.io/scrape"] == "false"
    assert template["metadata"]["labels"] == {"app.kubernetes.io/name": "vcuda-agent", "app.kubernetes.io/version": "9"}
    assert (agent["securityContext"]["readOnlyRootFilesystem"], agent["securityContext"]["privileged"]) == (False, True)
    assert {"--query-addr=127.0.0.1", "--wait-for-driver=false", "--virtual-manager-tmpfs=false"} <= set(agent["args"])
    pod = rendered.get("Deployment", "vcuda-scheduler")["spec"]["template"]
    assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "kube-scheduler"
    assert (pod["spec"]["securityContext"]["runAsUser"], pod["spec"]["securityContext"]["runAsGroup"]) == (1000, 65532)
    assert "--profiling=true" in pod["spec"]["containers"][0]["command"]


def test_the_labels_of_a_version_do_not_restart_the_scheduler(chart: Chart, tmp_path: Path) -> None:
    """Its pods have a checksum of their configuration, which another version of the chart does not change."""
    copy = tmp_path / "chart"
    shutil.copytree(manifests.CHART, copy)
    version = copy / "Chart.yaml"
    version.write_text(version.read_text().replace("version: 0.1.0", "version: 0.9.0", 1))
    rendered = documents(manifests.render(chart.helm, chart=copy, namespace=NAMESPACE))
    (next_ones,) = (each for each in rendered if each["kind"] == "Deployment")
    ours = chart.render().get("Deployment", "vcuda-scheduler")
    assert ours["metadata"] != next_ones["metadata"]
    assert ours["spec"]["template"] == next_ones["spec"]["template"]


def test_where_a_monitor_scrapes_no_annotation_asks_for_it_too(chart: Chart) -> None:
    rendered = chart.render({"monitoring": {"enabled": True}})
    assert "annotations" not in rendered.get("DaemonSet", "vcuda-agent")["spec"]["template"]["metadata"]


IN_THE_REGISTRY = {
    "vcuda": "mirror:5000/gpu/vcuda",
    "team/vcuda": "mirror:5000/gpu/team/vcuda",
    "registry.example.org/team/vcuda": "mirror:5000/gpu/team/vcuda",
    "localhost/vcuda": "mirror:5000/gpu/vcuda",
}


def test_one_registry_has_all_images(chart: Chart) -> None:
    mirror = {"global": {"imageRegistry": "mirror:5000/gpu"}}
    rendered = chart.render_all({each: {**mirror, "image": {"repository": each}} for each in IN_THE_REGISTRY})
    found = {
        repository: [pod["containers"][0]["image"] for pod in (each.agent, each.scheduler)]
        for repository, each in rendered.items()
    }
    kube_scheduler = "mirror:5000/gpu/kube-scheduler:v1.36.2"
    assert found == {name: [f"{image}:0.1.0", kube_scheduler] for name, image in IN_THE_REGISTRY.items()}


HELMS_LABELS = {
    "helm.sh/chart": "vcuda-0.1.0",
    "app.kubernetes.io/managed-by": "Helm",
    "app.kubernetes.io/instance": "vcuda",
    "app.kubernetes.io/part-of": "vcuda",
    "app.kubernetes.io/version": "0.1.0",
}


def test_every_object_has_helms_labels_and_no_selector_and_no_pod_has_them(chart: Chart) -> None:
    """A selector cannot be changed, and a pod would restart with every version of the chart."""
    objects = [(chosen, each) for chosen, rendered in chart.render_all(VALUE_SETS).items() for each in rendered]
    for chosen, each in objects:
        where, labels = (chosen, each["kind"], each["metadata"]["name"]), each["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] in ("vcuda", "vcuda-agent", "vcuda-scheduler"), where
        assert labels.items() >= HELMS_LABELS.items(), where
        if each["kind"] in ("DaemonSet", "Deployment"):
            selector = {"matchLabels": {"app.kubernetes.io/name": each["metadata"]["name"]}}
            assert each["spec"]["selector"] == selector, where
            assert "helm.sh/chart" not in each["spec"]["template"]["metadata"]["labels"], where
