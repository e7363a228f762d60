"""`vcuda doctor` in the chart: the pod of `helm test` with its account, and the init container of the agent."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from deviceplugin.cli import main
from tests.daemonset.chart import NAMESPACE, Object, Rendered, render
from tests.daemonset.value_sets import VALUE_SETS

HOOK = "helm.sh/hook"


def hooks(rendered: Rendered) -> list[Object]:
    return [each for each in rendered if HOOK in each["metadata"].get("annotations", {})]


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())
def test_what_helm_test_needs_is_there_only_while_it_runs(helm: str, tmp_path: Path, values: Object) -> None:
    rendered = render(helm, values, folder=tmp_path)
    for each in hooks(rendered):
        annotations = each["metadata"]["annotations"]
        assert annotations[HOOK] == "test"
        if each["kind"] != "Pod":
            assert {"hook-succeeded", "hook-failed"} < set(annotations["helm.sh/hook-delete-policy"].split(","))
            assert int(annotations["helm.sh/hook-weight"]) < 0, "before the pod"
    others = [*rendered.installed]
    assert not [each for each in others if "vcuda-doctor" in each["metadata"]["name"]]
    assert not [each for each in others for one in each.get("subjects", []) if one["name"] == "vcuda-doctor"]


def test_all_have_the_name_of_the_pod(helm: str, tmp_path: Path) -> None:
    """`helm test --logs` asks for the log of a pod by the name of each of them."""
    assert {each["metadata"]["name"] for each in hooks(render(helm, {}, folder=tmp_path))} == {"vcuda-doctor"}


def test_the_test_pod_reads_and_creates_nothing(helm: str, tmp_path: Path) -> None:
    rendered = render(helm, {}, folder=tmp_path)
    granted = {
        (verb, resource, each["metadata"].get("namespace", "*"))
        for each in hooks(rendered)
        if each["kind"] in ("Role", "ClusterRole")
        for rule in each["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {each for each in granted if each[0] not in ("get", "list")} == {
        ("create", "pods", "default"),
        ("create", "serviceaccounts/token", NAMESPACE),
    }
    policy = rendered.get("ValidatingAdmissionPolicy", "vcuda-doctor")["spec"]
    assert [each["expression"] for each in policy["validations"]] == ["request.dryRun"]
    (condition,) = policy["matchConditions"]
    assert f"system:serviceaccount:{NAMESPACE}:vcuda-doctor" in condition["expression"]


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())
def test_the_pods_command_line_is_one(helm: str, tmp_path: Path, values: Object) -> None:
    (container,) = render(helm, values, folder=tmp_path).get("Pod", "vcuda-doctor")["spec"]["containers"]
    nowhere = ["--kubeconfig", str(tmp_path / "nothing")]
    result = CliRunner().invoke(main, [*container["args"], *nowhere], prog_name="vcuda")
    assert (result.exit_code, "nothing" in result.stderr) == (1, True), "no wrong option; only the file is missing"


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())
def test_the_checks_of_the_node_see_what_the_agent_will_see(helm: str, tmp_path: Path, values: Object) -> None:
    agent = {**values.get("agent", {}), "doctor": True}
    pod = render(helm, {**values, "agent": agent}, folder=tmp_path).agent if agent.get("enabled", True) else None
    if pod is None:
        return
    checks, (container,) = pod["initContainers"][-1], pod["containers"]
    assert checks["args"] == ["doctor", "node", "--startup", *container["args"][1:]]
    same = {"env", "envFrom", "image", "imagePullPolicy", "securityContext", "volumeMounts", "resources"}
    assert {key: checks.get(key) for key in same} == {key: container.get(key) for key in same}
    assert set(checks) - same == {"name", "args"}, yaml.safe_dump(checks)


def test_off_by_default(helm: str, tmp_path: Path) -> None:
    assert "initContainers" not in render(helm, {}, folder=tmp_path).agent
