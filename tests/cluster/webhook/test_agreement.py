"""The chart's CEL and the webhook's code agree on every pod; another library evaluates the CEL."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deviceplugin.cluster.webhook.hami import HAMI_SCHEDULER, is_for_hami
from deviceplugin.cluster.webhook.mutate import is_left_alone, mutate
from deviceplugin.cluster.webhook.pod_json import MIRROR, Json, annotations, containers
from deviceplugin.cluster.webhook.validate import validate
from deviceplugin.config.scheduler import HamiScope, WebhookSettings
from deviceplugin.errors import VcudaError
from deviceplugin.model.annotation_names import AnnotationNames
from tests.cluster.webhook.expressions import Compiled, annotation_maps, real_pods
from tests.cluster.webhook.makers import A100S, CHOSEN, CORE, GPU, MEMORY_MIB, container, gpu_pod
from tests.cluster.webhook.makers import pod as pod_of
from tests.daemonset.chart import NAMESPACE, Object, Rendered
from tests.examples import examples

NAMES = AnnotationNames()
USER = {"userInfo": {"username": "system:node:mine", "groups": ["system:authenticated"]}}
KUBELET = {"userInfo": {"username": "system:node:n1", "groups": ["system:nodes", "system:authenticated"]}}


@pytest.fixture(scope="session")
def sent(charts: dict[str, Rendered]) -> dict[str, Compiled]:
    """Which pods the API server sends to the webhook."""
    return {name: Compiled(rendered.webhook["matchConditions"]) for name, rendered in charts.items()}


@pytest.fixture(scope="session")
def policy(charts: dict[str, Rendered]) -> Object:
    found: Object = charts["marked"].get("ValidatingAdmissionPolicy", "vcuda-annotations")["spec"]
    return found


def _outcome(pod: Json, chosen: WebhookSettings) -> str:
    """The webhook's result for a pod."""
    try:
        mutation = mutate(pod, chosen, A100S)
        warnings = (*mutation.warnings, *validate(mutation.pod, chosen, A100S))
    except VcudaError:
        return "refused"
    return "same" if mutation.pod == pod and not warnings else "changed"


def _is_named(pod: Json, chosen: WebhookSettings) -> bool:
    """Whether a container names a vcuda resource, or HAMi's in a HAMi pod, or the pod HAMi's scheduler."""
    if chosen.hami.scope is not HamiScope.OFF and pod["spec"].get("schedulerName") == HAMI_SCHEDULER:
        return True
    names = {chosen.names.core, chosen.names.memory, chosen.names.memory_mib}
    if chosen.hami.scope is not HamiScope.OFF and is_for_hami(pod, chosen.hami):
        names |= set(chosen.hami.resources.all)
    resources = [each.json.get("resources", {}) for each in containers(pod)]
    return any(names & set(each.get(kind, {})) for each in resources for kind in ("limits", "requests"))


@pytest.mark.parametrize("name", CHOSEN)
@examples(400)
@given(pod=real_pods)
@example(pod=gpu_pod({GPU: "1"}))
@example(pod=gpu_pod({GPU: "1"}, {"nvidia.com/use-gputype": "A100"}))
@example(pod=gpu_pod({CORE: "0"}))
@example(pod=pod_of(container(), schedulerName="hami-scheduler"))
@example(pod=gpu_pod({MEMORY_MIB: "5000"}))
@example(pod=gpu_pod({CORE: "30"}, {MIRROR: "uid-of-a-victim"}))
def test_a_pod_that_is_not_sent_would_not_have_been_touched_and_one_that_is_sent_concerns_us(
    sent: dict[str, Compiled], name: str, pod: Json
) -> None:
    chosen = CHOSEN[name]
    names = AnnotationNames(chosen.names.domain)
    stale = any(names.is_machine_written(each) for each in annotations(pod))
    wanted = stale or (not is_left_alone(pod, chosen) and _is_named(pod, chosen))
    assert sent[name].all_say_yes(object=pod, request=USER) == wanted
    assert sent[name].all_say_yes(object=pod, request=KUBELET) == (wanted and MIRROR not in annotations(pod))
    if not wanted:
        assert _outcome(pod, chosen) == "same"


def _changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {
        name for name in {*before, *after} if NAMES.is_machine_written(name) and before.get(name) != after.get(name)
    }


def _object(written: dict[str, str] | None) -> Json:
    return {"metadata": {"name": "p"} if written is None else {"name": "p", "annotations": written}}


@pytest.fixture(scope="session")
def variables_of(policy: Object) -> Compiled:
    return Compiled(policy["variables"])


@pytest.fixture(scope="session")
def allowed(policy: Object) -> Compiled:
    validations = zip(("nothing changed", "nothing forged"), policy["validations"], strict=True)
    return Compiled([{"name": name, "expression": each["expression"]} for name, each in validations])


@examples(400)
@given(before=st.none() | annotation_maps, after=st.none() | annotation_maps, creates=st.booleans())
def test_the_policy_names_exactly_the_protected_annotations_that_differ(
    variables_of: Compiled,
    allowed: Compiled,
    before: dict[str, str] | None,
    after: dict[str, str] | None,
    creates: bool,
) -> None:
    old, new = None if creates else _object(before), _object(after)
    variables = {name: variables_of.says(name, object=new, oldObject=old) for name in ("before", "after")}
    assert variables == {"before": {} if creates else before or {}, "after": after or {}}
    changed = variables_of.says("changed", object=new, oldObject=old, variables=variables)
    assert len(changed) == len(set(changed))
    assert set(changed) == _changed(variables["before"], variables["after"])
    assert allowed.says("nothing changed", variables={"changed": changed}) is (not changed)


def test_the_policy_refuses_mirrors_that_ask_for_gpus_and_no_other_pods(
    variables_of: Compiled, allowed: Compiled
) -> None:
    """Security 9. Where kubelets are no nodes, the mirrors of other static pods must not be refused."""
    cases = [
        ("Pod", gpu_pod({CORE: "1"}, {MIRROR: "x"}), True),
        ("Pod", gpu_pod({CORE: "1"}, {"mine": "x"}), False),
        ("Pod", gpu_pod({"cpu": "1"}, {MIRROR: "x"}), False),
        ("Binding", {"metadata": {"name": "p", "annotations": {MIRROR: "x"}}}, False),
    ]

    def is_forged(kind: str, pod: Json) -> bool:
        variables, request = {"before": {}, "after": annotations(pod)}, {"kind": {"kind": kind}}
        found: bool = variables_of.says("forged", object=pod, oldObject=None, variables=variables, request=request)
        assert allowed.says("nothing forged", variables={"forged": found}) is not found
        return found

    assert [(kind, pod, is_forged(kind, pod)) for kind, pod, _ in cases] == cases


def test_the_policy_applies_to_all_users_but_vcudas_programs_and_kubelets(policy: Object) -> None:
    cases = [
        (f"system:serviceaccount:{NAMESPACE}:vcuda-agent", ["system:serviceaccounts"], False),
        (f"system:serviceaccount:{NAMESPACE}:vcuda-scheduler", ["system:serviceaccounts", "system:masters"], False),
        ("system:serviceaccount:default:vcuda-agent", ["system:serviceaccounts"], True),
        ("system:node:n1", ["system:nodes", "system:authenticated"], False),
        ("admin", ["system:masters"], True),
        ("admin", [], True),
        ("system:node:n1", ["system:authenticated"], True),
        ("mine", ["system:nodes"], True),
    ]
    conditions = Compiled(policy["matchConditions"])
    users = [{"username": user, "groups": groups} for user, groups, _ in cases]
    found = [conditions.all_say_yes(request={"userInfo": user}) for user in users]
    assert list(zip(users, found, strict=True)) == list(zip(users, [each for *_, each in cases], strict=True))
