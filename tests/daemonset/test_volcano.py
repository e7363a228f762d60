"""What the chart gives an installation of Volcano: a container for its scheduler's pod, its rights, lines to copy."""

from typing import Any

import pytest
import yaml

from sandbox.emulated_gpus import REPOSITORY
from tests.cluster.webhook.expressions import Compiled
from tests.daemonset.chart import Chart, Rendered
from tests.daemonset.value_sets import VALUE_SETS
from tests.fenced import fenced

DATA = dict[str, Any]


@pytest.fixture(scope="module")
def rendered(chart: Chart) -> Rendered:
    return chart.render({"volcano": {"enabled": True}})


def data(rendered: Rendered) -> DATA:
    found: DATA = rendered.get("ConfigMap", "vcuda-volcano")["data"]
    return found


def container(rendered: Rendered) -> DATA:
    (found,) = yaml.safe_load(data(rendered)["deployment-patch.yaml"])["spec"]["template"]["spec"]["initContainers"]
    return dict(found)


def test_without_volcano_nothing_of_it_is_made(defaults: Rendered) -> None:
    assert "vcuda-volcano" not in defaults.names("ConfigMap") | defaults.names("ClusterRole") | defaults.names("Role")


def test_the_page_has_the_lines_of_the_chart(rendered: Rendered) -> None:
    blocks = [yaml.safe_load(each) for each in fenced(REPOSITORY / "docs" / "volcano.md", "yaml") if "tiers" in each]
    (page,) = blocks
    plugins = [plugin for tier in page["tiers"] for plugin in tier["plugins"] if plugin["name"] == "extender"]
    assert plugins == yaml.safe_load(data(rendered)["plugin.yaml"])


def test_the_container_is_a_sidecar_that_only_its_pod_can_ask(rendered: Rendered) -> None:
    found = container(rendered)
    assert found["restartPolicy"] == "Always"
    assert {
        "--volcano=true",
        "--loopback-port=8180",
        "--leader-election=kube-scheduler",
        "--lease-name=volcano",
    } <= set(found["args"])
    security = found["securityContext"]
    assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"]) == (True, True)
    assert security["capabilities"] == {"drop": ["ALL"]}


ACCOUNT = "system:serviceaccount:volcano-system:volcano-scheduler"


@pytest.mark.parametrize(
    ("user", "operation", "looked_at"),
    [
        (ACCOUNT, "UPDATE", False),
        (ACCOUNT, "CREATE", True),
        ("system:serviceaccount:default:volcano-scheduler", "UPDATE", True),
    ],
)
def test_its_account_writes_annotations_to_pods_that_are_and_brings_none_with_pods_or_bindings(
    rendered: Rendered, user: str, operation: str, looked_at: bool
) -> None:
    """Volcano's scheduler has the same account, and copies annotations into its Bindings."""
    policy = rendered.get("ValidatingAdmissionPolicy", "vcuda-annotations")["spec"]
    request = {"userInfo": {"username": user, "groups": ["system:serviceaccounts"]}, "operation": operation}
    assert Compiled(policy["matchConditions"]).all_say_yes(request=request) is looked_at


def test_its_account_may_write_one_secret(rendered: Rendered) -> None:
    secrets = rendered.get("ValidatingAdmissionPolicy", "vcuda-volcano-secrets")["spec"]
    assert ACCOUNT in secrets["matchConditions"][0]["expression"]
    for kind, name in (("ClusterRoleBinding", "vcuda-volcano"), ("RoleBinding", "volcano-system/vcuda-volcano")):
        (subject,) = rendered.get(kind, name)["subjects"]
        assert (subject["namespace"], subject["name"]) == ("volcano-system", "volcano-scheduler")


def test_the_agents_wait_for_the_gpus_of_its_pods(rendered: Rendered, defaults: Rendered) -> None:
    assert "--volcano-scheduler=volcano" in rendered.agent["containers"][0]["args"]
    assert not any("volcano" in each for each in defaults.agent["containers"][0]["args"])


def test_other_names_and_domains(chart: Chart) -> None:
    rendered = chart.render(VALUE_SETS["volcano"])
    (plugin,) = yaml.safe_load(data(rendered)["plugin.yaml"])
    assert plugin["arguments"]["extender.urlPrefix"] == "http://127.0.0.1:9180/volcano"
    assert plugin["arguments"]["extender.managedResources"] == ["gpu.example.org/vcuda-core"]
    assert {"--loopback-port=9180", "--lease-name=vc-scheduler", "--resource-domain=gpu.example.org"} <= set(
        container(rendered)["args"]
    )
    assert container(rendered)["imagePullPolicy"] == "Always"
    assert "--volcano-scheduler=vc" in rendered.agent["containers"][0]["args"]
    assert "volcano/vcuda-volcano" in rendered.names("Role")
