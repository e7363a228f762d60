"""Preferences are read from vcuda's and HAMi's annotations; a wrong word in vcuda's is an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.preferences import (
    FOREIGN,
    NO_PREFERENCES,
    GpuFilter,
    GpuPolicy,
    NodePolicy,
    Preferences,
    parse_preferences,
)
from tests.refusals import refusal

NAMES = AnnotationNames()
A100 = Gpu(GpuUuid("GPU-a"), 0, 0, "NVIDIA A100-SXM4-80GB", 80 << 30)
T4 = Gpu(GpuUuid("GPU-t"), 1, 1, "Tesla T4", 16 << 30)


def test_what_annotations_say() -> None:
    cases: list[tuple[dict[str, str], Preferences]] = [
        ({}, NO_PREFERENCES),
        ({"other.example/x": "y"}, NO_PREFERENCES),
        ({NAMES.node_policy: "spread"}, Preferences(node=NodePolicy.SPREAD)),
        ({NAMES.gpu_policy: " Link "}, Preferences(gpu=GpuPolicy.LINK)),
        ({"hami.io/node-scheduler-policy": "binpack"}, Preferences(node=NodePolicy.BINPACK)),
        ({"hami.io/gpu-scheduler-policy": "mutex,spread"}, Preferences(gpu=GpuPolicy.SPREAD)),
        ({"hami.io/gpu-scheduler-policy": "topology-aware"}, Preferences(gpu=GpuPolicy.LINK)),
        ({"hami.io/gpu-scheduler-policy": "mutex"}, NO_PREFERENCES),
        (
            {NAMES.node_policy: "fragmentation", "hami.io/node-scheduler-policy": "binpack"},
            Preferences(node=NodePolicy.FRAGMENTATION),
        ),
        ({"nvidia.com/use-gputype": "A100, H100"}, Preferences(gpus=GpuFilter(models=("A100", "H100")))),
        (
            {NAMES.avoid_gpus: "GPU-a,,GPU-b", NAMES.numa: "true"},
            Preferences(gpus=GpuFilter(not_uuids=frozenset({GpuUuid("GPU-a"), GpuUuid("GPU-b")}), one_numa=True)),
        ),
        ({"nvidia.com/numa-bind": "TRUE"}, Preferences(gpus=GpuFilter(one_numa=True))),
        ({"nvidia.com/numa-bind": "maybe"}, NO_PREFERENCES),
        ({NAMES.numa: "false", "nvidia.com/numa-bind": "true"}, NO_PREFERENCES),
    ]
    assert [(said, parse_preferences(said, NAMES)) for said, _ in cases] == cases


def test_an_invalid_annotation_is_rejected_with_the_valid_values() -> None:
    cases = [
        (NAMES.node_policy, "best", "binpack or spread or fragmentation"),
        (NAMES.gpu_policy, "", "binpack or spread or link"),
        (NAMES.numa, "1", "true or false"),
    ]
    said = [(name, words, refusal(ParseError, parse_preferences, {name: text}, NAMES)) for name, text, words in cases]
    assert [each for each in said if each[0] not in each[2] or each[1] not in each[2]] == []


def test_a_list_that_no_pod_needs_is_rejected() -> None:
    """100 waiting pods with 256 KiB of words each were all the memory of the scheduler."""
    uuids = ",".join(f"GPU-{number:036}" for number in range(390))
    for name in [NAMES.use_models, NAMES.avoid_models, NAMES.use_gpus, NAMES.avoid_gpus, "nvidia.com/use-gputype"]:
        parse_preferences({name: uuids}, NAMES)
        with pytest.raises(ParseError, match=f"annotation {name} has 16385 characters; write at most 16384"):
            parse_preferences({name: uuids.ljust(16385, ",")}, NAMES)


def test_a_filter_admits_models_and_uuids() -> None:
    expected = {
        GpuFilter(): [A100, T4],
        GpuFilter(models=("a100",)): [A100],
        GpuFilter(models=("H100", "tesla")): [T4],
        GpuFilter(not_models=("A100",)): [T4],
        GpuFilter(models=("NVIDIA",), not_models=("A100",)): [],
        GpuFilter(uuids=frozenset({GpuUuid("GPU-t")})): [T4],
        GpuFilter(not_uuids=frozenset({GpuUuid("GPU-t")})): [A100],
        GpuFilter(uuids=frozenset({GpuUuid("GPU-a")}), not_uuids=frozenset({GpuUuid("GPU-a")})): [],
    }
    assert {
        wanted: [gpu for gpu in (A100, T4) if wanted.admits_uuid(gpu.uuid) and wanted.admits_model(gpu.model)]
        for wanted in expected
    } == expected


@given(st.dictionaries(st.sampled_from([*sorted(FOREIGN), *NAMES.preferences]), st.text(max_size=30)))
def test_any_text_is_read_or_refused(annotations: dict[str, str]) -> None:
    try:
        parse_preferences(annotations, NAMES)
    except ParseError as error:
        assert any(name in error.message for name in NAMES.preferences)  # noqa: PT017
