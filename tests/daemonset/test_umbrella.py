"""The chart as a part of another one: conditions, tags, globals, an alias; names that others let one choose."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from scripts import manifests
from tests.daemonset.chart import Chart, Object, documents, environment

Within = Callable[..., tuple[list[Object], str]]


@pytest.fixture
def within(helm: str, tmp_path: Path) -> Within:
    """What Helm makes of a chart that has ours as a dependency, and of its values: objects, and what it says."""
    outer = tmp_path / "platform"
    shutil.copytree(manifests.CHART, outer / "charts" / "vcuda")

    def render(values: Object, **dependency: object) -> tuple[list[Object], str]:
        ours = {"name": "vcuda", "version": "*", **dependency}
        head = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [ours]}
        (outer / "Chart.yaml").write_text(yaml.safe_dump(head))
        (outer / "values.yaml").write_text(yaml.safe_dump(values))
        command = [helm, "template", "vcuda", str(outer), "--namespace=kube-system", *manifests.CLUSTER]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        return documents(done.stdout), done.stderr

    return render


def test_another_chart_can_have_it_on_a_condition(within: Within, subtests: pytest.Subtests) -> None:
    alone, said = within({})
    assert len(alone) > 30, said
    cases: list[tuple[Object, Object, bool]] = [
        ({"vcuda": {"enabled": True}}, {"condition": "vcuda.enabled"}, True),
        ({"vcuda": {"enabled": False}}, {"condition": "vcuda.enabled"}, False),
        ({"vcuda": {"enabled": None}}, {"condition": "vcuda.enabled"}, True),
        ({"gpu": {"enabled": True}}, {"condition": "gpu.enabled", "alias": "gpu"}, True),
        ({"gpu": {"enabled": False}}, {"condition": "gpu.enabled", "alias": "gpu"}, False),
        ({"vcuda": {"enabled": True}}, {"condition": "sharing.enabled,vcuda.enabled"}, True),
        ({"global": {"gpu": True}}, {"condition": "global.gpu"}, True),
        ({"tags": {"gpu": False}}, {"tags": ["gpu"]}, False),
        ({"tags": {"gpu": False}, "vcuda": {"enabled": True}}, {"tags": ["gpu"], "condition": "vcuda.enabled"}, True),
        ({"global": {"imagePullSecrets": ["a"], "storageClass": "x", "enabled": False}}, {}, True),
        ({"global": None}, {}, True),
        ({"vcuda": {"global": None}}, {}, True),
    ]
    for values, dependency, is_there in cases:
        with subtests.test(values=values, dependency=dependency):
            found, said = within(values, **dependency)
            assert bool(found) is is_there, said
            assert not is_there or len(found) == len(alone)
            assert is_there or not said


def test_a_condition_that_the_outer_chart_does_not_have_is_not_ignored(within: Within) -> None:
    """Helm leaves a part out by the outer chart's `condition` alone; without it, false would install it."""
    found, said = within({"vcuda": {"enabled": False}})
    assert not found
    assert "give the dependency `condition: vcuda.enabled`" in said
    found, said = within({"gpu": {"enabled": False}}, alias="gpu")
    assert not found
    assert "give the dependency `condition: gpu.enabled`" in said
    found, said = within({"vcuda": {"enabled": "true"}}, condition="vcuda.enabled")
    assert not found
    assert "/enabled" in said


def test_alone_the_chart_has_nothing_that_enables_it(chart: Chart) -> None:
    for enabled in (True, False):
        assert "`enabled` belongs to a chart that contains this one" in chart.refusal({"enabled": enabled})


def test_names_cannot_be_chosen_and_the_refusal_says_why(chart: Chart, within: Within) -> None:
    for key in ("nameOverride", "fullnameOverride"):
        said = chart.refusal({key: "gpu"})
        assert f"{key}: the names of the objects are fixed" in said
        assert "leave it out" in said
        found, said = within({"vcuda": {key: "gpu"}})
        assert (found, f"{key}: the names" in said) == ([], True)
        assert chart.render({key: ""}).names("DaemonSet") == {"vcuda-agent"}, "as other charts write it in their values"


def test_under_an_alias_labels_stay_valid(within: Within) -> None:
    found, said = within({}, alias="gpu-sharing-for-all-clusters-of-the-whole-company-in-platform__2")
    assert found, said
    labels = {each["metadata"]["labels"]["helm.sh/chart"] for each in found}
    assert all(len(each) <= 63 and each[-1].isalnum() for each in labels), labels
    assert {each["metadata"]["name"] for each in found if each["kind"] == "DaemonSet"} == {"vcuda-agent"}
