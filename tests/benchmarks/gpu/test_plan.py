"""The plan of checks is whole, and every entry leads to a function."""

import importlib
import inspect
import re

import pytest

from benchmarks.gpu import plan
from benchmarks.gpu.build import REPOSITORY
from benchmarks.gpu.checks.pointers import hooked

WANTED = {
    "T1": ("malloc", "async", "managed", "vmm", "torch-default", "torch-expandable", "torch-cuda-async"),
    "T2": ("cuda", "nvml", "pynvml", "nvidia-smi", "torch"),
    "T3": ("four",),
    "T4": ("small", "medium", "gemm", "step", "graph", "torch-matmul-sync", "torch-matmul-async", "torch-resnet"),
    "T5": ("50-50-medium-medium", "30-70-medium-medium", "25-75-medium-medium", "soft", "latency"),
    "T6": ("launch", "graph", "malloc", "step", "torch-resnet", "torch-gpt2-graph", "start", "torch-start"),
    "T7": ("fork", "capture", "refused-in-capture", "empty-environment", "visible-devices", "torch-data-loader"),
    "T8": ("host", "own-namespace"),
    "T9": ("identity", "exports"),
    "T10": ("primary-retain", "primary-runtime", "export", "module", "context", "heap", "ipc", "prefetch"),
    "T11": ("copy", "host", "wait", "grids"),
    "T12": ("25", "50", "45-stall"),
    "T13": ("null", "burst"),
    "T14": ("endless", "fill", "duplicate"),
    "F": ("context", "events", "symbolic", "utilization"),
}


def test_each_topic_has_its_checks() -> None:
    wanted = [f"{topic}.{name}" for topic, names in WANTED.items() for name in names]
    assert set(wanted) - {check.id for check in plan.checks()} == set()


def test_ids_are_unique_and_of_known_topics() -> None:
    ids = [check.id for check in plan.checks()]
    assert len(ids) == len(set(ids))
    assert {check.topic for check in plan.checks()} == set(plan.TOPICS) == set(WANTED)


def test_each_check_is_a_function_that_takes_its_arguments() -> None:
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


def test_a_part_ends_within_one_command_on_a_borrowed_machine() -> None:
    parts = {part: plan.chosen(part) for part in plan.PARTS}
    assert {part: {check.part for check in found} for part, found in parts.items()} == {part: {part} for part in parts}
    seconds = {part: sum(check.seconds for check in found) for part, found in parts.items()}
    assert {part: total for part, total in seconds.items() if total > plan.COMMAND_S} == {}
    assert [check.id for found in parts.values() for check in found if check.seconds > check.limit_s] == []


def test_the_order_is_that_of_what_a_gpu_answers_first() -> None:
    """Loading and views, resets of the primary context, caps, holes, mixed steps, ranks, shares, and so on."""
    first = ("T9.identity", "T2.cuda", "F.context", "T10.primary-retain", "T1.malloc", "T3.four", "T10.export")
    later = ("T11.copy", "T12.25", "T4.small", "T5.50-50-medium-medium", "T6.launch", "T13.null", "T7.fork", "T14.fill")
    ids = [check.id for check in plan.checks()]
    assert [name for name in ids if name in {*first, *later}] == [*first, *later]
    assert [check.part for check in plan.checks()] == sorted(check.part for check in plan.checks())


def test_the_readme_has_every_part_with_its_time() -> None:
    readme = (REPOSITORY / "benchmarks/gpu/README.md").read_text()
    for part in plan.PARTS:
        minutes = sum(check.seconds for check in plan.chosen(part)) / 60
        assert re.search(rf"^\| `{part}` \| .* \| {minutes:.0f} \|$", readme, re.MULTILINE), (part, minutes)


def test_nothing_named_is_everything() -> None:
    assert plan.chosen("") == plan.checks()


def test_a_name_that_is_none_is_refused() -> None:
    for only in ("T99", "P99", "T4.nothing", "small"):
        with pytest.raises(ValueError, match="no check is called"):
            plan.chosen(only)


def test_the_hooked_functions_are_those_of_the_table() -> None:
    symbols = {symbol: (base, version, kind) for symbol, base, version, kind in hooked()}
    assert symbols["cuLaunchKernel_ptsz"] == ("cuLaunchKernel", 7000, "T")
    assert symbols["cuMemAlloc_v2"] == ("cuMemAlloc", 3020, "L")
    assert all(re.fullmatch(r"cu\w+", symbol) for symbol in symbols)
