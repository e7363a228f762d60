"""`vcuda doctor` in the chart: the pod of `helm test` with its account, and the init container of the agent."""

import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from click.testing import CliRunner

from deviceplugin.cli import main
from deviceplugin.cli.connection import Connection
from deviceplugin.cli.doctor.cluster import SCHEDULER, ClusterFacts
from deviceplugin.cli.scheduler_client import opened
from deviceplugin.errors import VcudaError
from sandbox.apiserver import ApiServer, pod
from tests.daemonset.chart import NAMESPACE, Chart, Object, Rendered
from tests.daemonset.value_sets import VALUE_SETS

HOOK = "helm.sh/hook"


def hooks(rendered: Rendered) -> list[Object]:
    return [each for each in rendered if HOOK in each["metadata"].get("annotations", {})]


def test_what_helm_test_needs_is_there_only_while_it_runs(chart: Chart, subtests: pytest.Subtests) -> None:
    for name, rendered in chart.render_all(VALUE_SETS).items():
        with subtests.test(name):
            for each in hooks(rendered):
                annotations = each["metadata"]["annotations"]
                assert annotations[HOOK] == "test"
                if each["kind"] != "Pod":
                    policy = set(annotations["helm.sh/hook-delete-policy"].split(","))
                    assert {"hook-succeeded", "hook-failed"} < policy
                    assert int(annotations["helm.sh/hook-weight"]) < 0, "before the pod"
            others = [*rendered.installed]
            assert not [each for each in others if "vcuda-doctor" in each["metadata"]["name"]]
            assert not [each for each in others for one in each.get("subjects", []) if one["name"] == "vcuda-doctor"]


def test_all_have_the_name_of_the_pod(defaults: Rendered) -> None:
    """`helm test --logs` asks for the log of a pod by the name of each of them."""
    assert {each["metadata"]["name"] for each in hooks(defaults)} == {"vcuda-doctor"}


def granted(rendered: Rendered) -> set[tuple[str, str, str]]:
    """Verb, resource and namespace of each right of the test pod."""
    return {
        (verb, resource, each["metadata"].get("namespace", "*"))
        for each in hooks(rendered)
        if each["kind"] in ("Role", "ClusterRole")
        for rule in each["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_test_pod_reads_and_creates_nothing(defaults: Rendered) -> None:
    assert {each for each in granted(defaults) if each[0] not in ("get", "list")} == {
        ("create", "pods", "default"),
        ("create", "serviceaccounts/token", NAMESPACE),
    }
    policy = defaults.get("ValidatingAdmissionPolicy", "vcuda-doctor")["spec"]
    assert [each["expression"] for each in policy["validations"]] == ["request.dryRun"]
    (condition,) = policy["matchConditions"]
    assert f"system:serviceaccount:{NAMESPACE}:vcuda-doctor" in condition["expression"]


def right(path: str) -> tuple[str, str]:
    """Verb and resource of a request that reads, as RBAC has them."""
    parts = re.sub(r"^/(api|apis/[^/]+)/v1/(namespaces/[^/]+/)?", "", urlsplit(path).path).split("/")
    below = f"/{parts[2]}" if len(parts) > 2 else ""
    return "get" if len(parts) > 1 else "list", parts[0] + below


async def test_the_test_pod_may_read_what_the_checks_of_a_cluster_read(defaults: Rendered, tmp_path: Path) -> None:
    """Else a check is skipped there."""
    async with ApiServer() as server:
        item = pod("one", namespace=NAMESPACE)
        item["metadata"]["labels"] = {"app.kubernetes.io/name": SCHEDULER}
        item["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        server.store.create("pods", item, namespace=NAMESPACE)
        connection = Connection(str(server.kubeconfig(tmp_path / "kc")), scheduler_namespace=NAMESPACE)
        async with opened(connection) as client:
            facts = ClusterFacts(client)
            reads = (facts.scheduler, facts.agent, facts.agent_pods, facts.replicas, facts.webhook, facts.nodes)
            for read in (*reads, facts.slices):
                with suppress(VcudaError):  # of what the stand-in does not have
                    await read()
        needed = {right(path) for _, path in server.requests}
    assert {("list", "nodes"), ("list", "pods"), ("list", "resourceslices"), ("get", "pods/proxy")} < needed
    assert {("get", "deployments"), ("get", "daemonsets"), ("get", "mutatingwebhookconfigurations")} < needed
    assert needed - {(verb, resource) for verb, resource, _ in granted(defaults)} == set()


def test_a_second_manager_can_apply_the_test_pod(chart: Chart, subtests: pytest.Subtests) -> None:
    """The list is one field; the API server adds these where they are missing (plugin DefaultTolerationSeconds)."""
    for name, rendered in chart.render_all(VALUE_SETS).items():
        with subtests.test(name):
            tolerated = rendered.get("Pod", "vcuda-doctor")["spec"]["tolerations"]
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
                added = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                assert added in tolerated


def test_the_pods_command_line_is_one(chart: Chart, tmp_path: Path, subtests: pytest.Subtests) -> None:
    lines: dict[tuple[str, ...], str] = {}
    for name, rendered in chart.render_all(VALUE_SETS).items():
        (container,) = rendered.get("Pod", "vcuda-doctor")["spec"]["containers"]
        lines.setdefault(tuple(container["args"]), name)
    nowhere = ["--kubeconfig", str(tmp_path / "nothing")]
    for line, name in lines.items():
        with subtests.test(name):
            result = CliRunner().invoke(main, [*line, *nowhere], prog_name="vcuda")
            assert (result.exit_code, "nothing" in result.stderr) == (1, True), "only the file is missing"


def test_the_checks_of_the_node_see_what_the_agent_will_see(chart: Chart, subtests: pytest.Subtests) -> None:
    same = {"env", "envFrom", "image", "imagePullPolicy", "securityContext", "volumeMounts", "resources"}
    agents = {name: {**values.get("agent", {}), "doctor": True} for name, values in VALUE_SETS.items()}
    sets = {name: {**VALUE_SETS[name], "agent": agent} for name, agent in agents.items() if agent.get("enabled", True)}
    for name, rendered in chart.render_all(sets).items():
        with subtests.test(name):
            pod = rendered.agent
            checks, (container,) = pod["initContainers"][-1], pod["containers"]
            assert checks["args"] == ["doctor", "node", "--startup", *container["args"][1:]]
            assert {key: checks.get(key) for key in same} == {key: container.get(key) for key in same}
            assert set(checks) - same == {"name", "args"}, yaml.safe_dump(checks)


def test_off_by_default(defaults: Rendered) -> None:
    assert "initContainers" not in defaults.agent
