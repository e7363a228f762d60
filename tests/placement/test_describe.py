"""Lists and sentences for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.request import Request
from deviceplugin.model.topology import Level
from deviceplugin.placement.describe import gpus_text, level_text, listed, request_text


@pytest.mark.parametrize(
    ("minors", "text"),
    [
        ([3], "GPU 3"),
        ([1, 0], "GPUs 0 and 1"),
        ([0, 1, 2], "GPUs 0-2"),
        ([0, 1, 3, 4, 5, 9], "GPUs 0, 1, 3-5 and 9"),
        (range(64), "GPUs 0-63"),
        (range(0, 64, 2), "GPUs 0, 2, 4, 6, 8, 10, 12, 14 and 24 more"),
    ],
)
def test_gpus_are_listed_in_runs(minors: list[int], text: str) -> None:
    assert gpus_text(minors) == text


@given(minors=st.sets(st.integers(0, 1023), min_size=1))
def test_a_list_of_gpus_stays_short(minors: set[int]) -> None:
    assert len(gpus_text(minors)) <= 100


@pytest.mark.parametrize(
    ("parts", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_parts_are_joined_as_people_do(parts: list[str], text: str) -> None:
    assert listed(parts) == text


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Request(30, 8), "30 cores and 8 blocks (2 GiB) of one GPU"),
        (Request(30, 1), "30 cores and 1 block (256 MiB) of one GPU"),
        (Request(100, 0), "1 whole GPU"),
        (Request(100, 40), "1 whole GPU with 40 blocks (10 GiB)"),
        (Request(400, 0), "4 whole GPUs"),
        (Request(400, 157), "4 whole GPUs with 40 blocks (10 GiB) each"),
    ],
)
def test_a_request_is_described_in_words(request_: Request, text: str) -> None:
    assert request_text(request_) == text


def test_levels_are_named_as_nvidia_smi_does() -> None:
    names = [level_text(level) for level in (*Level, None)]
    assert names == ["NVLink", "INTERNAL", "PIX", "PXB", "PHB", "NODE", "SYS", "no common level"]
