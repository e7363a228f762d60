"""A real Prometheus beside a real kubelet and runtime: whose metrics it has, and an alert that fires."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.program import ProgramFailureError
from sandbox.prometheus import Json, Prometheus
from tests.e2e.conftest import StartAgent
from tests.e2e.node.agent import Agent
from tests.e2e.node.scene import wait_all_running
from tests.e2e.node.workload import GpuContainer, GpuPod
from tests.monitoring.chart_files import RULES
from tests.programs import need_prometheus

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

WATCHED = GpuPod("watched", (GpuContainer("main", 10, 8),))
LIMITS = "sum by (namespace, pod) (vcuda_container_memory_limit_bytes)"
KNOWN = 'vcuda_container_use_known{pod="watched"}'
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What Prometheus had: the pods of containers, whether their use is known, and the alerts by name."""

    limits: list[tuple[dict[str, str], float]]
    known: list[tuple[dict[str, str], float]]
    alerts: Mapping[str, Json]


def configuration(agent: Agent) -> Json:
    """The target's labels as the operator makes them of the chart's PodMonitor."""
    labels = {"namespace": "kube-system", "pod": "vcuda-agent-x7k2p", "container": "agent"}
    job = {
        "job_name": "vcuda-agent",
        "honor_labels": True,
        "static_configs": [{"targets": [urlsplit(agent.url).netloc], "labels": labels}],
    }
    times = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    return {"global": times, "rule_files": [str(RULES)], "scrape_configs": [job]}


async def watch(agent: Agent, home: Path) -> Seen:
    """The GPU fails after it was seen healthy: only then has a counter an increase."""
    prometheus = Prometheus(home, configuration(agent))
    try:
        await prometheus.start()
        await prometheus.wait_scraped("vcuda-agent", deadline_s=WAIT_S)
        await prometheus.until(partial(_has, prometheus, KNOWN), what=KNOWN, deadline_s=WAIT_S)
        limits, known = await prometheus.query(LIMITS), await prometheus.query(KNOWN)
        agent.gpus.command("xid", 0, 79)
        fires = 'ALERTS{alertname="VcudaGpuErrors",alertstate="firing"} and on () ALERTS{alertname="VcudaGpuUnhealthy"}'
        await prometheus.until(partial(_has, prometheus, fires), what="the alerts", deadline_s=WAIT_S)
        return Seen(limits, known, {each["labels"]["alertname"]: each for each in await prometheus.alerts()})
    finally:
        await prometheus.destroy()


async def _has(prometheus: Prometheus, query: str) -> bool:
    try:
        return bool(await prometheus.query(query))
    except ProgramFailureError:
        return False


def test_an_alert_fires_when_a_gpu_fails_and_metrics_name_the_pods_of_containers(
    empty_cluster: Cluster, start_agent: StartAgent, tmp_path: Path
) -> None:
    need_prometheus()
    agent = start_agent(own=True)
    pods.create(empty_cluster.admin, WATCHED.manifest())
    wait_all_running(empty_cluster, [WATCHED])
    seen = asyncio.run(watch(agent, tmp_path))
    ((labels, limit),) = seen.limits
    assert (labels["pod"], limit) == ("watched", 8 << 28)
    assert [value for _, value in seen.known] == [1]
    assert seen.alerts["VcudaGpuErrors"]["state"] == "firing"
    assert seen.alerts["VcudaGpuUnhealthy"]["state"] in ("pending", "firing")
    uuid = seen.alerts["VcudaGpuUnhealthy"]["labels"]["uuid"]
    assert uuid in {gpu.uuid for gpu in agent.usage().gpus if not gpu.healthy}
