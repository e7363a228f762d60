"""The rules: each alert fires when it must and not otherwise, leads to its runbook, and names what exists."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deviceplugin.cluster.extender.explain.verdicts import State
from sandbox.prometheus import promtool
from tests.monitoring.alert_cases import CASES, AlertCase
from tests.monitoring.chart_files import GROUPS, RECORDED, RULES
from tests.monitoring.known import labels_in, unknown_in

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks.md"
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


def judged(folder: Path, tests: Mapping[str, Sequence[dict[str, Any]]]) -> tuple[int, str]:
    """What promtool says of the tests of each alert, with this alert's rule alone: all rules take ten times as long."""
    files = []
    for alert, its in tests.items():
        rules, file = folder / f"{alert}.rules.yaml", folder / f"{alert}.yaml"
        rules.write_text(json.dumps({"groups": [{"name": "alone", "rules": [ALERTS[alert]]}]}))
        file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": its}))
        files.append(file)
    return promtool("test", "rules", *files)


def test_promtool_finds_nothing_wrong(prometheus_programs: None) -> None:
    status, said = promtool("check", "rules", "--lint-fatal", RULES)
    assert (status, "SUCCESS" in said) == (0, True), said


def test_every_alert_has_a_case_and_every_case_an_alert() -> None:
    assert [case.alert for case in CASES] == list(ALERTS)


def test_each_alert_fires_when_it_must_and_not_otherwise(prometheus_programs: None, tmp_path: Path) -> None:
    both = {case.alert: (fired(case, case.fires, count=1), fired(case, case.quiet, count=0)) for case in CASES}
    status, said = judged(tmp_path, both)
    assert status == 0, said


def test_a_case_that_is_wrong_is_found(prometheus_programs: None, tmp_path: Path) -> None:
    """So that the test above means something."""
    case = CASES[0]
    assert judged(tmp_path, {case.alert: [fired(case, case.fires, count=0)]})[0] != 0
    assert judged(tmp_path, {case.alert: [fired(case, case.quiet, count=1)]})[0] != 0


def test_a_whole_gpu_that_idles_is_told_of_by_the_drivers_utilization(
    prometheus_programs: None, tmp_path: Path
) -> None:
    """Nothing counts the GPU seconds of a container that runs on the unmodified driver."""
    (case,) = (each for each in CASES if each.alert == "VcudaShareIdle")
    pod = 'namespace="ml",pod="p"'
    idle = {
        f"vcuda_container_cores_limit_ratio{{{pod}}}": "8x500",
        f"vcuda_container_cores_used_ratio{{{pod}}}": "0x500",
    }
    status, said = judged(tmp_path, {case.alert: [fired(case, idle, count=1)]})
    assert status == 0, said


SAID: dict[str, tuple[str, dict[str, str], dict[str, str], str]] = {
    "node": (
        "VcudaAgentNotRegistered",
        {'vcuda_kubelet_registered{node="n1",instance="i"}': "0x60"},
        {"node": "n1", "instance": "i"},
        "Kubelet on n1 does not know the vcuda agent",
    ),
    "instance": (
        "VcudaAgentNotRegistered",
        {'vcuda_kubelet_registered{instance="i"}': "0x60"},
        {"instance": "i"},
        "Kubelet on i does not know the vcuda agent",
    ),
    "duration": (
        "VcudaAgentWatchStale",
        {'vcuda_watch_last_event_timestamp_seconds{node="n1"}': "600x60"},
        {"node": "n1"},
        "The vcuda agent on n1 has heard nothing of its pods for 40m 0s",
    ),
    "amount": (
        "VcudaShareIdle",
        {
            'vcuda_container_cores_limit_ratio{namespace="ml",pod="p"}': "0.5x500",
            'vcuda_container_gpu_seconds_total{namespace="ml",pod="p"}': "1x500",
        },
        {"namespace": "ml", "pod": "p"},
        "Pod ml/p leaves the 0.50 GPUs that are allocated to it idle",
    ),
    "value": (
        "VcudaPodsPending",
        {'vcuda_scheduler_pending_pods{reason="insufficient whole GPUs"}': "3x60"},
        {"reason": "insufficient whole GPUs"},
        "3 pods with GPUs are pending: insufficient whole GPUs",
    ),
}


JUDGED = {case.alert: case.at for case in CASES}


def telling(name: str) -> dict[str, Any]:
    """One test of promtool: the labels and annotations of an alert."""
    alert, series, labels, summary = SAID[name]
    rule = ALERTS[alert]
    expected = {
        "exp_labels": {**labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": summary},
    }
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [{"eval_time": JUDGED[alert], "alertname": alert, "exp_alerts": [expected]}],
    }


def test_what_an_alert_says(prometheus_programs: None, tmp_path: Path) -> None:
    alerts = dict.fromkeys(alert for alert, *_ in SAID.values())
    tests = {alert: [telling(name) for name, (its, *_) in SAID.items() if its == alert] for alert in alerts}
    status, said = judged(tmp_path, tests)
    assert status == 0, said


def test_every_alert_says_what_it_is_how_bad_and_where_to_read_on() -> None:
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, name
    page = str(RUNBOOKS.relative_to(ROOT))
    urls = {name: rule["annotations"]["runbook_url"] for name, rule in ALERTS.items()}
    assert urls == {name: f"{page}#{name.lower()}" for name in ALERTS}


def _labels_of(query: str) -> set[str]:
    outermost = re.search(r"\bby \(([^)]*)\)", query)
    return set(outermost[1].split(", ")) if outermost else labels_in(query)


def test_what_an_alert_says_is_of_labels_that_it_has() -> None:
    """Another label would leave a gap in the sentence, and Prometheus would not complain."""
    named = {name: set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) for name, rule in ALERTS.items()}
    assert {name: more for name, rule in ALERTS.items() if (more := named[name] - _labels_of(rule["expr"]))} == {}


def test_every_runbook_is_of_an_alert() -> None:
    headings = [line.removeprefix("## ") for line in RUNBOOKS.read_text().splitlines() if line.startswith("## ")]
    assert headings == list(ALERTS)


def test_every_query_names_metrics_and_labels_that_exist() -> None:
    assert {name: wrong for name, query in QUERIES.items() if (wrong := unknown_in(query))} == {}


def test_the_reasons_that_an_alert_leaves_out_are_reasons() -> None:
    left_out = QUERIES["VcudaPodsPending"].split('reason!~"')[1].split('"')[0].split("|")
    assert set(left_out) < {each.value for each in State}
