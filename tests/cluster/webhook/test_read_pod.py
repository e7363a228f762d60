"""A pod of which only the read members are decoded: the same answers as for all of it, and bounded work."""

import json
import time

import jsonpatch
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.webhook.mutate import mutate
from deviceplugin.cluster.webhook.pod_json import Json, difference, read_pod
from deviceplugin.cluster.webhook.review import AdmissionWebhook
from deviceplugin.cluster.webhook.validate import validate
from deviceplugin.config.scheduler import WebhookSettings
from deviceplugin.errors import VcudaError
from tests.cluster.webhook.expressions import real_pods
from tests.cluster.webhook.makers import (
    A100S,
    CHOSEN,
    CORE,
    SETTINGS,
    container,
    gpu_pod,
    odd_pods,
    pod,
    response,
    review,
)
from tests.examples import examples

MEBIBYTE = 1 << 20


def made_of(found: Json, given: Json, settings: WebhookSettings) -> object:
    """The patched pod and the warnings, or the sentence."""
    try:
        mutation = mutate(found, settings, A100S)
        warnings = (*mutation.warnings, *validate(mutation.pod, settings, A100S))
    except VcudaError as error:
        return error.message
    patch = json.loads(msgspec.json.encode(tuple(difference(found, mutation.pod))))
    return jsonpatch.apply_patch(given, patch), warnings


@examples(400)
@given(odd_pods | real_pods, st.sampled_from(sorted(CHOSEN)))
def test_what_is_not_decoded_changes_no_answer(given: Json, chosen: str) -> None:
    found = read_pod(msgspec.Raw(json.dumps(given).encode()))
    assert made_of(found, given, CHOSEN[chosen]) == made_of(given, given, CHOSEN[chosen])


def test_members_that_are_not_read_survive_in_a_list_that_is_replaced() -> None:
    source = {"name": "A", "valueFrom": {"fileKeyRef": {"key": "k"}}, "future": [1, {"x": None}]}
    given = gpu_pod({CORE: "100"}, env=[source, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    patch = response(review(given))["patch"]
    assert {"op": "replace", "path": "/spec/containers/0/env", "value": [source]} in patch


def hostile(one: str, member: str, size: int) -> bytes:
    """A review of about `size` bytes, in which a list of a container or of the pod has `one` again and again."""
    items = ",".join([one] * (size // (len(one) + 1)))
    made = gpu_pod({CORE: "30"}) if member != "containers" else pod(container(limits={CORE: "30"}))
    text = json.dumps(made)
    if member == "containers":
        text = text.replace('"containers": [', f'"containers": [{items}, ')
    elif member in ("env", "volumeMounts"):
        text = text.replace('"image":', f'"{member}": [{items}], "image":')
    else:
        text = text.replace('"metadata":', f'"{member}": [{items}], "metadata":')
    return review(None).replace(b'"object": null', b'"object": ' + text.encode())


HOSTILE = [
    *((one, "z") for one in ("[]", "{}", "[[]]", '{"":{}}')),
    *((one, member) for one in ("[]", "{}") for member in ("containers", "env", "volumeMounts")),
    (json.dumps({"resources": {"limits": {CORE: "1"}}}), "containers"),
]


def test_a_hostile_review_costs_no_seconds_of_the_loop() -> None:
    """Security 6: 8 MiB of these took up to 21 s of CPU time, and 4 MiB of empty containers 21 s and 1.5 GiB."""
    for one, member in HOSTILE:
        body = hostile(one, member, 4 * MEBIBYTE - 4096)
        assert len(body) > 3.9 * MEBIBYTE
        began = time.process_time()
        reply = AdmissionWebhook(SETTINGS).answer(body, A100S)
        took = time.process_time() - began
        began = time.process_time()
        msgspec.json.decode(body, type=msgspec.Raw)  # finds the end, and makes nothing of it
        least = time.process_time() - began
        assert took < 0.5 + 20 * least, (one, member)  # about 0.1 s; a slow machine is slow at both
        assert len(reply.body) < 1000, (one, member)


def test_a_pod_beyond_every_real_one_is_denied_with_a_sentence() -> None:
    pods = {
        "a list of 1001 items where at most 1000 are read": pod(*(container(f"c{each}") for each in range(1001))),
        "more than 100000 members": gpu_pod({CORE: "30"}, env=[{"name": "A"}] * 50_000),
        "the pod's a is longer than 262144 characters": gpu_pod({CORE: "30"}, {"a": "x" * (256 << 10) + "x"}),
    }
    answers = {sentence: response(review(given)) for sentence, given in pods.items()}
    assert {sentence: each["allowed"] for sentence, each in answers.items()} == dict.fromkeys(pods, False)
    said = {sentence: each["status"]["message"] for sentence, each in answers.items()}
    assert [each for each in said.items() if each[0] not in each[1]] == []
