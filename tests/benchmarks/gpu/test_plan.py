"""The plan of checks is whole, and every entry leads to a function."""

import importlib
import inspect
import re

import pytest

from benchmarks.gpu import plan
from benchmarks.gpu.build import REPOSITORY
from benchmarks.gpu.checks.pointers import hooked


def test_each_check_has_a_name_of_its_own_and_is_a_function_that_takes_its_arguments() -> None:
    ids = [check.id for check in plan.checks()]
    assert len(ids) == len(set(ids))
    for check in plan.checks():
        module, _, name = check.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        inspect.signature(function).bind("the bench", *check.arguments)
        assert check.title, check
        assert check.criterion, check
        assert 0 < check.limit_s < 600, f"{check.id}: one call to a lent machine lasts so long"


def test_a_part_of_the_plan_is_chosen_by_topic_or_name() -> None:
    chosen = {only: plan.chosen(only) for only in ("T3", "T4.small,T3", "T5.soft", "T1.torch")}
    assert {only: (checks[0].id, len(checks)) for only, checks in chosen.items()} == {
        "T3": ("T3.four", 1),
        "T4.small,T3": ("T3.four", 2),
        "T5.soft": ("T5.soft", 1),
        "T1.torch": ("T1.torch-default", 3),
    }
    for only in ("T99", "P99", "T4.nothing", "small"):
        with pytest.raises(ValueError, match="no check is called"):
            plan.chosen(only)


def test_a_part_ends_within_one_command_on_a_borrowed_machine() -> None:
    parts = {part: plan.chosen(part) for part in plan.PARTS}
    assert {part: {check.part for check in found} for part, found in parts.items()} == {part: {part} for part in parts}
    seconds = {part: sum(check.seconds for check in found) for part, found in parts.items()}
    assert {part: total for part, total in seconds.items() if total > plan.COMMAND_S} == {}
    assert [check.id for found in parts.values() for check in found if check.seconds > check.limit_s] == []


def test_the_readme_has_every_part_with_its_time() -> None:
    readme = (REPOSITORY / "benchmarks/gpu/README.md").read_text()
    for part in plan.PARTS:
        minutes = sum(check.seconds for check in plan.chosen(part)) / 60
        assert re.search(rf"^\| `{part}` \| .* \| {minutes:.0f} \|$", readme, re.MULTILINE), (part, minutes)


def test_the_hooked_functions_are_those_of_the_table() -> None:
    symbols = {symbol: (base, version, kind) for symbol, base, version, kind in hooked()}
    assert symbols["cuLaunchKernel_ptsz"] == ("cuLaunchKernel", 7000, "T")
    assert symbols["cuMemAlloc_v2"] == ("cuMemAlloc", 3020, "L")
    assert all(re.fullmatch(r"cu\w+", symbol) for symbol in symbols)
