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

NAMES = AnnotationNames()
A100 = Gpu(GpuUuid("GPU-a"), 0, 0, "NVIDIA A100-SXM4-80GB", 80 << 30)
T4 = Gpu(GpuUuid("GPU-t"), 1, 1, "Tesla T4", 16 << 30)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
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
    ],
)
def test_what_annotations_say(annotations: dict[str, str], expected: Preferences) -> None:
    assert parse_preferences(annotations, NAMES) == expected


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (NAMES.node_policy, "best", "binpack or spread or fragmentation"),
        (NAMES.gpu_policy, "", "binpack or spread or link"),
        (NAMES.numa, "1", "true or false"),
    ],
)
def test_an_invalid_annotation_is_rejected_with_the_valid_values(name: str, text: str, words: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_preferences({name: text}, NAMES)
    assert name in caught.value.message
    assert words in caught.value.message


@pytest.mark.parametrize(
    "name", [NAMES.use_models, NAMES.avoid_models, NAMES.use_gpus, NAMES.avoid_gpus, "nvidia.com/use-gputype"]
)
def test_a_list_that_no_pod_needs_is_rejected(name: str) -> None:
    """100 waiting pods with 256 KiB of words each were all the memory of the scheduler."""
    uuids = ",".join(f"GPU-{number:036}" for number in range(390))
    parse_preferences({name: uuids}, NAMES)
    with pytest.raises(ParseError, match=f"annotation {name} has 16385 characters; write at most 16384"):
        parse_preferences({name: uuids.ljust(16385, ",")}, NAMES)


@pytest.mark.parametrize(
    ("filter_", "admitted"),
    [
        (GpuFilter(), [A100, T4]),
        (GpuFilter(models=("a100",)), [A100]),
        (GpuFilter(models=("H100", "tesla")), [T4]),
        (GpuFilter(not_models=("A100",)), [T4]),
        (GpuFilter(models=("NVIDIA",), not_models=("A100",)), []),
        (GpuFilter(uuids=frozenset({GpuUuid("GPU-t")})), [T4]),
        (GpuFilter(not_uuids=frozenset({GpuUuid("GPU-t")})), [A100]),
        (GpuFilter(uuids=frozenset({GpuUuid("GPU-a")}), not_uuids=frozenset({GpuUuid("GPU-a")})), []),
    ],
)
def test_a_filter_admits_models_and_uuids(filter_: GpuFilter, admitted: list[Gpu]) -> None:
    assert [gpu for gpu in (A100, T4) if filter_.admits_uuid(gpu.uuid) and filter_.admits_model(gpu.model)] == admitted


@given(st.dictionaries(st.sampled_from([*sorted(FOREIGN), *NAMES.preferences]), st.text(max_size=30)))
def test_any_text_is_read_or_refused(annotations: dict[str, str]) -> None:
    try:
        parse_preferences(annotations, NAMES)
    except ParseError as error:
        assert any(name in error.message for name in NAMES.preferences)  # noqa: PT017
