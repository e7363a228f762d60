"""docs/how-to/monitoring.md: Prometheus takes what it shows."""

import json
from pathlib import Path

import pytest

from sandbox.prometheus import promtool
from tests.fenced import fenced
from tests.monitoring.known import unknown_in

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "monitoring.md"
QUERIES = list(fenced(PAGE, "promql"))


def test_prometheus_takes_the_configuration(prometheus_programs: None, tmp_path: Path) -> None:
    (shown,) = fenced(PAGE, "yaml")
    file = tmp_path / "prometheus.yml"
    assert shown.count("kubernetes_sd_configs: [{role: pod}]") == 2, "Debian builds Prometheus without this discovery"
    file.write_text(shown.replace("kubernetes_sd_configs: [{role: pod}]", "static_configs: []"))
    status, said = promtool("check", "config", "--syntax-only", file)
    assert (status, "SUCCESS" in said) == (0, True), said


@pytest.mark.parametrize("query", QUERIES)
def test_the_joins_name_metrics_and_labels_that_exist(query: str) -> None:
    assert unknown_in(query) == []


def test_prometheus_reads_the_joins(prometheus_programs: None, tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "page", "rules": rules}]}))
    status, said = promtool("check", "rules", file)
    assert (status, "2 rules found" in said) == (0, True), said
