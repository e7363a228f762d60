"""What must list every policy lists them all, in the order of the code."""

import json
import re
from pathlib import Path

from deviceplugin.model.preferences import GpuPolicy, NodePolicy

ROOT = Path(__file__).resolve().parents[2]
POLICIES = {"node": [policy.value for policy in NodePolicy], "gpu": [policy.value for policy in GpuPolicy]}
_TABLE = r"^\| `tencent.com/vcuda-{}-policy` \|(?:.+\n)+"


def test_the_chart_takes_every_policy() -> None:
    schema = json.loads((ROOT / "daemonset/chart/values.schema.json").read_text())
    taken = schema["properties"]["scheduler"]["properties"]
    assert {kind: taken[f"{kind}Policy"]["enum"] for kind in POLICIES} == POLICIES


def test_the_page_has_a_row_for_every_policy() -> None:
    page = (ROOT / "docs/policies.md").read_text()
    tables = {kind: re.findall(_TABLE.format(kind), page, re.MULTILINE) for kind in POLICIES}
    assert {kind: len(found) for kind, found in tables.items()} == {"node": 1, "gpu": 1}
    assert {kind: re.findall(r"^\| `(\w+)`", table, re.MULTILINE) for kind, (table,) in tables.items()} == POLICIES


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
