"""The examples of the recipes for policies run, and do what the page says."""

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

from deviceplugin.model.request import Request
from deviceplugin.placement import nodes
from deviceplugin.placement.candidates import Selection, survey
from tests.placement.nodes import snapshot

PAGE = Path(__file__).resolve().parents[2] / "docs/extending.md"
_EXAMPLE = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def function(name: str, given: dict[str, Any]) -> Any:
    """The function, defined where the names in `given` are known."""
    texts = (dedent(found[2]) for found in _EXAMPLE.finditer(PAGE.read_text()))
    (text,) = (text for text in texts if f"def {name}(" in text)
    exec(text, given)
    return given[name]


def test_smallest_prefers_the_node_with_the_fewest_gpus_then_with_the_fewest_free_cores() -> None:
    smallest = function("_smallest", dict(vars(nodes)))
    two, eight, used = ((2, 200), (8, 800), (8, 700))
    scores = [smallest(nodes.Totals(gpus, cores, 0, 0)) for gpus, cores in (two, used, eight)]
    assert scores == sorted(scores)


def test_oldest_takes_the_lowest_minor_numbers_that_fit() -> None:
    oldest = function("oldest", {})
    selection: Selection = oldest(survey(Request(200, 0), snapshot(4, used={0: (50, 8)})).candidates)
    assert [view.gpu.minor for view in selection.chosen] == [1, 2]
    assert selection.reason == "GPUs 1 and 2: the first of 3 that fit"
    assert selection.against() == {"GPU-3": "fits, but has a higher minor number than GPUs 1 and 2"}
