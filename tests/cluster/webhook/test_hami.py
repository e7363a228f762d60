"""HAMi pods become vcuda pods that request the same."""

from dataclasses import replace
from typing import Any

import pytest

from deviceplugin.cluster.webhook.mutate import mutate
from deviceplugin.cluster.webhook.pod_json import Json
from deviceplugin.cluster.webhook.resources import KnownGpus
from deviceplugin.cluster.webhook.validate import validate
from deviceplugin.config.scheduler import HamiResources, HamiScope, HamiSettings
from deviceplugin.errors import RequestError
from tests.cluster.webhook.makers import (
    A100S,
    CORE,
    GPU,
    GPUCORES,
    GPUMEM,
    HAMI,
    MARKED,
    MEMORY,
    PERCENTAGE,
    SETTINGS,
    asked,
    container,
    gpu_pod,
    mutated,
    pod,
)
from tests.refusals import refusal

GPUS, LIMIT = "tencent.com/vcuda-gpus", "tencent.com/vcuda-core-limit"
EXACT = "tencent.com/vcuda-memory-limit"


def test_a_request_of_hami_says_the_same_in_our_words() -> None:
    cases: list[tuple[dict[str, str], dict[str, str], dict[str, str] | None]] = [
        ({GPU: "2", GPUCORES: "30", GPUMEM: "4096"}, {CORE: "60", MEMORY: "32"}, {GPUS: "main=2"}),
        ({GPU: "1", GPUCORES: "30", GPUMEM: "3000"}, {CORE: "30", MEMORY: "12"}, {EXACT: "main=3000"}),
        ({GPU: "1", GPUMEM: "3000"}, {CORE: "10", MEMORY: "12"}, {EXACT: "main=3000", LIMIT: "100"}),
        ({GPUMEM: "3000"}, {CORE: "10", MEMORY: "12"}, {EXACT: "main=3000", LIMIT: "100"}),
        ({GPU: "2", GPUMEM: "1"}, {CORE: "20", MEMORY: "2"}, {GPUS: "main=2", EXACT: "main=1", LIMIT: "100"}),
        ({GPU: "1", GPUCORES: "30", PERCENTAGE: "50"}, {CORE: "30", MEMORY: "80"}, None),
        ({GPU: "1", GPUCORES: "30"}, {CORE: "30", MEMORY: "160"}, None),
        ({GPU: "1", GPUCORES: "30", PERCENTAGE: "50", GPUMEM: "512"}, {CORE: "30", MEMORY: "2"}, None),
        ({GPU: "1"}, {CORE: "100"}, None),
        ({GPU: "4"}, {CORE: "400"}, None),
        ({GPU: "1", PERCENTAGE: "100"}, {CORE: "100"}, None),
        ({GPU: "2", GPUCORES: "100"}, {CORE: "200"}, None),
        ({GPU: "2", GPUCORES: "100", GPUMEM: "4096"}, {CORE: "200", MEMORY: "32"}, None),
        ({GPU: "0", GPUMEM: "4096"}, {}, None),
        ({GPU: "1", GPUCORES: "0"}, {CORE: "100"}, None),
        ({GPU: "1", GPUMEM: "0", GPUCORES: "0"}, {CORE: "100"}, None),
        ({GPUMEM: "0"}, {CORE: "100"}, None),  # HAMi counts one GPU where any of the others is named
        ({GPU: "1", PERCENTAGE: "0"}, {CORE: "100"}, None),
    ]
    pods = [mutate(gpu_pod(limits), HAMI, A100S) for limits, *_ in cases]
    found = [
        (limits, asked(each.pod), each.pod["metadata"].get("annotations"))
        for (limits, *_), each in zip(cases, pods, strict=True)
    ]
    assert found == cases
    assert [(*each.warnings, *validate(each.pod, HAMI, A100S)) for each in pods] == [()] * len(pods)


def _with(given: Json, **spec: Any) -> Json:
    given["spec"] |= spec
    return given


PLAIN = {GPU: "1"}


def test_a_number_of_gpus_alone_is_of_nvidias_plugin_until_something_of_hamis_is_there() -> None:
    cases = [
        (gpu_pod(PLAIN), False),
        (gpu_pod(PLAIN, {"nvidia.com/anything": "1", "example.com/hami.io": "1"}), False),
        (_with(gpu_pod(PLAIN), schedulerName="volcano"), False),
        (gpu_pod({**PLAIN, GPUMEM: "512"}), True),
        (gpu_pod({**PLAIN, "nvidia.com/priority": "0"}), True),
        (gpu_pod(PLAIN, {"nvidia.com/use-gputype": "A100"}), True),
        (gpu_pod(PLAIN, {"nvidia.com/vgpu-mode": "hami-core"}), True),
        (gpu_pod(PLAIN, {"hami.io/gpu-scheduler-policy": "binpack"}), True),
        (_with(gpu_pod(PLAIN), schedulerName="hami-scheduler"), True),
        (pod(container("a", PLAIN), container("b", {GPU: "1", GPUMEM: "512"})), True),
        (pod(container("a", PLAIN), initContainers=[container("b", {GPUCORES: "10"})]), True),
    ]
    for given, is_ours in cases:
        changed = mutated(given, MARKED)
        if is_ours:
            assert GPU not in asked(changed), given
            assert changed["spec"]["schedulerName"] == "vcuda-scheduler", given
        else:
            assert changed == given
        assert GPU not in asked(mutated(given, HAMI)), given


def test_a_vcuda_pod_with_hamis_scheduler_gets_vcudas_where_hami_is_translated() -> None:
    given = _with(gpu_pod({CORE: "100"}), schedulerName="hami-scheduler")
    assert mutated(given, MARKED)["spec"]["schedulerName"] == "vcuda-scheduler"
    assert mutated(given, SETTINGS)["spec"]["schedulerName"] == "hami-scheduler"


def test_hamis_resources_count_in_limits_and_in_requests() -> None:
    wanted = {CORE: "60", MEMORY: "24"}
    for kind, other in (("limits", "requests"), ("requests", "limits")):
        given = pod({"name": "main", "resources": {kind: {GPU: 2, GPUCORES: 30, GPUMEM: 3000, "cpu": "1"}}})
        resources = mutated(given, HAMI)["spec"]["containers"][0]["resources"]
        assert resources == {kind: {**wanted, "cpu": "1"}, other: wanted}


def test_init_containers_and_sidecars_are_translated_like_the_others() -> None:
    init = [container("warm", {GPU: "1"}), container("side", {GPUMEM: "256", GPUCORES: "5"}, restartPolicy="Always")]
    changed = mutated(pod(container("main", {GPUMEM: "512", GPUCORES: "20"}), initContainers=init), MARKED)
    assert asked(changed, 0, "initContainers") == {CORE: "100"}
    assert asked(changed, 1, "initContainers") == {CORE: "5", MEMORY: "1"}
    assert asked(changed) == {CORE: "20", MEMORY: "2"}


def test_what_is_not_quite_as_with_hami_or_has_no_effect_is_a_warning() -> None:
    policy, no_setting = "annotation hami.io/gpu-scheduler-policy", "is ignored; vcuda has no such setting"

    def annotated(name: str, value: str) -> Json:
        return gpu_pod({GPUMEM: "1024"}, {name: value})

    cases = [
        (gpu_pod({GPU: "1", GPUCORES: "150"}), [GPUCORES, "150 is read as 100"]),
        (gpu_pod({GPU: "1"}, {"nvidia.com/use-gpuindexes": "0,1"}), ["use-gpuindexes", "tencent.com/vcuda-use-gpus"]),
        (
            pod(container("a", {GPUMEM: "256"}), container("b", {GPUMEM: "256", GPUCORES: "20"})),
            ["container a names no cores and gets 10", "another container"],
        ),
        (annotated("hami.io/gpu-scheduler-policy", "mutex"), [policy, "mutex is ignored; ask for a whole GPU"]),
        (annotated("hami.io/gpu-scheduler-policy", "numa, binpack"), [policy, "numa is ignored; nvidia.com/numa-bind"]),
        (annotated("hami.io/device-scoring-weights", "{}"), ["hami.io/device-scoring-weights", no_setting]),
        (annotated("hami.io/numa-alignment", "true"), ["hami.io/numa-alignment", no_setting]),
    ]
    said = [(words, mutate(given, HAMI, A100S).warnings) for given, words in cases]
    assert [each for each in said if len(each[1]) != 1 or not all(word in each[1][0] for word in each[0])] == []


def test_another_way_of_dividing_gpus_is_refused() -> None:
    for mode in ("mig", "mps", ""):
        with pytest.raises(RequestError, match=r"vgpu-mode is .*write hami-core or leave it out"):
            mutated(gpu_pod({GPU: "1", GPUMEM: "20000"}, {"nvidia.com/vgpu-mode": mode}), HAMI)
    assert asked(mutated(gpu_pod({GPU: "1"}, {"nvidia.com/vgpu-mode": "hami-core,mig"}), HAMI)) == {CORE: "100"}


def test_slices_of_mig_are_nvidias_plugins() -> None:
    given = gpu_pod({"nvidia.com/mig-3g.20gb": "1"})
    assert mutated(given, HAMI) == given


def test_nothing_is_translated_where_the_setting_is_off() -> None:
    given = gpu_pod({GPU: "1", GPUMEM: "4096"})
    assert mutated(given, SETTINGS) == given


def test_the_resources_may_have_other_names() -> None:
    chosen = replace(
        SETTINGS,
        hami=HamiSettings(
            resources=HamiResources(count="example.com/vgpu", memory="example.com/vmem"), scope=HamiScope.ALL
        ),
    )
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


def test_a_written_core_limit_stays_hard() -> None:
    cases: list[tuple[dict[str, str] | None, dict[str, str] | None]] = [
        ({GPU: "1", GPUMEM: "256", GPUCORES: "20"}, None),  # its limit would be lifted too
        ({CORE: "20", MEMORY: "1"}, None),
        (None, {LIMIT: "40"}),
    ]
    for others, annotations in cases:
        given = pod(container("a", {GPU: "1", GPUMEM: "256"}), container("b", others), annotations=annotations)
        assert mutated(given, HAMI)["metadata"].get("annotations") == annotations, others


def test_no_cores_can_mean_the_default_alone() -> None:
    chosen = replace(SETTINGS, hami=HamiSettings(unlimited_cores=False))
    assert "annotations" not in mutated(gpu_pod({GPU: "1", GPUMEM: "256"}), chosen)["metadata"]


def test_what_means_nothing_is_refused_in_one_sentence() -> None:
    cases = [
        ({GPU: "1", GPUCORES: "-1"}, ["container main", GPUCORES, "-1", "at most 100"]),
        ({GPUMEM: "4Gi"}, ["container main", GPUMEM, "4294967296", "write the MiB of one GPU, 4096 for 4 GiB"]),
        ({GPU: "1", PERCENTAGE: "200"}, [PERCENTAGE, "200", "write 1 to 100"]),
        ({GPU: "1", GPUMEM: "-5"}, [GPUMEM, "-5", "MiB"]),
        ({GPU: "65", GPUMEM: "5"}, [GPU, "65", "write 1 to 16"]),
        ({GPU: "1", CORE: "30"}, [GPU, CORE, "use only one of the two"]),
    ]
    said = [(words, refusal(RequestError, mutated, gpu_pod(limits), HAMI)) for limits, words in cases]
    assert [each for each in said if not all(word in each[1] for word in each[0])] == []


def test_a_percentage_of_memory_is_refused_while_no_gpu_is_known() -> None:
    with pytest.raises(RequestError, match=r"no GPU is known yet; write nvidia.com/gpumem"):
        mutated(gpu_pod({GPU: "1", PERCENTAGE: "50"}), HAMI, KnownGpus())


def test_a_policy_that_is_carried_out_has_no_warning() -> None:
    assert not mutate(gpu_pod({GPUMEM: "1024"}, {"hami.io/gpu-scheduler-policy": "spread"}), HAMI, A100S).warnings


def test_a_priority_is_removed_which_is_said() -> None:
    for limits, expected in (({GPU: "1"}, {CORE: "100"}), ({}, {})):
        changed = mutate(gpu_pod({**limits, "nvidia.com/priority": "1"}), HAMI, A100S)
        assert asked(changed.pod) == expected
        (warning,) = changed.warnings
        assert "nvidia.com/priority is ignored; vcuda has no priorities within a GPU" in warning
