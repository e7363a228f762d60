"""AdmissionReview v1 in and out: what is answered, what is denied, and what is no review."""

import copy
import json
import timeit

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.webhook.resources import GpuKind, KnownGpus
from deviceplugin.cluster.webhook.review import AdmissionWebhook, Outcome, namespace_of
from deviceplugin.errors import ParseError
from deviceplugin.model.gpu import GpuUuid, Inventory
from tests.cluster.webhook.makers import (
    A100S,
    CORE,
    MEMORY,
    SETTINGS,
    container,
    gpu_pod,
    mutated,
    node_of,
    odd_pods,
    pod,
    response,
    review,
)
from tests.refusals import refusal

WEBHOOK = AdmissionWebhook(SETTINGS)
SHARE = gpu_pod({CORE: "30"})


def test_a_changed_pod_is_answered_with_a_patch_that_makes_it() -> None:
    answer = response(review(SHARE))
    assert (answer["uid"], answer["allowed"], answer["patchType"]) == ("review-1", True, "JSONPatch")
    assert jsonpatch.apply_patch(copy.deepcopy(SHARE), answer["patch"]) == mutated(SHARE)
    assert WEBHOOK.answer(review(SHARE), A100S).outcome is Outcome.CHANGED


def test_unknown_fields_survive() -> None:
    given = {**copy.deepcopy(SHARE), "future": {"a": [1, None]}}
    given["spec"]["containers"][0]["resources"]["claims"] = [{"name": "x"}]
    changed = jsonpatch.apply_patch(given, response(review(given))["patch"])
    assert changed["future"] == {"a": [1, None]}
    assert changed["spec"]["containers"][0]["resources"]["claims"] == [{"name": "x"}]


def test_a_denial_is_one_sentence_and_carries_no_patch() -> None:
    reply = WEBHOOK.answer(review(gpu_pod({CORE: "150"})), A100S)
    found = json.loads(reply.body)["response"]
    assert found.keys() == {"uid", "allowed", "status"}
    assert (found["allowed"], found["status"]["code"]) == (False, 403)
    assert found["status"]["message"].startswith("container main: tencent.com/vcuda-core: 150 ")
    assert reply.outcome is Outcome.DENIED


def test_only_kubelets_create_mirrors_that_are_not_touched() -> None:
    """Security 9: everybody can write the annotation of a mirror pod."""
    given = gpu_pod({CORE: "30"}, {"kubernetes.io/config.mirror": "abc", "tencent.com/gpu-assigned": "true"})
    given["spec"]["nodeName"] = "n1"
    kubelet, *others = [
        {"username": "system:node:n1", "groups": ["system:nodes", "system:authenticated"]},
        {"username": "system:node:n1", "groups": ["system:authenticated"]},
        {"username": "mallory", "groups": ["system:nodes"]},
        {"username": "mallory", "groups": None},
        {},
    ]
    assert response(review(given, userInfo=kubelet)) == {"uid": "review-1", "allowed": True}
    for user in others:
        answer = response(review(given, userInfo=user))
        assert answer["allowed"], user
        changed = jsonpatch.apply_patch(given, answer["patch"])
        assert "tencent.com/gpu-assigned" not in changed["metadata"]["annotations"], user


def test_warnings_reach_the_user() -> None:
    assert "no node has more than 8" in response(review(gpu_pod({CORE: "1600"})))["warnings"][0]


def test_what_is_no_new_gpu_pod_passes() -> None:
    requests: list[dict[str, object]] = [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"operation": "CONNECT"},
        {"resource": {"group": "", "version": "v1", "resource": "nodes"}},
        {"resource": {"group": "metrics.k8s.io", "version": "v1", "resource": "pods"}},
        {"subResource": "binding"},
        {"object": pod(container())},
    ]
    bad: dict[str, object] = {"given": gpu_pod({CORE: "150"})}
    for request in requests:
        given = request.pop("object", bad["given"])
        assert response(review(given, **request)) == {"uid": "review-1", "allowed": True}, request


def test_a_pod_of_a_controller_has_neither_name_nor_namespace() -> None:
    given = gpu_pod({CORE: "30"})
    given["metadata"] = {"generateName": "job-"}
    changed = jsonpatch.apply_patch(given, response(review(given, name=""))["patch"])
    assert changed["metadata"] == {"generateName": "job-"}
    assert changed["spec"]["schedulerName"] == "vcuda-scheduler"


def test_a_dry_run_is_answered_like_any_other() -> None:
    wet, dry = (WEBHOOK.answer(review(SHARE, dryRun=run), A100S) for run in (False, True))
    assert wet == dry


def test_what_no_answer_could_be_matched_to_is_one_sentence_for_the_server() -> None:
    bodies = [
        b"",
        b"not json",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": ""}}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": 7}}',
        b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u"}}',
        b'{"apiVersion": "v1", "kind": "Pod"}',
    ]
    said = [(body[-100:], refusal(ParseError, WEBHOOK.answer, body, A100S)) for body in bodies]
    assert [each for each in said if "admission review" not in each[1] or "\n" in each[1]] == []


def test_a_broken_pod_is_denied_in_one_sentence() -> None:
    pods: list[object] = [
        None,
        [],
        "pod",
        {"spec": {"containers": {}}},
        {"spec": {"containers": ["main"]}},
        {"spec": []},
        {"metadata": {"annotations": {"a": 1}}, "spec": {}},
        {"metadata": {"labels": []}},
        {"spec": {"containers": [{"name": "main", "resources": {"limits": [1]}}]}},
        {"spec": {"containers": [{"name": "main", "resources": {"limits": {CORE: {}}}}]}},
        {"spec": {"containers": [{"name": "main", "resources": {"limits": {CORE: True}}}]}},
        {"spec": {"containers": [{"name": "main", "env": 4, "resources": {"limits": {CORE: 100}}}]}},
    ]
    answers = [response(review(given)) for given in pods]
    found = [(given, each["uid"], each["allowed"]) for given, each in zip(pods, answers, strict=True)]
    assert found == [(given, "review-1", False) for given in pods]
    assert [
        each["status"] for each in answers if each["status"]["code"] != 400 or "\n" in each["status"]["message"]
    ] == []


def nested(depth: int) -> bytes:
    deep = json.dumps(gpu_pod({CORE: "100"}))[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}"
    return review("HERE").replace(b'"HERE"', deep.encode())


def test_nesting_that_nobody_reads_does_not_matter_up_to_what_the_parser_takes() -> None:
    assert response(nested(600))["allowed"] is True
    with pytest.raises(ParseError, match="the admission review cannot be read"):
        response(nested(2_000_000))  # nearly the largest review


@given(odd_pods | st.recursive(st.none() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_every_pod_gets_an_answer(given: object) -> None:
    assert isinstance(response(review(given))["allowed"], bool)


def node(*memory_gib: float) -> Inventory:
    return node_of(*((f"T{gib}", int(gib * 1024)) for gib in memory_gib))


def test_one_node_does_not_change_the_memory_of_pods_in_the_cluster() -> None:
    """Security 15: a kubelet may annotate its own node."""
    given = review(gpu_pod({CORE: "30"}))
    for honest in (2, 3, 9, 10, 30):
        nodes = [node(80, 80)] * honest
        before = response(given, known=KnownGpus.of(nodes))
        after = {said: response(given, known=KnownGpus.of([*nodes, node(said)])) for said in (0, 0.25, 40, 1 << 14)}
        assert after == dict.fromkeys(after, before), honest


def test_the_smallest_gpu_is_that_of_all_but_a_tenth_of_the_nodes() -> None:
    cases = [
        ([16], 64),
        ([16, 80], 64),
        ([16, 80, 80], 320),
        ([16, 16, 80], 64),
        ([*[16] * 2, *[80] * 18], 320),
        ([*[16] * 3, *[80] * 18], 64),
    ]
    assert [(gibs, KnownGpus.of([node(gib) for gib in gibs]).smallest_blocks) for gibs, _ in cases] == cases


def test_a_gpu_without_a_block_of_memory_does_not_count() -> None:
    assert KnownGpus.of([node(0.1, 16), node(0.1)]).smallest_blocks == 64
    assert KnownGpus.of([node(0.1)]).smallest_blocks == 0


def test_what_is_known_is_said_by_all_inventories_together() -> None:
    known = KnownGpus.of([node(16, 16, 80), node(), node(40)])
    assert (known.smallest_blocks, known.largest_blocks, known.most) == (64, 320, 3)
    uuids = [
        frozenset(map(GpuUuid, each))
        for each in ({"GPU-T16-16384-0", "GPU-T16-16384-1"}, {"GPU-T40-40960-0"}, {"GPU-T80-81920-2"})
    ]
    assert known.kinds == (
        GpuKind("T16", 16384, 1, uuids[0]),
        GpuKind("T40", 40960, 1, uuids[1]),
        GpuKind("T80", 81920, 1, uuids[2]),
    )


def test_of_an_empty_cluster_nothing_is_known() -> None:
    assert KnownGpus.of(()) == KnownGpus()
    assert response(review(gpu_pod({CORE: "30", MEMORY: "9999"})), known=KnownGpus.of(()))["allowed"]


def test_the_namespace_is_found_without_reading_the_pod() -> None:
    assert namespace_of(review(SHARE, namespace="research")) == "research"
    assert namespace_of(review(SHARE, namespace=None)) == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x" * 100,
        b"\xff",
        b"[]",
        b'{"request": 1}',
        b'{"request": null}',
        b'{"request": {"namespace": 7}}',
        b'{"request": {"namespace": "a", "object": ' + b"[" * 100_000,
        b'{"request": {"namespace": "\\ud800"}}',
    ],
)
def test_what_is_no_review_has_no_namespace_and_is_refused_as_ever(body: bytes) -> None:
    assert namespace_of(body) == ""
    with pytest.raises(ParseError):
        WEBHOOK.answer(body, A100S)


def test_to_find_the_namespace_takes_milliseconds() -> None:
    """Two for 1 MiB where nothing else happens."""
    variables = [{"name": f"NAME_{at}", "value": "x"} for at in range(20_000)]
    pod_json = gpu_pod({CORE: "30"})
    pod_json["spec"]["containers"][0]["env"] = variables
    body = review(pod_json)
    assert min(timeit.repeat(lambda: namespace_of(body), number=1, repeat=5)) < 0.010 * len(body) / (1 << 20)


# msgspec reads fewer than 1,000 levels with Python 3.11, and fewer than 10,000 with 3.13.
@pytest.mark.parametrize("odd", ["[" * 500_000 + "]" * 500_000, r'"\ud800"'], ids=["nested", "half a pair"])
def test_what_the_api_server_sends_and_nobody_can_read_is_denied_whatever_the_failure_policy(odd: str) -> None:
    uid = "705ab4f5-6393-11e8-b7cc-42010a800002"
    start = f'{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":"{uid}",'
    body = (
        f'{start}"operation":"CREATE","object":{{"metadata":{{"managedFields":[{{"fieldsV1":{odd}}}]}}}}}}}}'.encode()
    )
    reply = WEBHOOK.answer(body, A100S)
    found = json.loads(reply.body)["response"]
    assert (found["uid"], found["allowed"], found["status"]["code"]) == (uid, False, 400)
    assert found["status"]["message"].startswith("the admission review cannot be read: ")
    assert reply.outcome is Outcome.DENIED
    with pytest.raises(ParseError):
        WEBHOOK.answer(body.replace(b'{"kind"', b'{ "kind"'), A100S)
