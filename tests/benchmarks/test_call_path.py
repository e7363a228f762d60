"""A reader who follows one Allocate or one filter opens few files: the limits of the house."""

from benchmarks.call_path import trace_allocate, trace_filter

ALLOCATE_FILES = 32
FILTER_FILES = 28


def test_the_simplest_allocate_enters_few_files() -> None:
    found = trace_allocate()
    assert "kubelet/plugin.py:ResourcePlugin.Allocate" in found.functions
    assert "ledger/ledger.py:Ledger.grant" in found.functions
    assert len(found.files) <= ALLOCATE_FILES, sorted(found.files)


def test_the_simplest_filter_enters_few_files() -> None:
    found = trace_filter()
    assert "placement/nodes.py:NodeScorer.choose" in found.functions
    assert len(found.files) <= FILTER_FILES, sorted(found.files)
