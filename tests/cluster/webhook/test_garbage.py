"""For any input: one sentence or a patch that applies, the same twice, in time, and the next review is answered."""

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.webhook.pod_json import Json
from deviceplugin.config.scheduler import WebhookSettings
from deviceplugin.errors import ParseError
from deviceplugin.model.pod_request import MOST_GPU_CONTAINERS
from tests.cluster.webhook.expressions import real_pods
from tests.cluster.webhook.makers import (
    CORE,
    HAMI,
    MARKED,
    SETTINGS,
    container,
    gpu_pod,
    odd_pods,
    pod,
    response,
    review,
)
from tests.examples import examples

EVERYTHING = replace(HAMI, hide_gpus=True, runtime_class="nvidia")
CHOSEN = st.sampled_from([SETTINGS, MARKED, HAMI, EVERYTHING])
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(each for key, item in inner for each in _places(item, (*place, key)))]


@st.composite
def spoiled_pods(draw: st.DrawFn) -> Any:
    """Good pods in which one value is replaced by another."""
    found: Any = copy.deepcopy(draw(odd_pods | real_pods))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from([place for place in _places(found) if place] or [("metadata",)]))
        target = found
        for step in way:
            target = target[step]
        target[last] = draw(_json)
    return found


@examples(600)
@given(spoiled_pods(), CHOSEN)
def test_a_spoiled_pod_gets_one_sentence_or_a_patch_after_which_nothing_is_left_to_do(
    given: Any, chosen: WebhookSettings
) -> None:
    answer = response(review(given), chosen)
    if not answer["allowed"]:
        message = answer["status"]["message"]
        assert message
        assert message.isprintable()
        return
    patched = jsonpatch.apply_patch(copy.deepcopy(given), answer["patch"]) if "patch" in answer else given
    again = response(review(patched), chosen)
    assert again["allowed"]
    assert "patch" not in again


_envelopes = st.fixed_dictionaries(
    {},
    optional={
        "apiVersion": st.just("admission.k8s.io/v1") | _json,
        "kind": st.just("AdmissionReview") | _json,
        "request": _json
        | st.fixed_dictionaries(
            {"uid": st.just("u") | _json},
            optional={
                "operation": st.just("CREATE") | _json,
                "resource": st.just({"group": "", "version": "v1", "resource": "pods"}) | _json,
                "namespace": st.just("default") | _json,
                "object": st.just(gpu_pod({CORE: "30"})) | _json,
                "dryRun": _json,
            },
        ),
    },
)


@examples(600)
@given(_envelopes.map(json.dumps).map(str.encode) | st.binary(max_size=60))
def test_a_spoiled_envelope_is_a_sentence_for_the_server_or_an_answer(body: bytes) -> None:
    sentence = ""
    try:
        found = response(body, EVERYTHING)
    except ParseError as error:
        sentence = error.message
    if sentence:
        assert "admission review" in sentence
        assert sentence.isprintable()
    else:
        assert isinstance(found["allowed"], bool)
        assert found["uid"] == json.loads(body)["request"]["uid"]


def _many_variables(number: int) -> list[Json]:
    return [{"name": f"VARIABLE_{each}", "value": "x" * 40} for each in range(number)]


def _noted(number: int, *, labels: int) -> Json:
    """As many annotations as leave room for those of its GPUs."""
    made = gpu_pod({CORE: "30"}, {f"example.com/a{each}": "x" * 40 for each in range(number)})
    made["metadata"]["labels"] = {f"example.com/l{each}": "x" * 40 for each in range(labels)}
    return made


_LARGE: dict[str, tuple[int, Callable[[int], Json]]] = {
    "annotations and labels": (16_000, lambda number: _noted(number // 4, labels=number - number // 4)),
    "environment": (14_000, lambda number: gpu_pod({CORE: "30"}, env=_many_variables(number))),
    "GPU containers": (
        MOST_GPU_CONTAINERS,
        lambda number: pod(*(container(f"c{each}", {CORE: "1"}, env=_many_variables(190)) for each in range(number))),
    ),
    "one list of libraries": (
        20_000,
        lambda number: gpu_pod({CORE: "30"}, env=[{"name": "LD_PRELOAD", "value": ":".join(["/x" * 20] * number)}]),
    ),
    "containers without a GPU": (
        900,
        lambda number: pod(
            container(limits={"nvidia.com/gpumem": "512"}),
            *(container(f"c{each}", env=_many_variables(12)) for each in range(number)),
        ),
    ),
}


@pytest.mark.parametrize("what", _LARGE)
def test_the_work_for_a_pod_grows_as_its_size_and_no_faster(what: str) -> None:
    """A pod may be a mebibyte, and others wait for the same thread. Quadratic work would be 16 times as much here."""
    number, make = _LARGE[what]
    small, large = review(make(number // 4)), review(make(number))
    assert len(large) > 600_000
    least = {small: math.inf, large: math.inf}
    for _ in range(8):  # neighbours of this processor make some of them slower
        for body in (small, small, large):
            least[body] = min(least[body], _seconds(body))
        if least[large] < 10 * least[small]:
            return
    assert least[large] < 10 * least[small]


def _seconds(body: bytes) -> float:
    began = time.process_time()
    assert response(body, EVERYTHING)["allowed"] is True
    return time.process_time() - began
