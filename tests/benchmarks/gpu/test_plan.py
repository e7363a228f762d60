"""The plan of checks is whole, and every entry leads to a function."""

import importlib
import inspect
import re

import pytest

from benchmarks.gpu import plan
from benchmarks.gpu.checks.pointers import hooked
from benchmarks.gpu.outcome import Check

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
    "F": ("context", "events", "symbolic", "utilization"),
}


@pytest.mark.parametrize("topic", WANTED)
def test_each_topic_has_its_checks(topic: str) -> None:
    ids = {check.id for check in plan.checks()}
    assert ids >= {f"{topic}.{name}" for name in WANTED[topic]}


def test_ids_are_unique_and_of_known_topics() -> None:
    ids = [check.id for check in plan.checks()]
    assert len(ids) == len(set(ids))
    assert {check.topic for check in plan.checks()} == set(plan.TOPICS) == set(WANTED)


@pytest.mark.parametrize("check", plan.checks(), ids=lambda check: check.id)
def test_each_check_is_a_function_that_takes_its_arguments(check: Check) -> None:
    module, _, name = check.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    inspect.signature(function).bind("the bench", *check.arguments)
    assert check.title
    assert check.criterion
    assert 0 < check.limit_s < 600  # one call to a lent machine lasts so long


@pytest.mark.parametrize(
    ("only", "first", "count"),
    [
        ("T3", "T3.four", 1),
        ("T4.small,T3", "T3.four", 2),
        ("T5.soft", "T5.soft", 1),
        ("T1.torch", "T1.torch-default", 3),
    ],
)
def test_a_part_of_the_plan_is_chosen_by_topic_or_name(only: str, first: str, count: int) -> None:
    chosen = plan.chosen(only)
    assert (chosen[0].id, len(chosen)) == (first, count)


def test_nothing_named_is_everything() -> None:
    assert plan.chosen("") == plan.checks()


@pytest.mark.parametrize("only", ["T10", "T4.nothing", "small"])
def test_a_name_that_is_none_is_refused(only: str) -> None:
    with pytest.raises(ValueError, match="no check is called"):
        plan.chosen(only)


def test_the_hooked_functions_are_those_of_the_table() -> None:
    symbols = {symbol: (base, version, kind) for symbol, base, version, kind in hooked()}
    assert symbols["cuLaunchKernel_ptsz"] == ("cuLaunchKernel", 7000, "T")
    assert symbols["cuMemAlloc_v2"] == ("cuMemAlloc", 3020, "L")
    assert all(re.fullmatch(r"cu\w+", symbol) for symbol in symbols)
