"""The dashboards and rules of the chart, as they are committed.

In: `dashboards` and `rules` below daemonset/chart. Out: each dashboard, its panels without the rows' titles, their
queries, and the recording rules by their names.
"""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from scripts.manifests import CHART

Json = dict[str, Any]
RULES = CHART / "rules" / "vcuda.yaml"
GROUPS: list[Json] = yaml.safe_load(RULES.read_text())["groups"]
RECORDED: dict[str, str] = {
    rule["record"]: rule["expr"] for group in GROUPS for rule in group["rules"] if "record" in rule
}
BOARDS: dict[str, Json] = {
    path.stem: json.loads(path.read_text()) for path in sorted((CHART / "dashboards").glob("*.json"))
}


def panels(board: str) -> list[Json]:
    return [panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"]


def queries_of(panel: Json) -> Iterator[str]:
    return (target["expr"] for target in panel["targets"])
