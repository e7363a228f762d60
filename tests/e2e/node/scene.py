"""The steps that the scenarios have in common.

In: a cluster and an agent. Out: pods created, bound at once, looked at from every side. Not here: what must be true.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deviceplugin.model.units import DEFAULT_DOMAIN
from sandbox.cluster import pods
from sandbox.cluster.client import Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.kubelet import NODE
from sandbox.cluster.pods import PodState
from sandbox.cluster.waiting import wait_until
from tests.e2e.node.agent import Agent
from tests.e2e.node.expectations import (
    Scene,
    check_every_container_has_its_own,
    check_no_gpu_is_given_out_twice,
    check_the_ledger_agrees,
    read_views,
)
from tests.e2e.node.workload import CORE, MEMORY, WHOLE, GpuPod
from tests.offered import blocks_of_each


@dataclass(frozen=True, slots=True)
class Offer:
    """What the node offers of the two resources."""

    cores: int
    blocks: int


def offered(client: Client, node: str = NODE) -> Offer:
    allocatable = client.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]
    return Offer(int(allocatable.get(CORE, 0)), int(allocatable.get(MEMORY, 0)))


def everything(blocks_of_each: Sequence[int]) -> Offer:
    return Offer(WHOLE * len(blocks_of_each), sum(blocks_of_each))


def wait_offered(client: Client, offer: Offer, *, node: str = NODE) -> None:
    wait_until(
        lambda: offered(client, node) == offer,
        f"{node} offers {offer}",
        evidence=lambda: _said_of(client, node),
    )


def _said_of(client: Client, node: str) -> str:
    """What it offers, which of its GPUs are closed and why, and what was said about it last."""
    found = client.get(f"/api/v1/nodes/{node}")
    ours = {name: text for name, text in found["metadata"]["annotations"].items() if DEFAULT_DOMAIN in name}
    events = client.get(f"/api/v1/events?fieldSelector=involvedObject.kind=Node,involvedObject.name={node}")["items"]
    said = [f"{each.get('lastTimestamp')} {each.get('reason')}: {each.get('message')}" for each in events]
    offers = [
        f"{kind} {found['status'][kind].get(name)} of {name}"
        for kind in ("allocatable", "capacity")
        for name in (CORE, MEMORY)
    ]
    return "\n".join((*offers, str(ours), *sorted(said)[-10:]))


@contextmanager
def scheduler_paused(cluster: Cluster) -> Iterator[None]:
    """Pods created meanwhile are all bound at once, the moment it goes on."""
    with cluster.control_plane.scheduler.process.paused():
        yield


def create_at_once(cluster: Cluster, asked: Iterable[GpuPod]) -> None:
    with scheduler_paused(cluster):
        for pod in asked:
            pods.create(cluster.admin, pod.manifest())


def wait_all_running(cluster: Cluster, asked: Sequence[GpuPod]) -> None:
    pods.wait_running(cluster.admin, [pod.name for pod in asked])


def wait_some_running(cluster: Cluster, count: int) -> dict[str, PodState]:
    def enough() -> dict[str, PodState] | None:
        running = {name: state for name, state in pods.states(cluster.admin).items() if state.is_running}
        return running if len(running) >= count else None

    return wait_until(enough, f"{count} pods run")


def look(cluster: Cluster, agent: Agent, asked: Sequence[GpuPod]) -> Scene:
    states = pods.states(cluster.admin)
    return Scene(
        asked={pod.name: pod for pod in asked},
        states={pod.name: states[pod.name] for pod in asked},
        views=read_views(cluster.admin, asked),
        usage=agent.usage(),
        blocks_of_each=blocks_of_each(agent.gpus.profile),
    )


def check_everything(cluster: Cluster, agent: Agent, asked: Sequence[GpuPod]) -> Scene:
    scene = look(cluster, agent, asked)
    check_every_container_has_its_own(scene)
    check_no_gpu_is_given_out_twice(scene)
    check_the_ledger_agrees(scene)
    return scene


def wait_ledger_empty(agent: Agent) -> None:
    """Empty means nothing held, nothing counted, and no grant's folder left."""

    def empty() -> bool:
        usage = agent.usage()
        counted = any(gpu.cores_allocated or gpu.blocks_allocated for gpu in usage.gpus)
        return not usage.containers and not counted and not agent.grant_folders()

    wait_until(
        empty,
        "the ledger is empty",
        evidence=lambda: f"{agent.usage()}; folders: {agent.grant_folders()}",
    )
