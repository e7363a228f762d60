"""A reader who follows one Allocate, filter, bind or explain opens few files and passes few calls."""

import pytest

from benchmarks.call_path import TRACES

MOST = {"allocate": (27, 300), "filter": (22, 205), "bind": (20, 150), "explain": (21, 321)}
"""Files and calls of each: what docs/measurements.md says that they have, or their goals where these are met."""
THROUGH = {
    "allocate": {"kubelet/plugin.py:ResourcePlugin.Allocate", "ledger/ledger.py:Ledger.grant"},
    "filter": {"placement/nodes.py:NodeScorer.choose"},
    "bind": {"cluster/extender/bind.py:Bind._write"},
    "explain": {"cluster/extender/explain/evaluate.py:Evaluator.nearest"},
}


@pytest.mark.parametrize("call", TRACES)
def test_the_simplest_call_enters_few_files(call: str) -> None:
    found, (files, calls) = TRACES[call](), MOST[call]
    assert found.functions.keys() >= THROUGH[call]
    assert len(found.files) <= files, sorted(found.files)
    assert found.calls <= calls, found.functions.most_common(20)
