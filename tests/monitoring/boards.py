"""The dashboards of the chart, as they are committed.

In: daemonset/chart/dashboards. Out: each document, its panels without the rows' titles, and their queries.
"""

import json
from collections.abc import Iterator
from typing import Any

from scripts.dashboards.recorded import CHART

Json = dict[str, Any]
BOARDS: dict[str, Json] = {
    path.stem: json.loads(path.read_text()) for path in sorted((CHART / "dashboards").glob("*.json"))
}


def panels(board: str) -> list[Json]:
    return [panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"]


def queries_of(panel: Json) -> Iterator[str]:
    return (target["expr"] for target in panel["targets"])
