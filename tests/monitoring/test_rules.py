"""The rules: each alert fires when it must and not otherwise, leads to its runbook, and names what exists."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.cluster.extender.explain.pending import State
from sandbox.prometheus import promtool
from scripts.dashboards.recorded import RECORDED, RULES
from tests.monitoring.alert_cases import AT, CASES, AlertCase
from tests.monitoring.known import labels_in, unknown_in

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks.md"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule
}
QUERIES = {name: rule["expr"] for name, rule in ALERTS.items()} | RECORDED


def fired(case: AlertCase, series: dict[str, str], *, count: int) -> dict[str, Any]:
    """One test of promtool: how many alerts of this name fire."""
    expected = [{"labels": "{}", "value": count}] if count else []
    query = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"}})'
    return {
        "name": f"{case.alert} {'fires' if count else 'does not fire'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": case.at, "exp_samples": expected}],
    }


def judged(folder: Path, *tests: dict[str, Any]) -> tuple[int, str]:
    file = folder / "tests.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    return promtool("test", "rules", file)


def test_promtool_finds_nothing_wrong(prometheus_programs: None) -> None:
    status, said = promtool("check", "rules", "--lint-fatal", RULES)
    assert (status, "SUCCESS" in said) == (0, True), said


def test_every_alert_has_a_case_and_every_case_an_alert() -> None:
    assert [case.alert for case in CASES] == list(ALERTS)


def test_each_alert_fires_when_it_must_and_not_otherwise(prometheus_programs: None, tmp_path: Path) -> None:
    tests = [fired(case, case.fires, count=1) for case in CASES]
    tests += [fired(case, case.quiet, count=0) for case in CASES]
    status, said = judged(tmp_path, *tests)
    assert status == 0, said


def test_a_case_that_is_wrong_is_found(prometheus_programs: None, tmp_path: Path) -> None:
    """So that the test above means something."""
    assert judged(tmp_path, fired(CASES[0], CASES[0].fires, count=0))[0] != 0
    assert judged(tmp_path, fired(CASES[0], CASES[0].quiet, count=1))[0] != 0


@pytest.mark.parametrize(
    ("alert", "series", "labels", "summary"),
    [
        (
            "VcudaAgentNotRegistered",
            {'vcuda_kubelet_registered{node="n1",instance="i"}': "0x60"},
            {"node": "n1", "instance": "i"},
            "Kubelet on n1 does not know the vcuda agent",
        ),
        (
            "VcudaAgentNotRegistered",
            {'vcuda_kubelet_registered{instance="i"}': "0x60"},
            {"instance": "i"},
            "Kubelet on i does not know the vcuda agent",
        ),
        (
            "VcudaAgentWatchStale",
            {'vcuda_watch_last_event_timestamp_seconds{node="n1"}': "600x60"},
            {"node": "n1"},
            "The vcuda agent on n1 has heard nothing of its pods for 40m 0s",
        ),
        (
            "VcudaPodsWaiting",
            {'vcuda_scheduler_pending_pods{reason="insufficient whole GPUs"}': "3x60"},
            {"reason": "insufficient whole GPUs"},
            "3 pods with GPUs wait: insufficient whole GPUs",
        ),
    ],
    ids=["node", "instance", "duration", "value"],
)
def test_what_an_alert_says(
    prometheus_programs: None,
    tmp_path: Path,
    alert: str,
    series: dict[str, str],
    labels: dict[str, str],
    summary: str,
) -> None:
    rule = ALERTS[alert]
    expected = {
        "exp_labels": {**labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": summary},
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": AT, "alertname": alert, "exp_alerts": [expected]}],
    }
    status, said = judged(tmp_path, test)
    assert status == 0, said


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_what_it_is_how_bad_and_where_to_read_on(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert (ROOT / page, anchor) == (RUNBOOKS, name.lower())
    assert f"\n## {name}\n" in RUNBOOKS.read_text()


@pytest.mark.parametrize("name", ALERTS)
def test_what_an_alert_says_is_of_labels_that_it_has(name: str) -> None:
    """Another label would leave a gap in the sentence, and Prometheus would not complain."""
    query = ALERTS[name]["expr"]
    outermost = re.search(r"\bby \(([^)]*)\)", query)
    has = set(outermost[1].split(", ")) if outermost else labels_in(query)
    assert set(re.findall(r"\$labels\.(\w+)", str(ALERTS[name]["annotations"]))) <= has


def test_every_runbook_is_of_an_alert() -> None:
    headings = [line.removeprefix("## ") for line in RUNBOOKS.read_text().splitlines() if line.startswith("## ")]
    assert headings == list(ALERTS)


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_names_metrics_and_labels_that_exist(name: str) -> None:
    assert unknown_in(QUERIES[name]) == []


def test_the_reasons_that_an_alert_leaves_out_are_reasons() -> None:
    left_out = QUERIES["VcudaPodsWaiting"].split('reason!~"')[1].split('"')[0].split("|")
    assert set(left_out) < {each.value for each in State}
