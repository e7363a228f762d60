"""Pods as HAMi's users write them become pods in our words that ask for the same."""

from dataclasses import replace

import pytest

from deviceplugin.cluster.webhook.settings import HamiSettings, KnownGpus
from deviceplugin.cluster.webhook.validate import validate
from deviceplugin.errors import RequestError
from tests.cluster.webhook.makers import (
    A100S,
    CORE,
    GPU,
    GPUCORES,
    GPUMEM,
    HAMI,
    MEMORY,
    PERCENTAGE,
    SETTINGS,
    asked,
    container,
    gpu_pod,
    mutated,
    pod,
)

GPUS, LIMIT = "tencent.com/vcuda-gpus", "tencent.com/vcuda-core-limit"


@pytest.mark.parametrize(
    ("limits", "expected", "annotations"),
    [
        ({GPU: "2", GPUCORES: "30", GPUMEM: "4096"}, {CORE: "60", MEMORY: "32"}, {GPUS: "main=2"}),
        ({GPU: "1", GPUCORES: "30", GPUMEM: "3000"}, {CORE: "30", MEMORY: "12"}, None),
        ({GPU: "1", GPUMEM: "3000"}, {CORE: "10", MEMORY: "12"}, {LIMIT: "100"}),
        ({GPUMEM: "3000"}, {CORE: "10", MEMORY: "12"}, {LIMIT: "100"}),
        ({GPU: "2", GPUMEM: "1"}, {CORE: "20", MEMORY: "2"}, {GPUS: "main=2", LIMIT: "100"}),
        ({GPU: "1", GPUCORES: "30", PERCENTAGE: "50"}, {CORE: "30", MEMORY: "80"}, None),
        ({GPU: "1", GPUCORES: "30"}, {CORE: "30", MEMORY: "160"}, None),
        ({GPU: "1", GPUCORES: "30", PERCENTAGE: "50", GPUMEM: "512"}, {CORE: "30", MEMORY: "2"}, None),
        ({GPU: "1"}, {CORE: "100"}, None),
        ({GPU: "4"}, {CORE: "400"}, None),
        ({GPU: "1", PERCENTAGE: "100"}, {CORE: "100"}, None),
        ({GPU: "2", GPUCORES: "100"}, {CORE: "200"}, None),
        ({GPU: "2", GPUCORES: "100", GPUMEM: "4096"}, {CORE: "200", MEMORY: "32"}, None),
        ({GPU: "1", "nvidia.com/priority": "1"}, {CORE: "100"}, None),
        ({GPU: "0", GPUMEM: "4096"}, {}, None),
        ({"nvidia.com/priority": "1"}, {}, None),
    ],
)
def test_a_request_of_hami_says_the_same_in_our_words(
    limits: dict[str, str], expected: dict[str, str], annotations: dict[str, str] | None
) -> None:
    changed = mutated(gpu_pod(limits), HAMI)
    assert asked(changed) == expected
    assert changed["metadata"].get("annotations") == annotations
    assert validate(changed, HAMI, A100S) == ()


def test_nothing_is_translated_where_the_setting_is_off() -> None:
    given = gpu_pod({GPU: "1", GPUMEM: "4096"})
    assert mutated(given, SETTINGS) == given


def test_the_resources_may_have_other_names() -> None:
    chosen = replace(SETTINGS, hami=HamiSettings(count="example.com/vgpu", memory="example.com/vmem", every=True))
    given = gpu_pod({"example.com/vgpu": "1", "example.com/vmem": "512", GPU: "1"})
    assert asked(mutated(given, chosen)) == {GPU: "1", CORE: "10", MEMORY: "2"}


def test_every_container_keeps_its_own_number_of_gpus() -> None:
    given = pod(
        container("a", {GPU: "2", GPUCORES: "10", GPUMEM: "256"}),
        container("b", {GPU: "1", GPUCORES: "10", GPUMEM: "256"}),
        container("c", {GPU: "2"}),
        annotations={GPUS: "3,a=4"},
    )
    changed = mutated(given, HAMI)
    assert changed["metadata"]["annotations"][GPUS] == "3,a=4,a=2,b=1,c=1"
    assert [asked(changed, place) for place in range(3)] == [
        {CORE: "20", MEMORY: "2"},
        {CORE: "10", MEMORY: "1"},
        {CORE: "200"},
    ]
    assert validate(changed, HAMI, A100S) == ()


@pytest.mark.parametrize(
    ("others", "annotations"),
    [
        ({GPU: "1", GPUMEM: "256", GPUCORES: "20"}, None),  # its limit would be lifted too
        ({CORE: "20", MEMORY: "1"}, None),
        (None, {LIMIT: "40"}),
    ],
)
def test_cores_stay_a_hard_limit_where_somebody_set_one(
    others: dict[str, str] | None, annotations: dict[str, str] | None
) -> None:
    given = pod(container("a", {GPU: "1", GPUMEM: "256"}), container("b", others), annotations=annotations)
    assert mutated(given, HAMI)["metadata"].get("annotations") == annotations


def test_no_cores_can_mean_the_default_alone() -> None:
    chosen = replace(SETTINGS, hami=HamiSettings(unlimited_cores=False))
    assert "annotations" not in mutated(gpu_pod({GPU: "1", GPUMEM: "256"}), chosen)["metadata"]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({GPU: "1", GPUCORES: "-1"}, ["container main", GPUCORES, "-1", "at most 100"]),
        ({GPUMEM: "4Gi"}, ["container main", GPUMEM, "4294967296", "write the MiB of one GPU, 4096 for 4 GiB"]),
        ({GPU: "1", PERCENTAGE: "200"}, [PERCENTAGE, "200", "write 1 to 100"]),
        ({GPU: "1", GPUMEM: "-5"}, [GPUMEM, "-5", "MiB"]),
        ({GPU: "65", GPUMEM: "5"}, [GPU, "65", "write 1 to 16"]),
        ({GPU: "1", CORE: "30"}, [GPU, CORE, "write one of the two"]),
    ],
)
def test_what_means_nothing_is_refused_in_one_sentence(limits: dict[str, str], words: list[str]) -> None:
    with pytest.raises(RequestError) as refused:
        mutated(gpu_pod(limits), HAMI)
    assert all(word in refused.value.message for word in words), refused.value.message


def test_a_part_of_memory_that_nobody_can_reckon_is_refused() -> None:
    with pytest.raises(RequestError, match=r"no GPU is known yet; write nvidia.com/gpumem"):
        mutated(gpu_pod({GPU: "1", PERCENTAGE: "50"}), HAMI, KnownGpus())
