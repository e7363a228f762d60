"""docs/how-to/monitoring.md: Prometheus takes what it shows."""

import json
import re
from pathlib import Path

from sandbox.prometheus import promtool
from tests.fenced import fenced
from tests.monitoring.chart_files import BOARDS
from tests.monitoring.known import unknown_in
from tests.monitoring.test_rules import ALERTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "monitoring.md"
QUERIES = list(fenced(PAGE, "promql"))


def test_prometheus_takes_the_configuration(prometheus_programs: None, tmp_path: Path) -> None:
    (shown,) = fenced(PAGE, "yaml")
    file = tmp_path / "prometheus.yml"
    assert shown.count("kubernetes_sd_configs: [{role: pod}]") == 2, "Debian builds Prometheus without this discovery"
    file.write_text(shown.replace("kubernetes_sd_configs: [{role: pod}]", "static_configs: []"))
    status, said = promtool("check", "config", "--syntax-only", file)
    assert (status, "SUCCESS" in said) == (0, True), said


def test_the_alerts_are_listed_as_they_are() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(\.\./runbooks\.md#(\w+)\) \| (\w+) \| (\w*) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [
        (name, name.lower(), rule["labels"]["severity"], rule.get("for", "")) for name, rule in ALERTS.items()
    ]


def test_the_dashboards_are_listed_as_they_are() -> None:
    titles = re.findall(r"^\| (vcuda / \w+) \|", PAGE.read_text(), re.MULTILINE)
    assert set(titles) == {board["title"] for board in BOARDS.values()}


def test_the_joins_name_metrics_and_labels_that_exist() -> None:
    assert {query: wrong for query in QUERIES if (wrong := unknown_in(query))} == {}


def test_prometheus_reads_the_joins(prometheus_programs: None, tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "page", "rules": rules}]}))
    status, said = promtool("check", "rules", file)
    assert (status, "2 rules found" in said) == (0, True), said
