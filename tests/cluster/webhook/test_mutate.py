"""A new pod is completed, sent to vcuda's scheduler, and loses forged annotations."""

import copy
import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.webhook.mutate import mutate
from deviceplugin.cluster.webhook.pod_json import Json
from deviceplugin.cluster.webhook.resources import GpuKind, KnownGpus
from deviceplugin.config.scheduler import WebhookSettings
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.units import ShareMemory
from tests.cluster.webhook.makers import (
    A100S,
    CORE,
    HAMI,
    MEMORY,
    SETTINGS,
    asked,
    container,
    gpu_pod,
    mutated,
    odd_pods,
    pod,
)
from tests.examples import examples

UNKNOWN = KnownGpus()
T4S = KnownGpus(64, most=1, kinds=(GpuKind("Tesla T4", 16384),))
EVERYTHING = replace(HAMI, hide_gpus=True, runtime_class="nvidia")


def test_a_request_is_completed_by_the_documented_defaults() -> None:
    cases = [
        ({CORE: "30"}, SETTINGS, A100S, {CORE: "30", MEMORY: "48"}),  # of the smallest GPU, not of the largest
        ({CORE: "1"}, SETTINGS, A100S, {CORE: "1", MEMORY: "1"}),
        ({CORE: "1"}, SETTINGS, T4S, {CORE: "1", MEMORY: "1"}),  # a share has no less than a block
        ({CORE: "2"}, SETTINGS, T4S, {CORE: "2", MEMORY: "1"}),
        ({CORE: "30", MEMORY: "0"}, SETTINGS, A100S, {CORE: "30", MEMORY: "48"}),
        ({CORE: "30"}, SETTINGS, UNKNOWN, {CORE: "30"}),
        ({CORE: "30"}, replace(SETTINGS, share_memory=ShareMemory(False, 4)), UNKNOWN, {CORE: "30", MEMORY: "4"}),
        ({CORE: "30"}, replace(SETTINGS, share_memory=ShareMemory(False, 0)), A100S, {CORE: "30"}),
        ({MEMORY: "16"}, SETTINGS, UNKNOWN, {CORE: "10", MEMORY: "16"}),
        ({MEMORY: "16"}, replace(SETTINGS, default_cores=25), UNKNOWN, {CORE: "25", MEMORY: "16"}),
        ({MEMORY: "16"}, replace(SETTINGS, default_cores=0), UNKNOWN, {MEMORY: "16"}),
        ({CORE: "100"}, SETTINGS, A100S, {CORE: "100"}),
        ({CORE: "400"}, SETTINGS, A100S, {CORE: "400"}),
        ({CORE: "150"}, SETTINGS, A100S, {CORE: "150"}),
        ({CORE: "50", MEMORY: "8"}, SETTINGS, A100S, {CORE: "50", MEMORY: "8"}),
    ]
    found = [asked(mutated(gpu_pod(limits), chosen, known)) for limits, chosen, known, _ in cases]
    assert found == [expected for *_, expected in cases]


def test_a_share_over_several_gpus_is_completed_for_each_of_them() -> None:
    changed = mutated(pod(container("a", {CORE: "60"}), container("b", {MEMORY: "8"}), annotations={
        "tencent.com/vcuda-gpus": "a=2,b=4",
    }))  # fmt: skip
    assert asked(changed) == {CORE: "60", MEMORY: "96"}
    assert asked(changed, 1) == {CORE: "40", MEMORY: "8"}


def test_what_is_asked_of_two_gpus_is_completed_where_each_gives_an_even_share() -> None:
    cases = [
        ({CORE: "150"}, {CORE: "150", MEMORY: "240"}),  # more than one GPU's cores, and of each only a share
        ({CORE: "200"}, {CORE: "200"}),
        ({CORE: "61"}, {CORE: "61"}),  # no even parts, which `validate` says
        ({CORE: "61", MEMORY: "8"}, {CORE: "61", MEMORY: "8"}),
    ]
    found = [(limits, asked(mutated(gpu_pod(limits, {"tencent.com/vcuda-gpus": "2"})))) for limits, _ in cases]
    assert found == cases


def test_requests_and_limits_are_both_written() -> None:
    wanted = {CORE: "30", MEMORY: "48"}
    for kind, other in (("limits", "requests"), ("requests", "limits")):
        given = pod({"name": "main", "resources": {kind: {CORE: "30", "cpu": "1"}}})
        assert mutated(given)["spec"]["containers"][0]["resources"] == {kind: {**wanted, "cpu": "1"}, other: wanted}


def test_init_containers_and_sidecars_are_completed_too() -> None:
    init = [container("warm", {CORE: "20"}), container("side", {MEMORY: "4"}, restartPolicy="Always")]
    changed = mutated(pod(container(), initContainers=init))
    assert asked(changed, 0, "initContainers") == {CORE: "20", MEMORY: "32"}
    assert asked(changed, 1, "initContainers") == {CORE: "10", MEMORY: "4"}
    assert changed["spec"]["schedulerName"] == "vcuda-scheduler"


def test_our_scheduler_takes_only_pods_that_left_the_default() -> None:
    def scheduler_of(written: str | None) -> object:
        given = gpu_pod({CORE: "100"})
        given["spec"]["schedulerName"] = written
        return mutated(given)["spec"]["schedulerName"]

    found = {written: scheduler_of(written) for written in (None, "", "default-scheduler", "volcano")}
    assert found == {**dict.fromkeys((None, "", "default-scheduler"), "vcuda-scheduler"), "volcano": "volcano"}


def test_a_pod_without_gpus_is_left_as_it_is() -> None:
    given = pod(container(limits={"cpu": "1"}), nodeName="n1", annotations={"tencent.com/vcuda-node-policy": "spread"})
    assert mutated(given) == given


def test_annotations_that_our_programs_write_are_stripped_and_no_others() -> None:
    kept = {"tencent.com/vcuda-gpu-policy": "link", "tencent.com/vcuda-core-limit": "50", "mine": "1"}
    stale = {
        "tencent.com/vcuda-allocation": "{}",
        "tencent.com/predicate-time": "1",
        "tencent.com/predicate-node": "n1",
        "tencent.com/gpu-assigned": "true",
        "tencent.com/predicate-gpu-idx-0": "0",
        "tencent.com/predicate-gpu-idx-11": "0",
    }
    for each in (gpu_pod({CORE: "100"}, {**kept, **stale}), pod(container(), annotations={**kept, **stale})):
        assert mutated(each)["metadata"]["annotations"] == kept


def test_a_pod_that_opted_out_loses_stale_annotations_and_nothing_else_happens() -> None:
    for label in ("hami.io/webhook", "tencent.com/vcuda-webhook"):
        given = gpu_pod({CORE: "30"}, {"tencent.com/predicate-node": "n1"})
        given["metadata"]["labels"] = {label: "ignore"}
        expected = copy.deepcopy(given)
        expected["metadata"]["annotations"] = {}
        assert mutated(given) == expected


def _term(*nodes: str, **more: Any) -> Json:
    return {**more, "matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]} for node in nodes]}


ZONE = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}


def test_a_node_name_becomes_an_affinity_that_every_term_has() -> None:
    cases: list[tuple[list[Json] | None, list[Json]]] = [
        (None, [_term("n1")]),
        ([ZONE], [_term("n1", **ZONE)]),
        ([ZONE, _term("n2")], [_term("n1", **ZONE), _term("n2", "n1")]),
        ([_term("n1")], [_term("n1")]),
        ([{}], [{}]),  # an empty term matches no node, and must not begin to match one
    ]
    for terms, expected in cases:
        given = gpu_pod({CORE: "100"})
        given["spec"]["nodeName"] = "n1"
        if terms is not None:
            required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            given["spec"]["affinity"] = {"nodeAffinity": required, "podAffinity": {"x": 1}}
        mutation = mutate(given, SETTINGS, A100S)
        affinity = mutation.pod["spec"]["affinity"]
        assert "nodeName" not in mutation.pod["spec"]
        found = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert found == expected
        assert affinity.get("podAffinity") == ({"x": 1} if terms is not None else None)
        assert "n1" in mutation.warnings[0]


def test_a_node_name_stays_where_another_scheduler_was_named() -> None:
    given = gpu_pod({CORE: "100"})
    given["spec"] |= {"nodeName": "n1", "schedulerName": "volcano"}
    assert mutated(given)["spec"]["nodeName"] == "n1"


def test_the_environment_of_a_gpu_container_cannot_lead_past_our_libraries() -> None:
    path, lib64 = "LD_LIBRARY_PATH", "/usr/local/nvidia/lib64"
    cases: list[tuple[list[tuple[str, str]], list[tuple[str, str]]]] = [
        ([], []),
        ([(path, "/a")], [(path, f"{lib64}:/a")]),
        ([(path, "")], [(path, lib64)]),
        ([("compat32", "true"), (path, "/a")], [("compat32", "true"), (path, "/usr/local/nvidia/lib:/a")]),
        ([("compat32", "TRUE"), (path, "/a")], [("compat32", "TRUE"), (path, "/usr/local/nvidia/lib:/a")]),
        ([(path, f"{lib64}:/a")], [(path, f"{lib64}:/a")]),
        ([(path, f"/a:{lib64}")], [(path, f"{lib64}:/a:{lib64}")]),
        ([("NVIDIA_VISIBLE_DEVICES", "all"), ("A", "1")], [("A", "1")]),
    ]

    def changed(env: list[tuple[str, str]]) -> list[tuple[str, str]]:
        given = gpu_pod({CORE: "30"}, env=[{"name": name, "value": value} for name, value in env])
        return [(each["name"], each["value"]) for each in mutated(given)["spec"]["containers"][0]["env"]]

    assert [(env, changed(env)) for env, _ in cases] == cases


def test_containers_that_did_not_ask_see_no_gpu_where_that_is_set() -> None:
    seen = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    given = pod(
        container("main", {CORE: "30"}),
        container("plain"),
        container("curious", env=[{"name": "A", "value": "1"}, seen]),
        container("sliced", {"nvidia.com/mig-1g.5gb": "1"}),
    )
    none = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}
    containers = mutated(given, replace(SETTINGS, hide_gpus=True))["spec"]["containers"]
    assert [each.get("env") for each in containers] == [None, [none], [{"name": "A", "value": "1"}, none], None]
    assert [each.get("env") for each in mutated(given)["spec"]["containers"]][1] is None


def test_the_runtime_class_is_set_where_the_pod_names_none() -> None:
    chosen = replace(SETTINGS, runtime_class="nvidia")
    assert mutated(gpu_pod({CORE: "100"}), chosen)["spec"]["runtimeClassName"] == "nvidia"
    own = gpu_pod({CORE: "100"})
    own["spec"]["runtimeClassName"] = "kata"
    assert mutated(own, chosen)["spec"]["runtimeClassName"] == "kata"


def _or_refusal(given: Json, chosen: WebhookSettings, known: KnownGpus) -> Json | None:
    try:
        return mutate(given, chosen, known).pod
    except (RequestError, ParseError):
        return None


@examples(400)
@given(odd_pods, st.sampled_from([SETTINGS, HAMI, EVERYTHING]), st.sampled_from([A100S, UNKNOWN]))
def test_mutating_twice_is_mutating_once_and_the_given_pod_stays(
    given: Json, chosen: WebhookSettings, known: KnownGpus
) -> None:
    before = json.dumps(given)
    once = _or_refusal(given, chosen, known)
    assert json.dumps(given) == before
    if once is not None:
        assert mutate(once, chosen, known).pod == once
