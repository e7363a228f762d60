"""Lists and sentences for people."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.request import Request
from deviceplugin.model.topology import Level
from deviceplugin.placement.describe import _gpus_text, gpus_text, level_text, listed, request_text


def test_gpus_are_listed_in_runs() -> None:
    expected = {
        (3,): "GPU 3",
        (1, 0): "GPUs 0 and 1",
        (0, 1, 2): "GPUs 0-2",
        (0, 1, 3, 4, 5, 9): "GPUs 0, 1, 3-5 and 9",
        range(64): "GPUs 0-63",
        range(0, 64, 2): "GPUs 0, 2, 4, 6, 8, 10, 12, 14 and 24 more",
    }
    assert {minors: gpus_text(minors) for minors in expected} == expected


@given(minors=st.sets(st.integers(0, 1023), min_size=1))
def test_a_list_of_gpus_stays_short(minors: set[int]) -> None:
    assert len(gpus_text(minors)) <= 100


@given(asked=st.lists(st.lists(st.integers(0, 7), min_size=1)))
def test_kept_lists_are_as_fresh_ones(asked: list[list[int]]) -> None:
    assert [gpus_text(each) for each in asked] == [_gpus_text.__wrapped__(tuple(sorted(set(each)))) for each in asked]


def test_parts_are_joined_as_people_do() -> None:
    assert [listed(list("abc")[:count]) for count in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_a_request_is_described_in_words() -> None:
    expected = {
        Request(30, 8): "30 cores and 2 GiB of one GPU",
        Request(30, 1): "30 cores and 256 MiB of one GPU",
        Request(100, 0): "1 whole GPU",
        Request(100, 40): "1 whole GPU with 10 GiB",
        Request(400, 0): "4 whole GPUs",
        Request(400, 157): "4 whole GPUs with 10 GiB each",
    }
    assert {request: request_text(request) for request in expected} == expected


def test_levels_are_named_as_nvidia_smi_does() -> None:
    names = [level_text(level) for level in (*Level, None)]
    assert names == ["NVLink", "INTERNAL", "PIX", "PXB", "PHB", "NODE", "SYS", "no common level"]
