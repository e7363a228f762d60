"""What a real Prometheus makes of the real agent and scheduler: metrics, rules and the dashboards' queries."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.prometheus import promtool
from scripts.manifests import CHART
from tests.monitoring.chart_files import BOARDS, panels, queries_of
from tests.monitoring.scene import PLACED, REFUSED, WAITING, Facts, gather

_BY_POD = 'sum by (namespace, pod) (vcuda_container_memory_limit_bytes{job="vcuda-agent"})'
_AGENTS_OWN = "sum by (pod) (vcuda_kubelet_registered)"
_BY_NODE = "node:vcuda_gpus:count"
_WAITING = "sum by (reason) (vcuda_scheduler_pending_pods) > 0"
_REFUSED = 'sum by (reason) (vcuda_allocations_total{outcome="refused"}) > 0'
_OWN_QUERIES = (_BY_POD, _AGENTS_OWN, _BY_NODE, _WAITING, _REFUSED)
MAY_BE_EMPTY = {"Containers over their limit"}
"""Nothing here exceeds its limit; test_rules.py has such series."""


@pytest.fixture(scope="module")
def facts(prometheus_programs: None) -> Iterator[Facts]:
    home = Path(tempfile.mkdtemp(prefix="vc-", dir="/tmp"))
    queries = [query for board in BOARDS for panel in panels(board) for query in queries_of(panel)]
    (home / "c").mkdir()
    try:
        yield asyncio.run(gather(home, [*_OWN_QUERIES, *queries]))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_promtool_finds_nothing_wrong_with_the_metrics(facts: Facts) -> None:
    for text in (facts.agent_text, facts.scheduler_text):
        assert b"\nvcuda_" in text
        assert promtool("check", "metrics", given=text) == (0, ""), text


def test_the_number_of_series_of_a_scheduler_is_as_told(facts: Facts) -> None:
    page = (CHART.parents[1] / "docs" / "how-to" / "monitoring.md").read_text()
    (told,) = map(int, re.findall(r"A scheduler has about (\d+)\.", page))
    count = sum(not line.startswith(b"#") for line in facts.scheduler_text.splitlines())
    assert abs(count - told) <= 20


def test_the_metrics_of_a_container_name_its_pod(facts: Facts) -> None:
    """With the labels of the target they would all be of the agent's pod, as in a scrape that does not honour them."""
    assert {labels["pod"] for labels, _ in facts.results[_BY_POD]} == {PLACED, "half-1", "half-2", "half-3", "half-4"}
    assert {labels["namespace"] for labels, _ in facts.results[_BY_POD]} == {"demo"}
    assert all(labels["pod"].startswith("vcuda-agent-") for labels, _ in facts.colliding)
    assert {labels["pod"] for labels, _ in facts.results[_AGENTS_OWN]} == {"vcuda-agent-node-a", "vcuda-agent-node-b"}


def test_pods_that_wait_and_containers_that_were_refused_are_counted_by_reason(facts: Facts) -> None:
    assert [(labels["reason"], count) for labels, count in facts.results[_WAITING]] == [
        ("insufficient vcuda-core on any one GPU", 1)
    ], f"{WAITING} asks for more cores than any GPU has left"
    assert [(labels["reason"], count) for labels, count in facts.results[_REFUSED]] == [("capacity", 1)], REFUSED


def test_an_unhealthy_gpu_raises_alerts(facts: Facts) -> None:
    found = {alert["labels"]["alertname"]: alert for alert in facts.alerts}
    assert found["VcudaGpuErrors"]["state"] == "firing"
    unhealthy = found["VcudaGpuUnhealthy"]
    assert unhealthy["state"] in ("pending", "firing")
    assert unhealthy["labels"]["uuid"] in facts.uuids
    assert unhealthy["labels"]["uuid"] in unhealthy["annotations"]["summary"]
    assert not [alert for alert in facts.alerts if "error expanding" in str(alert["annotations"])]
    assert not {"VcudaAgentDown", "VcudaSchedulerAbsent", "VcudaSchedulerLeaders"} & found.keys()


def test_recorded_series_are_there(facts: Facts) -> None:
    assert {labels["node"]: count for labels, count in facts.results[_BY_NODE]} == {"node-a": 2, "node-b": 2}


def test_every_panel_shows_something_but_what_may_be_empty(facts: Facts) -> None:
    every = [(board, panel) for board in BOARDS for panel in panels(board)]
    empty = {
        (board, panel["title"]): list(queries_of(panel))
        for board, panel in every
        if not any(facts.results[query] for query in queries_of(panel))
    }
    expected = {(board, panel["title"]) for board, panel in every if panel["title"] in MAY_BE_EMPTY}
    assert empty.keys() == expected, empty
