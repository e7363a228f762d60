"""An alert of the release's own rules: a GPU falls off the bus, it fires, and it ends when the GPU was reset.

Prometheus scrapes the release's pods as its PodMonitor and ServiceMonitors say. The rules are those of its
PrometheusRule, but that they wait for one second where they would wait for minutes: tests/monitoring has promtool check
how long. The GPU is reset by the commands of docs/gpu-health.md.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.emulated_gpus import REPOSITORY, EmulatedGpus
from sandbox.program import ProgramFailureError
from sandbox.prometheus import Json, Prometheus
from tests.e2e.installed.kubectl import Kubectl
from tests.e2e.installed.monitors import account, configuration, rules
from tests.e2e.installed.release import Release
from tests.fenced import fenced
from tests.programs import need_prometheus

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(600)]

LOST = 3
UNHEALTHY = 'ALERTS{alertname="VcudaGpuUnhealthy",alertstate="firing"}'
FIRE = f'{UNHEALTHY} and on () ALERTS{{alertname="VcudaGpuErrors",alertstate="firing"}}'
WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Watched:
    """The release, its GPUs, and a Prometheus that watches it."""

    release: Release
    gpus: EmulatedGpus
    kubectl: Kubectl
    prometheus: Prometheus

    async def until(self, query: str, *, is_empty: bool = False) -> None:
        async def holds() -> bool:
            try:
                return bool(await self.prometheus.query(query)) != is_empty
            except ProgramFailureError:
                return False

        what = f"{query} is {'empty' if is_empty else 'there'}"
        await self.prometheus.until(holds, what=what, deadline_s=WAIT_S)

    async def alerts(self) -> Mapping[str, Json]:
        return {each["labels"]["alertname"]: each for each in await self.prometheus.alerts()}

    async def typed(self, line: str) -> None:
        node = self.release.cluster.kubelet.node
        await asyncio.to_thread(self.kubectl.shell, line.replace("NODE", node))


async def watch(watched: Watched) -> Mapping[str, Json]:
    """What fires while the GPU is lost."""
    await watched.prometheus.start()
    try:
        await watched.prometheus.wait_scraped("vcuda-agent", deadline_s=WAIT_S)
        assert not (await watched.alerts()).keys() & {"VcudaGpuUnhealthy", "VcudaGpuErrors"}
        watched.gpus.lose(LOST)
        await watched.until(FIRE)
        fired = await watched.alerts()
        await reset(watched, fired["VcudaGpuUnhealthy"]["labels"]["uuid"])
        await watched.until(f"vcuda_gpu_healthy == 0 or vcuda_nvml_open == 0 or {UNHEALTHY}", is_empty=True)
        return fired
    finally:
        await watched.prometheus.destroy()


async def reset(watched: Watched, uuid: str) -> None:
    """By the first block of the page; the emulated driver's own command stands for nvidia-smi's."""
    block = fenced(REPOSITORY / "docs/gpu-health.md")[0]
    cordon, close, open_again = [line for line in block.splitlines() if line.startswith("kubectl annotate")]
    await watched.typed(f"GPU={uuid}; {cordon}")
    await watched.typed(close)
    await watched.until("vcuda_nvml_open == 0")
    watched.gpus.command("reset", uuid)  # refused while the agent has NVML open
    await watched.typed(open_again)


def test_an_alert_fires_when_a_gpu_is_lost_and_ends_when_it_was_reset(
    release: Release, gpus: EmulatedGpus, kubectl: Kubectl, tmp_path: Path
) -> None:
    need_prometheus()
    with account(release, tmp_path) as shown:
        settings = configuration(release, shown, rules(release, tmp_path, pending="1s"))
        watched = Watched(release, gpus, kubectl, Prometheus(tmp_path / "prometheus", settings))
        fired = asyncio.run(watch(watched))
    labels, annotations = fired["VcudaGpuUnhealthy"]["labels"], fired["VcudaGpuUnhealthy"]["annotations"]
    node = release.cluster.kubelet.node
    assert (labels["node"], labels["namespace"]) == (node, "kube-system")
    assert fired["VcudaGpuErrors"]["labels"]["uuid"] == labels["uuid"]
    assert annotations["summary"] == f"GPU {labels['uuid']} of {node} is unhealthy"
    assert annotations["runbook_url"].endswith("runbooks.md#vcudagpuunhealthy")
    assert all(gpu.healthy for gpu in release.usage().gpus)
