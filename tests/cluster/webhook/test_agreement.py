"""The API server's expressions and our code say the same of every pod: both are asked, CEL by a library of its own."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deviceplugin.cluster.webhook.conditions import (
    match_conditions,
    policy_conditions,
    policy_validation,
    policy_variables,
)
from deviceplugin.cluster.webhook.hami_pods import is_for_hami
from deviceplugin.cluster.webhook.mutate import is_left_alone, is_static, mutate
from deviceplugin.cluster.webhook.pod_json import Json, annotations, containers
from deviceplugin.cluster.webhook.validate import validate
from deviceplugin.config.webhook import HamiScope, HamiSettings, WebhookSettings
from deviceplugin.errors import VcudaError
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.units import ResourceNames
from tests.cluster.webhook.expressions import Compiled, annotation_maps, real_pods
from tests.cluster.webhook.makers import A100S, CORE, GPU, HAMI, MARKED, SETTINGS, gpu_pod
from tests.examples import examples

CHOSEN = {
    "no HAMi": replace(SETTINGS, hide_gpus=True),
    "marked": replace(MARKED, hide_gpus=True),
    "all": replace(HAMI, hide_gpus=True),
    "other names": WebhookSettings(
        names=ResourceNames("example.org"), hami=HamiSettings(count="nvidia.com/gpumem", memory="cpu")
    ),
}
SENT = {name: Compiled(match_conditions(chosen)) for name, chosen in CHOSEN.items()}
NAMES = AnnotationNames()
ACCOUNTS = ["system:serviceaccount:kube-system:vcuda-agent", "system:serviceaccount:kube-system:vcuda-scheduler"]


def _outcome(pod: Json, chosen: WebhookSettings) -> str:
    """What becomes of a pod that the webhook is asked about."""
    try:
        mutation = mutate(pod, chosen, A100S)
        warnings = (*mutation.warnings, *validate(mutation.pod, chosen, A100S))
    except VcudaError:
        return "refused"
    return "same" if mutation.pod == pod and not warnings else "changed"


def _is_named(pod: Json, chosen: WebhookSettings) -> bool:
    """Whether a container names one of our resources, or of HAMi's in a pod of HAMi's."""
    names = {chosen.names.core, chosen.names.memory}
    if chosen.hami.scope is not HamiScope.OFF and is_for_hami(pod, chosen.hami):
        names |= set(chosen.hami.resources)
    resources = [each.json.get("resources", {}) for each in containers(pod)]
    return any(names & set(each.get(kind, {})) for each in resources for kind in ("limits", "requests"))


@pytest.mark.parametrize("name", CHOSEN)
@examples(400)
@given(pod=real_pods)
@example(pod=gpu_pod({GPU: "1"}))
@example(pod=gpu_pod({GPU: "1"}, {"nvidia.com/use-gputype": "A100"}))
@example(pod=gpu_pod({CORE: "0"}))
def test_a_pod_that_is_not_sent_would_not_have_been_touched_and_one_that_is_sent_concerns_us(
    name: str, pod: Json
) -> None:
    chosen = CHOSEN[name]
    names = AnnotationNames(chosen.names.domain)
    stale = any(names.is_machine_written(each) for each in annotations(pod))
    wanted = not is_static(pod) and (stale or (not is_left_alone(pod, chosen) and _is_named(pod, chosen)))
    assert SENT[name].all_say_yes(object=pod) == wanted
    if not wanted:
        assert _outcome(pod, chosen) == "same"


def _changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {
        name for name in {*before, *after} if NAMES.is_machine_written(name) and before.get(name) != after.get(name)
    }


POLICY = Compiled(policy_variables(NAMES))
VALIDATION, _ = policy_validation()
ALLOWED = Compiled({"nothing changed": VALIDATION})


def _object(written: dict[str, str] | None) -> Json:
    return {"metadata": {"name": "p"} if written is None else {"name": "p", "annotations": written}}


@examples(400)
@given(st.none() | annotation_maps, st.none() | annotation_maps, st.booleans())
def test_the_policy_names_exactly_the_annotations_of_ours_that_differ(
    before: dict[str, str] | None, after: dict[str, str] | None, creates: bool
) -> None:
    old, new = None if creates else _object(before), _object(after)
    variables = {name: POLICY.says(name, object=new, oldObject=old) for name in ("before", "after")}
    assert variables == {"before": {} if creates else before or {}, "after": after or {}}
    changed = POLICY.says("changed", object=new, oldObject=old, variables=variables)
    assert len(changed) == len(set(changed))
    assert set(changed) == _changed(variables["before"], variables["after"])
    assert ALLOWED.says("nothing changed", variables={"changed": changed}) is (not changed)


@pytest.mark.parametrize(
    ("user", "groups", "looked_at"),
    [
        (ACCOUNTS[0], ["system:serviceaccounts"], False),
        (ACCOUNTS[1], ["system:serviceaccounts", "system:masters"], False),
        ("system:serviceaccount:default:vcuda-agent", ["system:serviceaccounts"], True),
        ("system:node:n1", ["system:nodes", "system:authenticated"], False),
        ("admin", ["system:masters"], True),
        ("admin", [], True),
    ],
)
def test_the_policy_looks_at_everybody_but_our_programs_and_kubelets(
    user: str, groups: list[str], looked_at: bool
) -> None:
    request = {"userInfo": {"username": user, "groups": groups}}
    assert Compiled(policy_conditions(ACCOUNTS)).all_say_yes(request=request) is looked_at
