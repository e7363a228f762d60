"""Annotations are read as they were written, and anything else is refused with a ParseError."""

import json
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import GpuShare, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import (
    PodAllocation,
    format_allocation,
    format_gpu_indices,
    parse_allocation,
    parse_core_limit,
    parse_gpu_indices,
    parse_predicate_time,
)
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.preferences import parse_flag
from tests.refusals import refusal


def parse_assigned(text: str) -> bool:
    return parse_flag(text, "gpu-assigned")


PARSERS: list[Callable[[str], object]] = [
    parse_predicate_time,
    parse_gpu_indices,
    parse_assigned,
    parse_core_limit,
    parse_allocation,
]

shares = st.builds(GpuShare, st.text(min_size=1).map(GpuUuid), st.integers(0, 100), st.integers(0, 4000))
allocations = st.builds(
    PodAllocation,
    st.text().map(PodUid),
    st.dictionaries(st.text(), st.lists(shares, max_size=8, unique_by=lambda share: share.uuid).map(tuple), max_size=4),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["version", "pod", "gpus", "x"]), inner),
    max_leaves=12,
)


def test_names_are_those_of_gpu_manager_under_the_default_domain() -> None:
    names = AnnotationNames()
    assert names.predicate_time == "tencent.com/predicate-time"
    assert names.gpu_indices(2) == "tencent.com/predicate-gpu-idx-2"
    assert names.predicate_node == "tencent.com/predicate-node"
    assert names.gpu_assigned == "tencent.com/gpu-assigned"
    assert names.core_limit == "tencent.com/vcuda-core-limit"
    assert names.allocation == "tencent.com/vcuda-allocation"
    assert names.inventory == "tencent.com/vcuda-inventory"


def test_another_domain_changes_every_name() -> None:
    names = AnnotationNames("gpu.example")
    values = [value for name, value in vars(names).items() if name != "domain"]
    found = [each for value in values for each in ((value,) if isinstance(value, str) else value)]
    assert len(set(found)) > 25
    assert all(name.startswith("gpu.example/") for name in [*found, names.gpu_indices(0)])


def test_what_users_write_is_never_taken_for_what_a_machine_wrote() -> None:
    names = AnnotationNames()
    by_users = (*names.preferences, names.gpus, names.core_limit, names.memory_limit)
    assert not any(map(names.is_machine_written, by_users))
    assert all(map(names.is_machine_written, (*names.machine_written, names.gpu_indices(0), names.gpu_indices(17))))
    assert not names.is_machine_written("other.example/predicate-time")


def test_a_predicate_time_is_nanoseconds_whatever_unit_its_writer_used() -> None:
    expected = {
        "1700000000123456789": 1_700_000_000_123_456_789,
        " 1700000000123456789\n": 1_700_000_000_123_456_789,
        "1700000000": 1_700_000_000_000_000_000,
        "1700000000123": 1_700_000_000_123_000_000,
        "1700000000123456": 1_700_000_000_123_456_000,
        "9223372036854775807": 9_223_372_036_854_775_807,
        "0": 0,
    }
    assert {text: parse_predicate_time(text) for text in expected} == expected


def test_small_annotations_that_say_something_else_are_refused_by_their_name() -> None:
    wrong: list[tuple[Callable[[str], object], str, list[str]]] = [
        (
            parse_predicate_time,
            "predicate-time",
            ["", "-1", "1.5", "9223372036854775808", "1e9", "now", "１２", "1 2", "9" * 5000],
        ),
        (parse_gpu_indices, "predicate-gpu-idx", ["", ",", "0,", "0,0", "-1", "4096", "0;1", "GPU-1"]),
        (parse_core_limit, "vcuda-core-limit", ["0", "-5", "50%", "", "half", "9" * 30]),
        (parse_assigned, "gpu-assigned", ["yes", "", "1", "truetrue"]),
    ]
    said = [(name, text, refusal(ParseError, parse, text)) for parse, name, texts in wrong for text in texts]
    assert [each for each in said if each[0] not in each[2]] == []


def test_gpu_indices_keep_their_order() -> None:
    assert [parse_gpu_indices(text) for text in ("0", "0,1,2", "7, 3")] == [(0,), (0, 1, 2), (7, 3)]


def test_a_core_limit_above_100_percent_is_100_as_in_gpu_manager() -> None:
    assert {parse_core_limit(text) for text in ("101", "150", "9223372036854775807")} == {100}


@given(st.integers(10**17, (1 << 63) - 1), st.lists(st.integers(0, 4095), min_size=1, unique=True), st.integers(1, 100))
def test_small_annotations_are_read_as_they_were_written(time: int, minors: list[int], percent: int) -> None:
    assert parse_predicate_time(str(time)) == time
    assert parse_gpu_indices(format_gpu_indices(minors)) == tuple(minors)
    assert parse_core_limit(str(percent)) == percent
    assert parse_assigned("true") is True
    assert parse_assigned("false") is False


def test_an_allocation_has_the_documented_form() -> None:
    share = GpuShare(GpuUuid("GPU-1"), 30, 16)
    text = format_allocation(PodAllocation(PodUid("u-1"), {"main": (share,), "init": ()}))
    assert json.loads(text) == {
        "version": 1,
        "pod": "u-1",
        "containers": {"init": {"gpus": []}, "main": {"gpus": [{"uuid": "GPU-1", "cores": 30, "blocks": 16}]}},
    }


@given(allocations)
def test_an_allocation_is_read_as_it_was_written(allocation: PodAllocation) -> None:
    assert parse_allocation(format_allocation(allocation)) == allocation


def test_an_allocation_that_cannot_be_true_is_refused() -> None:
    share = {"uuid": "g", "cores": 1, "blocks": 1}
    documents: dict[str, object] = {
        "version 2": {"version": 2, "pod": "u", "containers": {}},
        "pod": {"version": 1, "containers": {}},
        "101": {"version": 1, "pod": "u", "containers": {"a": {"gpus": [share | {"cores": 101}]}}},
        "-1": {"version": 1, "pod": "u", "containers": {"a": {"gpus": [share | {"blocks": -1}]}}},
        "twice": {"version": 1, "pod": "u", "containers": {"a": {"gpus": [share] * 2}}},
        "cannot be read": [],
    }
    said = {why: refusal(ParseError, parse_allocation, json.dumps(each)) for why, each in documents.items()}
    assert [each for each in said.items() if each[0] not in each[1]] == []


def test_hostile_text_is_a_parse_error_and_no_other() -> None:
    texts = ("\ud800", '{"version":1,"pod":"\ud800"', "[" * 100_000, '{"x":' * 50_000, "1" * 300_000)
    said = {(text[:9], parse.__name__): refusal(ParseError, parse, text) for text in texts for parse in PARSERS}
    assert len(said) == len(texts) * len(PARSERS)
    assert [each for each in said.items() if not each[1] or len(each[1]) >= 300 or not each[1].isascii()] == []


@given(st.text() | json_values.map(json.dumps) | st.text(alphabet='{}[]":,0123456789versionpdcatgu-'))
def test_any_text_is_read_or_refused_with_a_parse_error(text: str) -> None:
    for parse in PARSERS:
        assert "\n" not in refusal(ParseError, parse, text)
