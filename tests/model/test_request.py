"""The contract of a request: what is valid, and the sentence for everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import RequestError
from deviceplugin.model.request import Request, RequestKind, parse_request
from deviceplugin.model.units import ResourceNames
from tests.refusals import refusal

SHARE, WHOLE, LINKED = RequestKind.SHARE, RequestKind.WHOLE, RequestKind.LINKED


def test_what_can_be_asked() -> None:
    expected = {
        (1, 1): (SHARE, 1, 1),
        (99, 400): (SHARE, 1, 400),
        (100, 0): (WHOLE, 1, 0),
        (100, 12): (WHOLE, 1, 12),
        (200, 0): (LINKED, 2, 0),
        (300, 7): (LINKED, 3, 3),
        (6400, 64): (LINKED, 64, 1),
    }
    found = {asked: parse_request(*asked) for asked in expected}
    assert found == {asked: Request(*asked) for asked in expected}
    assert {asked: (each.kind, each.gpus, each.blocks_per_gpu) for asked, each in found.items()} == expected


def test_everything_else_is_refused_with_what_to_write_instead() -> None:
    cases = [
        (-1, 0, ["cannot be negative", "-1"]),
        (0, -5, ["cannot be negative", "-5"]),
        (0, 0, ["without tencent.com/vcuda-core"]),
        (0, 8, ["8 was requested without tencent.com/vcuda-core", "add tencent.com/vcuda-core"]),
        (50, 0, ["50 was requested without tencent.com/vcuda-memory", "1 = 256 MiB"]),
        (101, 8, ["101 is not possible", "100 or 200"]),
        (250, 0, ["250 is not possible", "200 or 300"]),
        # What cannot be meant gets no remedy of the same size: 1Gi cores, a quantity of bytes as blocks.
        (1 << 30, 8, ["1073741824 is more than any node has", "100 is one GPU"]),
        ((1 << 63) - 1, 0, ["9223372036854775807 is more than any node has"]),
        (102500, 0, ["102500 is more than any node has"]),
        (30, 4 << 30, ["4294967296 is more than any GPU has", "blocks of 256 MiB", "4 GiB are 16"]),
        (200, 1 << 40, ["1099511627776 is more than any GPU has"]),
    ]
    said = [(words, refusal(RequestError, parse_request, cores, blocks)) for cores, blocks, words in cases]
    assert [each for each in said if not all(word in each[1] for word in each[0])] == []


def test_no_remedy_is_impossible_itself() -> None:
    """Neither 0 nor more than the GPUs have."""
    cases = [
        ((1, 8, 4), "tencent.com/vcuda-core: 1 cannot be divided evenly over 4 GPUs; write 4"),
        ((40, 3, 4), "tencent.com/vcuda-memory: 3 cannot be divided evenly over 4 GPUs; write 4"),
        ((30, 8, 4), "tencent.com/vcuda-core: 30 cannot be divided evenly over 4 GPUs; write 28 or 32"),
    ]
    found = [refusal(RequestError, parse_request, *asked[:2], parts=asked[2]) for asked, _ in cases]
    assert found == [said for _, said in cases]


def test_a_node_without_share_mode_gives_whole_gpus_only() -> None:
    with pytest.raises(RequestError, match="whole GPUs only"):
        parse_request(50, 8, share_mode=False)
    assert parse_request(100, 0, share_mode=False).kind is WHOLE


def test_the_sentence_uses_the_names_of_the_domain() -> None:
    with pytest.raises(RequestError, match=r"^example\.org/vcuda-core: 150 "):
        parse_request(150, 0, names=ResourceNames("example.org"))


def outcome(cores: int, blocks: int, share_mode: bool) -> Request | RequestError:
    try:
        return parse_request(cores, blocks, share_mode=share_mode)
    except RequestError as error:
        return error


@given(cores=st.integers(-500, 5000), blocks=st.integers(-500, 5000), share_mode=st.booleans())
def test_a_request_is_servable_or_refused_with_one_sentence(cores: int, blocks: int, share_mode: bool) -> None:
    request = outcome(cores, blocks, share_mode)
    if isinstance(request, RequestError):
        assert "\n" not in request.message
        assert "vcuda-" in request.message
        return
    assert request.cores > 0
    assert request.cores < 100 or request.cores == request.gpus * 100
    assert request.kind is not SHARE or (request.blocks > 0 and share_mode)
    assert request.blocks_per_gpu * request.gpus >= request.blocks > (request.blocks_per_gpu - 1) * request.gpus


def test_a_share_goes_over_several_gpus_in_equal_parts() -> None:
    expected = {
        (60, 32, 2): (SHARE, 2, 30, 16),
        (120, 32, 2): (SHARE, 2, 60, 16),
        (64, 64, 64): (SHARE, 64, 1, 1),
        (200, 8, 2): (LINKED, 2, 100, 4),
        (200, 7, 2): (LINKED, 2, 100, 4),  # whole GPUs are asked for no exact part of their memory
        (200, 0, 2): (LINKED, 2, 100, 0),
        (100, 8, 1): (WHOLE, 1, 100, 8),
    }
    found = {asked: parse_request(*asked[:2], parts=asked[2]) for asked in expected}
    assert {
        asked: (each.kind, each.gpus, each.cores_per_gpu, each.blocks_per_gpu) for asked, each in found.items()
    } == expected


def test_parts_that_are_none_are_refused() -> None:
    cases = [
        (61, 32, 2, ["vcuda-core: 61", "evenly over 2 GPUs", "60 or 62"]),
        (60, 31, 2, ["vcuda-memory: 31", "evenly over 2 GPUs", "30 or 32"]),
        (300, 32, 2, ["300 over 2 GPUs", "at most 200"]),
        (60, 0, 2, ["without tencent.com/vcuda-memory"]),
        (150, 0, 2, ["150 was requested without tencent.com/vcuda-memory"]),
    ]
    said = [
        (words, refusal(RequestError, parse_request, cores, blocks, parts=parts))
        for cores, blocks, parts, words in cases
    ]
    assert [each for each in said if not all(word in each[1] for word in each[0])] == []


@given(st.integers(1, 6400), st.integers(0, 4000), st.integers(1, 64))
def test_the_parts_of_what_is_accepted_make_the_whole(cores: int, blocks: int, parts: int) -> None:
    try:
        request = parse_request(cores, blocks, parts=parts)
    except RequestError:
        return
    assert request.cores_per_gpu * request.gpus == cores
    assert request.blocks_per_gpu * request.gpus >= blocks
    if request.kind is SHARE:
        assert request.blocks_per_gpu * request.gpus == blocks
        assert request.cores_per_gpu < 100
