"""Memory in MiB becomes blocks to be placed by and a limit of exactly that."""

from typing import Any

import pytest

from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.cluster.webhook.mutate import mutate
from deviceplugin.cluster.webhook.validate import validate
from deviceplugin.errors import RequestError, VcudaError
from tests.cluster.webhook.makers import (
    A100S,
    CORE,
    HAMI,
    MEMORY,
    MEMORY_MIB,
    SETTINGS,
    asked,
    container,
    gpu_pod,
    mutated,
    pod,
)

GPUS, LIMIT = "tencent.com/vcuda-gpus", "tencent.com/vcuda-memory-limit"
A40S = KnownGpus(smallest_blocks=179, largest_blocks=179, most=8, models=frozenset({"NVIDIA A40"}))


@pytest.mark.parametrize(
    ("limits", "given", "expected", "annotations"),
    [
        ({CORE: "30", MEMORY_MIB: "5000"}, {}, {CORE: "30", MEMORY: "20"}, {LIMIT: "main=5000"}),
        ({CORE: "30", MEMORY_MIB: "5Ki"}, {}, {CORE: "30", MEMORY: "20"}, {}),
        ({MEMORY_MIB: "300"}, {}, {CORE: "10", MEMORY: "2"}, {LIMIT: "main=300"}),
        ({CORE: "60", MEMORY_MIB: "10001"}, {GPUS: "2"}, {CORE: "60", MEMORY: "40"}, {GPUS: "2", LIMIT: "main=5001"}),
        ({CORE: "30", MEMORY_MIB: "5000"}, {LIMIT: "4000"}, {CORE: "30", MEMORY: "20"}, {LIMIT: "4000"}),
        (
            {CORE: "30", MEMORY_MIB: "5000"},
            {LIMIT: "other=9"},
            {CORE: "30", MEMORY: "20"},
            {LIMIT: "other=9,main=5000"},
        ),
        ({CORE: "30", MEMORY_MIB: "0"}, {}, {CORE: "30", MEMORY: "48"}, {}),
    ],
)
def test_mib_are_rounded_up_to_blocks_and_are_the_limit(
    limits: dict[str, str], given: dict[str, str], expected: dict[str, str], annotations: dict[str, str]
) -> None:
    changed = mutated(gpu_pod(limits, dict(given)))
    assert asked(changed) == expected
    assert changed["metadata"]["annotations"] == annotations
    assert mutated(changed) == changed, "the webhook may be called again"


def test_all_of_the_largest_card_is_all_of_it() -> None:
    """An A40 has 46,068 MiB, which are 179 blocks and 244 MiB."""
    changed = mutate(gpu_pod({CORE: "50", MEMORY_MIB: "46068"}), SETTINGS, A40S)
    assert asked(changed.pod) == {CORE: "50", MEMORY: "179"}
    assert (changed.pod["metadata"].get("annotations"), validate(changed.pod, SETTINGS, A40S)) == (None, ())


def test_each_container_has_its_own_limit() -> None:
    one, two = container("one", {CORE: "10", MEMORY_MIB: "700"}), container("two", {CORE: "10", MEMORY: "3"})
    changed = mutated(pod(one, two, initContainers=[container("first", {CORE: "10", MEMORY_MIB: "100"})]))
    assert changed["metadata"]["annotations"] == {LIMIT: "first=100,one=700"}
    assert validate(changed, SETTINGS, A100S) == ()


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        ({"limits": {MEMORY_MIB: "5000", MEMORY: "20"}}, f"asks for {MEMORY} and for {MEMORY_MIB}; use one of the two"),
        ({"limits": {MEMORY_MIB: "5000"}, "requests": {MEMORY_MIB: "4000"}}, "differs between requests and limits"),
        ({"limits": {MEMORY_MIB: "-1"}}, "-1 is not possible; write MiB, 4096 for 4 GiB"),
        ({"limits": {MEMORY_MIB: "5Gi"}}, "5368709120 is not possible; write MiB, 4096 for 4 GiB"),
        ({"limits": {MEMORY_MIB: "much"}}, f"{MEMORY_MIB}: "),
    ],
)
@pytest.mark.parametrize("settings", [SETTINGS, HAMI])
def test_what_cannot_be_is_refused_with_what_to_write(resources: Any, sentence: str, settings: Any) -> None:
    with pytest.raises(VcudaError) as refused:
        mutate(pod({"name": "main", "image": "busybox", "resources": resources}), settings, A100S)
    assert sentence in refused.value.message


@pytest.mark.parametrize(
    ("limits", "limit", "warning"),
    [
        ({CORE: "30", MEMORY: "20"}, "6000", "6000 MiB of each GPU, but it asks for 20 blocks (5 GiB); that is its"),
        ({CORE: "200"}, "6000", "has whole GPUs and all their memory; annotation"),
    ],
)
def test_a_limit_without_effect_is_warned_about(limits: dict[str, str], limit: str, warning: str) -> None:
    (said,) = validate(mutated(gpu_pod(limits, {LIMIT: limit})), SETTINGS, A100S)
    assert warning in said


@pytest.mark.parametrize(
    ("limit", "sentence"), [("5Gi", "vcuda-memory-limit holds '5Gi'; write the MiB"), ("x=1", "names container x")]
)
def test_a_wrong_limit_is_refused(limit: str, sentence: str) -> None:
    with pytest.raises((RequestError, VcudaError), match=sentence):
        validate(mutated(gpu_pod({CORE: "30", MEMORY: "20"}, {LIMIT: limit})), SETTINGS, A100S)
