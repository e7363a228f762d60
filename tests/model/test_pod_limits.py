"""Limits by annotation: MiB of each GPU, by container, and never more than what was granted."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.pod import NO_LIMITS, PodLimits, parse_memory_limits
from deviceplugin.model.units import BLOCK_BYTES, MIB
from tests.refusals import refusal

NAMES = AnnotationNames()


def test_the_mib_of_each_gpu_for_every_container_or_by_name() -> None:
    expected = {"5000": (5000, 5000), "main=5000": (5000, 0), "5000,side=300": (5000, 300), "1": (1, 1)}
    limits = {text: parse_memory_limits({NAMES.memory_limit: text}, NAMES) for text in expected}
    assert {text: (found.of("main"), found.of("side")) for text, found in limits.items()} == expected
    assert parse_memory_limits({}, NAMES).of("main") == 0


def test_what_is_no_number_of_mib_is_refused_with_what_to_write() -> None:
    wanted = "write the MiB of each GPU, 4096 for 4 GiB, from 1 to 16777216, or container="
    texts = ["", "0", "5Gi", "-1", "main=", "5000;side=1", "16777217", "99999999999"]
    said = [(text, refusal(ParseError, parse_memory_limits, {NAMES.memory_limit: text}, NAMES)) for text in texts]
    assert [each for each in said if wanted not in each[1]] == []


def test_a_limit_of_memory_only_lowers_what_was_granted() -> None:
    assert PodLimits(0, 5000).memory_bytes(20) == 5000 * MIB
    assert PodLimits(0, 6000).memory_bytes(20) == NO_LIMITS.memory_bytes(20) == 20 * BLOCK_BYTES


@given(st.integers(0, 1 << 24), st.integers(0, 1 << 16))
def test_no_limit_is_above_the_grant(mib: int, blocks: int) -> None:
    assert PodLimits(0, mib).memory_bytes(blocks) <= blocks * BLOCK_BYTES
