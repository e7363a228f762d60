"""A real Prometheus that scrapes the real scheduler and two real agents, with what can be seen in it.

In: a folder. Out: `Facts`, gathered once, for many tests. On two nodes with two emulated GPUs each there are a pod that
the scheduler placed, one that fits nowhere, one that its agent refused, and a GPU that raised a critical error. Targets
have the labels that the Prometheus operator makes of the chart's monitors. Series of dcgm-exporter and
kube-state-metrics are made up here, with the names and labels of theirs.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aiohttp import web

from sandbox.admission import create_pod
from sandbox.program import ProgramFailureError, free_port
from sandbox.prometheus import Json, Prometheus
from scripts.demonstration.cluster_inspect import node_of, phase
from scripts.demonstration.pods import NAMESPACE, share
from scripts.demonstration.setup import SmallCluster, small_cluster
from tests.monitoring.chart_files import RULES

_COLLIDING = 'sum by (namespace, pod) (vcuda_container_memory_limit_bytes{job="colliding"})'
WAIT_S = 120.0
PLACED, WAITING, REFUSED = "placed", "waiting", "refused"
Row = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Facts:
    """`results` of queries by their text; `colliding`: the series of a scrape that does not honour labels."""

    agent_text: bytes
    scheduler_text: bytes
    results: Mapping[str, Sequence[Row]]
    colliding: Sequence[Row]
    alerts: Sequence[Json]
    uuids: frozenset[str] = field(default_factory=frozenset)


def substituted(query: str) -> str:
    """As Grafana does it when everything is chosen."""
    for variable in ("$node", "$namespace", "$pod"):
        query = query.replace(variable, ".+")
    return query.replace("$__rate_interval", "1m")


async def gather(home: Path, queries: Sequence[str]) -> Facts:
    async with small_cluster(home / "c") as cluster, foreign_exporters(cluster) as port:
        await _start(cluster)
        prometheus = Prometheus(home / "prometheus", configuration(cluster, foreign=port))
        try:
            await prometheus.start()
            await prometheus.wait_scraped("vcuda-agent", "vcuda-scheduler", "exporters", deadline_s=WAIT_S)
            async with cluster.kube_scheduler.at_work():
                await _make_history(cluster)
                return await _facts(cluster, prometheus, queries)
        finally:
            await prometheus.destroy()


async def _start(cluster: SmallCluster) -> None:
    await cluster.scheduler.start()
    agents = (node.start_agent("--sample-period=200ms", deadline_s=WAIT_S) for node in cluster.nodes.values())
    await asyncio.gather(cluster.scheduler.wait_ready(deadline_s=WAIT_S), *agents)
    gpus = len(cluster.nodes) * 2
    await cluster.scheduler.wait_figure("gpus", gpus, what="the scheduler knows the GPUs", deadline_s=WAIT_S)


async def _make_history(cluster: SmallCluster) -> None:
    await create_pod(cluster.server, cluster.scheduler, share(PLACED, 20, 8))
    await _until_phase(cluster, PLACED, "Running")
    one = node_of(cluster, PLACED)
    other = next(name for name in cluster.nodes if name != one)
    by_name = (("half-1", 60, one), ("half-2", 60, one), ("half-3", 60, other), ("half-4", 60, other))
    for name, cores, node in (*by_name, (REFUSED, 70, other)):  # past the scheduler, so the agent decides
        cluster.server.store.create("pods", share(name, cores, 8, nodeName=node), namespace=NAMESPACE)
        await _until_phase(cluster, name, "Failed" if name == REFUSED else "Running")
    await create_pod(cluster.server, cluster.scheduler, share(WAITING, 50, 8))  # no GPU has so many cores left
    cluster.nodes[other].gpus.command("xid", 1, 79)


async def _until_phase(cluster: SmallCluster, name: str, wanted: str) -> None:
    await cluster.server.until(lambda: phase(cluster, name) == wanted, seconds=WAIT_S)


async def _facts(cluster: SmallCluster, prometheus: Prometheus, queries: Sequence[str]) -> Facts:
    waited = (
        "vcuda_container_cores_used_ratio",
        "rate(vcuda_container_throttled_seconds_total[1m])",  # of two samples
        "increase(vcuda_container_memory_refusals_total[1h])",
        "vcuda_gpu_healthy == 0",
        "increase(vcuda_gpu_xid_errors_total[1m]) > 0",
        'increase(vcuda_allocations_total{outcome="refused"}[1m]) > 0',
        'vcuda_scheduler_pending_pods{reason="insufficient vcuda-core on any one GPU"} > 0',
        'ALERTS{alertname="VcudaGpuUnhealthy"}',
        "namespace:vcuda_container_cores_used_ratio:sum",
        "rate(vcuda_scheduler_requests_total[1m]) > 0",
    )
    for query in waited:
        await prometheus.until(partial(_has_rows, prometheus, query), what=query, deadline_s=WAIT_S)
    node = next(iter(cluster.nodes.values()))
    _, scheduler_text = await cluster.scheduler.ask("/metrics")
    shown = await prometheus.query('vcuda_gpu_info{job="vcuda-agent"}')
    return Facts(
        agent_text=(await node.agent.must_get("/metrics")).body,
        scheduler_text=scheduler_text.encode(),
        results={query: await prometheus.query(substituted(query)) for query in queries},
        colliding=await prometheus.query(_COLLIDING),
        alerts=await prometheus.alerts(),
        uuids=frozenset(labels["uuid"] for labels, _ in shown),
    )


async def _has_rows(prometheus: Prometheus, query: str) -> bool:
    try:
        return bool(await prometheus.query(query))
    except ProgramFailureError:
        return False


def configuration(cluster: SmallCluster, *, foreign: int) -> Json:
    """The targets as the operator makes them of the chart's PodMonitor and ServiceMonitor."""
    agents = [
        {
            "targets": [f"127.0.0.1:{node.agent.command.port}"],
            "labels": {"namespace": "kube-system", "pod": f"vcuda-agent-{name}", "container": "agent", "node": name},
        }
        for name, node in cluster.nodes.items()
    ]
    scheduler = {"namespace": "kube-system", "pod": "vcuda-scheduler-a", "service": "vcuda-scheduler"}
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": "vcuda-agent", "honor_labels": True, "static_configs": agents},
            {
                "job_name": "colliding",
                "static_configs": agents,
                "metric_relabel_configs": [
                    {"source_labels": ["__name__"], "regex": "vcuda_container_memory_limit_bytes", "action": "keep"}
                ],
            },
            {
                "job_name": "vcuda-scheduler",
                "scheme": "https",
                "tls_config": {"ca_file": str(cluster.ca_file())},
                "static_configs": [{"targets": [cluster.scheduler.url.removeprefix("https://")], "labels": scheduler}],
            },
            {
                "job_name": "exporters",
                "honor_labels": True,
                "static_configs": [{"targets": [f"127.0.0.1:{foreign}"]}],
            },
        ],
    }


@asynccontextmanager
async def foreign_exporters(cluster: SmallCluster) -> AsyncIterator[int]:
    """What dcgm-exporter says of each GPU, and kube-state-metrics of the pod that was placed."""

    async def answer(request: web.BaseRequest) -> web.Response:
        lines = [
            f'kube_pod_owner{{namespace="{NAMESPACE}",pod="{PLACED}",owner_kind="ReplicaSet",owner_name="web"}} 1',
            'scheduler_pending_pods{queue="unschedulable"} 1',
        ]
        for name, node in cluster.nodes.items():
            uuids = [gpu.uuid for gpu in (await node.agent.usage()).gpus]
            for index, uuid in enumerate(uuids):
                labels = f'gpu="{index}",UUID="{uuid}",device="nvidia{index}",modelName="A100",Hostname="{name}"'
                lines += [f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 41", f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 71.5"]
        return web.Response(text="\n".join(lines) + "\n")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()
