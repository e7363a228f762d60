"""Bursts of pods while what tells the agent for whom kubelet asks is late, fails for random calls, or lies."""

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.client import JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.pods import PodState
from sandbox.cluster.waiting import wait_until
from tests.e2e.conftest import StartAgent
from tests.e2e.node.scene import check_everything, scheduler_paused, wait_ledger_empty
from tests.e2e.node.unreliable import unreliable_kubelet
from tests.e2e.node.workload import GpuPod, crowd

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

COUNT = int(os.environ.get("VCUDA_BURST_PODS", "60"))
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


@dataclass
class Controller:
    """Makes again what was refused or deleted, as a ReplicaSet would; `again` are the pods that this befell.

    Its object is a ConfigMap: the garbage collector deletes pods whose owner does not exist.
    """

    cluster: Cluster
    asked: dict[str, GpuPod]
    owner: JsonObject
    again: list[PodState | str] = field(default_factory=list)

    def create(self, name: str) -> None:
        pods.create(self.cluster.admin, self.asked[name].manifest(ownerReferences=[self.owner]))

    def all_run(self) -> bool:
        states = pods.states(self.cluster.admin)
        refused = [state for state in states.values() if state.phase == "Failed" and not state.deleting]
        for state in refused:
            assert state.reason == "UnexpectedAdmissionError", state
        pods.delete(self.cluster.admin, [state.name for state in refused])
        missing = sorted(self.asked.keys() - states.keys())
        for name in missing:
            self.create(name)
        self.again += [*refused, *missing]
        return not refused and not missing and all(state.is_running for state in states.values())


def test_a_crowd_whose_exact_sources_fail_at_random_runs_with_its_own_limits(
    empty_cluster: Cluster, start_agent: StartAgent
) -> None:
    """No container without its grant; a pod whose start was given up is made again by its controller."""
    seed = secrets.randbelow(1 << 32)
    folder: Path = empty_cluster.layout.root / f"vcu-{seed:08x}"
    asked = crowd("crowd", COUNT)
    with (
        unreliable_kubelet(empty_cluster, folder, seed) as kubelet,
        controller_of(empty_cluster, asked) as controller,
    ):
        agent = start_agent("--identity-budget=30ms", *kubelet.flags)
        with scheduler_paused(empty_cluster):
            for pod in asked:
                controller.create(pod.name)
        wait_until(
            controller.all_run,
            f"{COUNT} pods: all Running (seed {seed})",
            seconds=900,
            evidence=lambda: "\n".join(map(str, pods.states(empty_cluster.admin).values())),
        )

        scene = check_everything(empty_cluster, agent, asked)
        sources = Counter(each.source for each in scene.usage.containers)
        print(f"seed {seed}: {kubelet.faults} faults, {len(controller.again)} pods made again, {dict(sources)}")
        assert kubelet.faults > COUNT / 2
        pods.delete_all(empty_cluster.admin)
        wait_ledger_empty(agent)


@contextmanager
def controller_of(cluster: Cluster, asked: list[GpuPod]) -> Iterator[Controller]:
    metadata = {"name": f"owner-{secrets.token_hex(4)}"}
    made = cluster.admin.post(CONFIGMAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "controller": True, **metadata, "uid": made["metadata"]["uid"]}
    try:
        yield Controller(cluster, {pod.name: pod for pod in asked}, owner)
    finally:
        pods.delete_all(cluster.admin)
        cluster.admin.delete(f"{CONFIGMAPS}/{metadata['name']}")
