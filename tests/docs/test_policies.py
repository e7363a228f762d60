"""What must list every policy lists them all, in the order of the code."""

import json
import re
from pathlib import Path

import pytest

from deviceplugin.model.preferences import GpuPolicy, NodePolicy

ROOT = Path(__file__).resolve().parents[2]
Policies = type[NodePolicy] | type[GpuPolicy]


@pytest.mark.parametrize(("policies", "value"), [(NodePolicy, "nodePolicy"), (GpuPolicy, "gpuPolicy")])
def test_the_chart_takes_every_policy(policies: Policies, value: str) -> None:
    schema = json.loads((ROOT / "daemonset/chart/values.schema.json").read_text())
    taken = schema["properties"]["scheduler"]["properties"][value]["enum"]
    assert taken == [policy.value for policy in policies]


@pytest.mark.parametrize(("policies", "page"), [(NodePolicy, "node-policies.md"), (GpuPolicy, "gpu-policies.md")])
def test_the_page_has_a_row_for_every_policy(policies: Policies, page: str) -> None:
    (table,) = re.findall(
        r"^\| `tencent.com/vcuda-\w+-policy` \|(?:.+\n)+", (ROOT / "docs" / page).read_text(), re.MULTILINE
    )
    described = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert described == [policy.value for policy in policies]


LISTS = "docs/reference/scheduler-flags.md"  # made by scripts/docs


def test_no_prose_lists_the_policies() -> None:
    """A list in a sentence would have to be extended too, and nothing would say so."""
    texts = [
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "daemonset/chart/values.yaml",
        *(ROOT / "deviceplugin").rglob("*.py"),
    ]
    found = [
        str(path.relative_to(ROOT))
        for path in texts
        if re.search(r"binpack`?, `?spread`?,? (and|or) ", path.read_text())
    ]
    assert [path for path in found if path != LISTS] == []
