"""A template's name says all that is in it, and the API server's own reader agrees with what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.claims import ClaimNames, ClaimSize, NamedTemplates
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.request import parse_request
from tests.refusals import refusal

NAMES = ClaimNames("tencent.com")
A100S = GpuFilter(models=("A100",), not_uuids=frozenset({GpuUuid("GPU-1")}))
_words = st.lists(st.text(max_size=8), max_size=3).map(tuple)
_filters = st.builds(
    GpuFilter,
    models=_words,
    not_models=_words,
    uuids=_words.map(lambda each: frozenset(map(GpuUuid, each))),
    not_uuids=_words.map(lambda each: frozenset(map(GpuUuid, each))),
    one_numa=st.booleans(),
)
_sizes = st.builds(ClaimSize, st.integers(1, 64), st.integers(1, 100), st.integers(0, 99999))


def test_the_name_says_the_size() -> None:
    names = {
        (20, 8, 1): "vcuda-1x20c8b",
        (60, 20, 2): "vcuda-2x30c10b",
        (100, 0, 1): "vcuda-1x100c0b",
        (400, 256, 1): "vcuda-4x100c64b",
    }
    sizes = {each: ClaimSize.of(parse_request(*each[:2], parts=each[2])) for each in names}
    assert {each: NamedTemplates(ANY_GPU, NAMES).name(size) for each, size in sizes.items()} == names


@given(_sizes, _filters)
def test_a_name_is_read_back_by_the_same_filter_alone(size: ClaimSize, wanted: GpuFilter) -> None:
    name = NamedTemplates(wanted, NAMES).name(size)
    assert len(name) <= 63
    assert NamedTemplates(wanted, NAMES).size(name) == size
    if wanted != ANY_GPU:
        with pytest.raises(ParseError, match="is not for the GPUs that the pod's annotations accept"):
            NamedTemplates(ANY_GPU, NAMES).size(name)


def test_other_names_are_refused() -> None:
    names = ["", "vcuda-", "vcuda-1x20c", "other-1x20c8b", "vcuda-01x20c8b", "vcuda-1x20c8b-zz"]
    assert [each for each in names if not refusal(ParseError, NamedTemplates(ANY_GPU, NAMES).size, each)] == []


def test_a_share() -> None:
    exactly = {"deviceClassName": "vcuda.tencent.com", "capacity": {"requests": {"cores": "20", "memory": "2048Mi"}}}
    expected = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    assert NamedTemplates(ANY_GPU, NAMES).spec(ClaimSize(1, 20, 8)) == expected


def test_whole_gpus_of_a_least_memory_on_one_numa_node() -> None:
    found = NamedTemplates(GpuFilter(one_numa=True), NAMES).spec(ClaimSize(2, 100, 64))
    device = 'device.capacity["gpu.vcuda.tencent.com"].memory.compareTo(quantity("16384Mi")) >= 0'
    exactly = {"deviceClassName": "vcuda-gpu.tencent.com", "count": 2, "selectors": [{"cel": {"expression": device}}]}
    assert found == {
        "devices": {
            "requests": [{"name": "gpu", "exactly": exactly}],
            "constraints": [{"requests": ["gpu"], "matchAttribute": "gpu.vcuda.tencent.com/numaNode"}],
        }
    }


def test_a_filter_becomes_selectors() -> None:
    devices = NamedTemplates(A100S, NAMES).spec(ClaimSize(1, 20, 8))["devices"]
    assert isinstance(devices, dict)
    attributes = 'device.attributes["gpu.vcuda.tencent.com"]'
    assert [each["cel"]["expression"] for each in devices["requests"][0]["exactly"]["selectors"]] == [
        f'{attributes}.productName.lowerAscii().contains("a100")',
        f'!({attributes}.uuid in ["GPU-1"])',
    ]


def spec_of(size: ClaimSize, wanted: GpuFilter) -> dict[str, object]:
    return NamedTemplates(wanted, NAMES).spec(size)


def uuids(count: int) -> frozenset[GpuUuid]:
    return frozenset(GpuUuid(f"GPU-{at:08x}-0000-0000-0000-000000000000") for at in range(count))


def test_what_no_api_server_takes_is_one_sentence(subtests: pytest.Subtests) -> None:
    long = "A" * 5000
    cases = (
        (
            33,
            ANY_GPU,
            "33 GPUs were requested and a claim has at most 32 devices; request at most 32 for each container",
        ),
        (1, GpuFilter(uuids=uuids(390)), "take 17211 bytes in a claim and Kubernetes takes 10240; name fewer GPUs"),
        (1, GpuFilter(not_uuids=uuids(390)), "take 17214 bytes"),
        (1, GpuFilter(models=(long, long, long)), "name fewer GPUs, or models"),
        (1, GpuFilter(not_models=("\u00e4" * 5200,)), "name fewer GPUs, or models"),
    )
    for gpus, wanted, sentence in cases:
        with subtests.test(sentence):
            assert sentence in (refusal(RequestError, spec_of, ClaimSize(gpus, 100, 0), wanted) or "")
    assert NamedTemplates(GpuFilter(uuids=uuids(230)), NAMES).spec(ClaimSize(32, 100, 0))
