"""What docs/ and README.md say of the chart: values that exist, examples that can be used."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deviceplugin.model.request import parse_request
from deviceplugin.model.units import ResourceNames
from scripts import manifests
from tests.commands import blocks
from tests.daemonset.chart import Chart, Object
from tests.daemonset.chart import documents as decoded
from tests.daemonset.manifests import ROOT, documents
from tests.daemonset.value_sets import VALUE_SETS
from tests.fenced import fenced

DOCS = manifests.ROOT / "docs"
GUIDES = [
    *(
        DOCS / name
        for name in (
            "install.md",
            "gangs.md",
            "volcano.md",
            "network.md",
            "rights.md",
            "scheduler.md",
            "how-to/monitoring.md",
            "runbooks.md",
        )
    ),
    ROOT / "README.md",
]
GROUPS = ("agent", "scheduler", "webhook", "policy", "hami", "monitoring", "image")
_VALUE = re.compile(rf"(?:`|--set |,)(?!hami[.]io)((?:{'|'.join(GROUPS)})(?:\.[A-Za-z]+)+)")
WITH_COMMANDS = (
    *("chart/README.md", "gangs.md", "install.md", "network.md"),
    *("how-to/monitoring.md", "how-to/platforms.md", "how-to/upgrade.md"),
)
_CHART = re.compile(r"helm (?:install|upgrade) vcuda (?:daemonset/chart|oci://\S+/charts/vcuda --version \S+) (.+)")
_OF_HELM = re.compile(r"--(?:reset-then-)?reuse-values ?")
_HAMIS = "## Coming from HAMi"


def _examples(path: Path) -> Iterator[Object]:
    for block in fenced(path, "yaml"):
        yield from (each for each in yaml.safe_load_all(block))


def _has(values: object, path: list[str]) -> bool:
    if not path or values == {}:  # what users fill in themselves
        return True
    return isinstance(values, dict) and path[0] in values and _has(values[path[0]], path[1:])


def _named(guide: Path) -> set[str]:
    text = guide.read_text()
    theirs = text.partition(_HAMIS)[2].partition("\n## ")[0]
    ours = "\n".join(line.rpartition(" | ")[2] for line in theirs.splitlines() if line.startswith("| `"))
    return set(_VALUE.findall(text.replace(theirs, ours)))


def test_every_value_that_a_guide_names_exists() -> None:
    values = yaml.safe_load((manifests.CHART / "values.yaml").read_text())
    named = {guide.name: _named(guide) for guide in GUIDES}
    assert [
        (guide, each) for guide, found in named.items() for each in found if not _has(values, each.split("."))
    ] == []
    assert [guide for guide, found in named.items() if not found] in ([], ["volcano.md"])


def _commands() -> Iterator[tuple[str, str]]:
    for name in WITH_COMMANDS:
        page = ROOT / name if name.startswith("chart/") else DOCS / name
        lines = (line for block in blocks(page) if block.is_commands for line in block.commands)
        yield from ((name, found[1]) for line in lines if (found := _CHART.fullmatch(line)))


_KINDS = ("PodMonitor", "ServiceMonitor", "PrometheusRule")


def test_the_chart_takes_every_command_of_the_guides(chart: Chart, subtests: pytest.Subtests) -> None:
    apis = [f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in _KINDS]
    commands = list(_commands())
    assert {name for name, _ in commands} == set(WITH_COMMANDS)
    for name, flags in commands:
        with subtests.test(f"{name}: {flags}"):
            words = shlex.split(_OF_HELM.sub("", flags).replace("$REGISTRY/", "registry.example.com/"))
            kinds = {each["kind"] for each in decoded(manifests.render(chart.helm, *words, *apis))}
            assert {"DaemonSet", "Deployment"} <= kinds


def test_the_values_of_the_guide_to_gangs_are_taken(chart: Chart) -> None:
    (values,) = (each for each in _examples(DOCS / "gangs.md") if "scheduler" in each)
    rendered = chart.render(values)
    (profile,) = rendered.configuration["profiles"]
    assert profile["plugins"]["multiPoint"] == {"enabled": [{"name": "Coscheduling"}]}
    assert rendered.scheduler["containers"][0]["image"] == "registry.k8s.io/scheduler-plugins/kube-scheduler:TAG"
    rules = rendered.get("ClusterRole", "vcuda-scheduler")["rules"]
    assert rules[-1]["resources"] == ["podgroups", "podgroups/status"]


def test_the_policy_of_the_guide_to_the_network_is_taken(chart: Chart) -> None:
    (values,) = (each for each in _examples(DOCS / "network.md") if "scheduler" in each)
    (rule,) = chart.render(values).get("NetworkPolicy", "vcuda-scheduler")["spec"]["ingress"]
    assert [sorted(peer) for peer in rule["from"]] == [["podSelector"], ["ipBlock"], ["namespaceSelector"]]


def test_the_extender_that_the_guide_shows_is_the_chart_s_own_but_for_its_address(chart: Chart) -> None:
    (shown,) = (each["extenders"][0] for each in _examples(DOCS / "scheduler.md") if "extenders" in each)
    rendered = chart.render(VALUE_SETS["the nodes' network"])
    (ours,) = rendered.configuration["extenders"]
    assert {**shown, "urlPrefix": "", "tlsConfig": ""} == {**ours, "urlPrefix": "", "tlsConfig": ""}
    assert shown["tlsConfig"].items() <= ours["tlsConfig"].items()


def _pod_specs(value: object) -> Iterator[Object]:
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from _pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _pod_specs(inner)


def test_the_examples_ask_for_something_that_can_be_given() -> None:
    names = ResourceNames()
    asked = {
        (guide, parse_request(limits[names.core], limits.get(names.memory, 0)).gpus)
        for guide in ("gangs.md", "volcano.md")
        for example in _examples(DOCS / guide)
        for spec in _pod_specs(example)
        for limits in (container["resources"]["limits"] for container in spec["containers"])
    }
    assert asked == {("gangs.md", 1), ("volcano.md", 1)}


def test_the_sample_for_hami_asks_for_what_the_other_sample_asks_for() -> None:
    names = ResourceNames()
    (ours,), (theirs,) = documents("sample-pod.yaml"), documents("sample-pod-hami.yaml")
    limits, foreign = (each["spec"]["containers"][0]["resources"]["limits"] for each in (ours, theirs))
    assert foreign == {
        "nvidia.com/gpu": 1,
        "nvidia.com/gpucores": limits[names.core],
        "nvidia.com/gpumem": limits["tencent.com/vcuda-memory-mib"],
    }
