"""The manifests in daemonset/scheduler hold the expressions that the code makes, and the rules that they need."""

from deviceplugin.cluster.webhook.conditions import (
    Expressions,
    match_conditions,
    policy_conditions,
    policy_validation,
    policy_variables,
)
from deviceplugin.model.annotation_names import AnnotationNames
from tests.cluster.webhook.makers import HAMI, MARKED, SETTINGS
from tests.daemonset.manifests import Object, documents

ACCOUNTS = [f"system:serviceaccount:kube-system:{name}" for name in ("vcuda-scheduler", "vcuda-agent")]


def _expressions(items: list[Object]) -> Expressions:
    return {item["name"]: item["expression"] for item in items}


def test_the_webhook_is_sent_what_the_code_says() -> None:
    (webhook,) = documents("scheduler/webhook.yaml")[0]["webhooks"]
    assert _expressions(webhook["matchConditions"]) == match_conditions(MARKED)
    assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Fail", "None")
    assert webhook["admissionReviewVersions"] == ["v1"]
    assert webhook["rules"][0]["operations"] == ["CREATE"]


def test_the_policy_is_what_the_code_says() -> None:
    policy, binding = documents("scheduler/policy.yaml")
    spec = policy["spec"]
    assert _expressions(spec["matchConditions"]) == policy_conditions(ACCOUNTS)
    assert _expressions(spec["variables"]) == policy_variables(AnnotationNames())
    (validation,) = spec["validations"]
    assert (validation["expression"], validation["messageExpression"]) == policy_validation()
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]


def test_another_domain_and_other_names_are_in_all_expressions() -> None:
    variables = policy_variables(AnnotationNames("example.org"))
    assert "example.org/vcuda-allocation" in variables["changed"]
    assert "tencent.com" not in "".join(variables.values())
    assert "nvidia.com/gpumem" in match_conditions(HAMI)["asks-for-gpus-or-carries-our-annotations"]
    assert "nvidia.com" not in "".join(match_conditions(SETTINGS).values())
