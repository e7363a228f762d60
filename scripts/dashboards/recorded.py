"""The recording rules of the chart, for queries of dashboards.

In: daemonset/chart/rules. Out: `recorded`: a query that takes a recorded series, or else what it is recorded of. So a
dashboard is cheap where the rules are installed, works where they are not, and shows the same in both.
"""

from pathlib import Path

import yaml

CHART = Path(__file__).resolve().parents[2] / "daemonset" / "chart"
RULES = CHART / "rules" / "vcuda.yaml"
_GROUPS = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
RECORDED: dict[str, str] = {
    rule["record"]: rule["expr"] for group in _GROUPS for rule in group["rules"] if "record" in rule
}


def recorded(name: str) -> str:
    return f"({name} or {RECORDED[name]})"
