"""Pods that are written for the device plugin ask by claims, once, and exactly for what they asked."""

from dataclasses import replace
from typing import Any

import jsonpatch
import pytest

from deviceplugin.cluster.webhook.mutate import _FreeNames
from deviceplugin.cluster.webhook.pod_json import Json
from deviceplugin.model import claims
from deviceplugin.model.claims import MOST_TEMPLATES
from deviceplugin.model.pod_request import MOST_GPU_CONTAINERS
from deviceplugin.model.preferences import GpuFilter
from tests.cluster.webhook.makers import A100S, CORE, GPUMEM, HAMI, MEMORY, container, gpu_pod, pod, response, review

CLAIMS = replace(HAMI, claims=True)
GPU = "nvidia.com/gpu"


def turned(given: Json) -> Json:
    """As the API server has it after the webhook's patch."""
    found = response_of(given)
    assert found["allowed"], found
    return patched(given, found.get("patch", []))


def response_of(given: Json) -> Json:
    return response(review(given), CLAIMS, A100S)


def patched(given: Json, operations: list[Any]) -> Json:
    found: Json = jsonpatch.apply_patch(given, operations)
    return found


def test_a_share_names_a_template_for_its_size() -> None:
    found = turned(gpu_pod({CORE: "20", MEMORY: "8"}))
    assert found["spec"]["resourceClaims"] == [{"name": "vcuda-main", "resourceClaimTemplateName": "vcuda-1x20c8b"}]
    (main,) = found["spec"]["containers"]
    assert main["resources"]["claims"] == [{"name": "vcuda-main"}]
    assert (main["resources"]["limits"], main["resources"]["requests"]) == ({}, {})
    assert found["metadata"]["labels"] == {"tencent.com/vcuda-claims": "true"}
    assert "schedulerName" not in found["spec"], "every kube-scheduler places claims"


def test_the_template_is_for_the_completed_request_of_hamis_resources_too_and_for_the_models() -> None:
    assert template_of(turned(gpu_pod({CORE: "50"}))) == "vcuda-1x50c80b"
    assert template_of(turned(gpu_pod({GPU: "1", GPUMEM: "2048"}))) == "vcuda-1x10c8b"
    filtered = gpu_pod({CORE: "20", MEMORY: "8"}, {"tencent.com/vcuda-use-models": "A100"})
    assert template_of(turned(filtered)).startswith("vcuda-1x20c8b-")


def test_each_container_has_its_own_and_init_containers_that_of_the_same_size() -> None:
    given = pod(
        container("a", {CORE: "20", MEMORY: "8"}), container("b", {CORE: "20", MEMORY: "8"}), container("plain")
    )
    given["spec"]["initContainers"] = [container("same", {CORE: "20", MEMORY: "8"}), container("more", {CORE: "100"})]
    found = turned(given)
    assert [each["name"] for each in found["spec"]["resourceClaims"]] == ["vcuda-a", "vcuda-b", "vcuda-more"]
    inits = [each["resources"]["claims"] for each in found["spec"]["initContainers"]]
    assert inits == [[{"name": "vcuda-a"}], [{"name": "vcuda-more"}]]
    assert "claims" not in found["spec"]["containers"][2].get("resources", {})


def test_asked_again_it_changes_nothing() -> None:
    """After another webhook changed the pod."""
    once = turned(gpu_pod({CORE: "20", MEMORY: "8"}))
    assert turned(once) == once


def test_claims_of_the_pod_stay() -> None:
    given = gpu_pod({CORE: "20", MEMORY: "8"})
    given["spec"]["resourceClaims"] = [{"name": "vcuda-main", "resourceClaimName": "network"}]
    given["spec"]["containers"][0]["resources"]["claims"] = [{"name": "vcuda-main"}]
    found = turned(given)
    assert [each["name"] for each in found["spec"]["resourceClaims"]] == ["vcuda-main", "vcuda-main-0"]
    assert found["spec"]["containers"][0]["resources"]["claims"] == [{"name": "vcuda-main"}, {"name": "vcuda-main-0"}]


def test_what_no_claim_can_say_is_warned_about() -> None:
    found = response_of(gpu_pod({CORE: "20", MEMORY: "8"}, {"tencent.com/vcuda-node-policy": "spread"}))
    assert "annotation tencent.com/vcuda-node-policy has no effect on a claim" in found["warnings"]


def test_what_was_refused_is_refused() -> None:
    refused = [{CORE: "150"}, {CORE: "20", MEMORY: "99999999"}]
    assert [response_of(gpu_pod(limits))["allowed"] for limits in refused] == [False, False]


def test_a_pod_with_a_node_goes_through_the_scheduler() -> None:
    """Without it nothing would allocate the claim, and kubelet would refuse the pod for ever."""
    given = gpu_pod({CORE: "20", MEMORY: "8"})
    given["spec"]["nodeName"] = "node-a"
    found = turned(given)
    assert "nodeName" not in found["spec"]
    assert "node-a" in str(found["spec"]["affinity"])


def test_a_pod_that_opted_out_is_left_alone() -> None:
    given = gpu_pod({CORE: "20", MEMORY: "8"})
    given["metadata"]["labels"] = {"tencent.com/vcuda-webhook": "ignore"}
    assert turned(given) == given


def test_a_pod_asks_for_no_more_sizes_than_the_scheduler_makes_templates() -> None:
    every = pod(
        *(container(f"c{at}", {CORE: "20", MEMORY: str(1 + at)}) for at in range(MOST_GPU_CONTAINERS)), annotations={}
    )
    named = {each["resourceClaimTemplateName"] for each in turned(every)["spec"]["resourceClaims"]}
    assert len(named) == MOST_GPU_CONTAINERS <= MOST_TEMPLATES


def test_what_the_pod_accepts_is_put_into_words_once_for_all_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[GpuFilter] = []

    def counted(wanted: GpuFilter, driver: str) -> list[str]:
        put.append(wanted)
        return selectors(wanted, driver)

    selectors = claims._selectors
    monkeypatch.setattr(claims, "_selectors", counted)
    found = turned(
        pod(
            *(container(f"c{at}", {CORE: "20", MEMORY: "8"}) for at in range(MOST_GPU_CONTAINERS)),
            annotations={"tencent.com/vcuda-use-models": "A100"},
        )
    )
    assert len(found["spec"]["resourceClaims"]) == MOST_GPU_CONTAINERS
    assert len(put) == 1


@pytest.mark.parametrize("beginning", ["main", "a" * 60])
def test_no_name_of_a_claim_is_tried_twice(beginning: str) -> None:
    """By a pod that has taken a thousand of the names that its containers' claims would have."""
    free = _FreeNames([beginning, *(f"{beginning[: 62 - len(str(at))]}-{at}" for at in range(1000)), None, 7])
    taken = [free.take(f"{beginning}{'-' * 9}") for _ in range(1000)]
    assert len(set(taken)) == 1000
    assert all(len(each) <= 63 for each in taken)
    (numbers,) = free._numbers.values()
    assert next(numbers) <= 2001


def template_of(found: Json) -> str:
    (claim,) = found["spec"]["resourceClaims"]
    return str(claim["resourceClaimTemplateName"])
