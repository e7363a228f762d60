"""What the scenarios have in common: a node with a running agent, pods that come and go, and a look from every side.

In: a short directory, flags, what shall differ. Out: facts, or an AssertionError that says what was found. Deadlines
are generous, for other jobs may load the machine; waits end as soon as they may.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from deviceplugin.gpu_manager.client_files import ContainerLimits
from deviceplugin.model.units import Resource
from deviceplugin.observe.usage import Usage
from sandbox import consistency
from sandbox.agent import AgentFailureError
from sandbox.apiserver import ApiError
from sandbox.gpunode import Flags, GpuNode, gpu_node
from sandbox.station import Json, pod_json
from tests.gpu_manager.client_reader import read_limits

NAMESPACE = "default"
NODE = "node-1"
PATIENCE_S = 120.0
Grants = dict[tuple[str, str], tuple[str, int, int, tuple[str, ...]]]
"""What must outlive everything: of each container (pod UID, name) its grant, its size and its GPUs."""


@asynccontextmanager
async def node_with_agent(
    home: Path,
    *,
    flags: Flags | None = None,
    started: bool = True,
    **given: Any,
) -> AsyncIterator[GpuNode]:
    """Kubelet's own periods are short; `started=False` leaves the agent to the test."""
    options: dict[str, Any] = {"speed": 20.0, "first_sync_s": 0.05} | given
    async with gpu_node(home, flags=flags, **options) as node:
        if started:
            await node.start_agent(deadline_s=PATIENCE_S)
        yield node


async def start_unsynced(node: GpuNode) -> str:
    """Registered with kubelet, while the API server is away; what `/readyz` says then.

    The agent knows of its streams before kubelet has read from them, and kubelet admits a pod without the resource that
    it does not know yet.
    """
    await node.agent.start()
    said: list[str] = [""]

    async def registered() -> bool:
        try:
            said[0] = (await node.agent.get("/readyz")).text
        except AgentFailureError:
            return False
        return "not registered" not in said[0] and "waiting" not in said[0]

    await node.agent.until(registered, what="the agent is registered", deadline_s=PATIENCE_S)
    await node.kubelet.wait_registered(*map(node.names.of, Resource), deadline_s=PATIENCE_S)
    return said[0]


def share(name: str, cores: int = 20, blocks: int = 8, **given: Any) -> Json:
    return pod_json(name, ("c", cores, blocks), **given)


def with_cpu(pod: Json, cpu: int) -> Json:
    """The pod asks for processors too; kubelet looks at them after our Allocate."""
    pod["spec"]["containers"][0]["resources"] = {**pod["spec"]["containers"][0]["resources"]}
    requests = pod["spec"]["containers"][0]["resources"]["requests"]
    pod["spec"]["containers"][0]["resources"]["requests"] = {**requests, "cpu": str(cpu)}
    return pod


def owned(pod: Json, kind: str = "ReplicaSet") -> Json:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": f"uid-of-{kind}", "controller": True}
    pod["metadata"]["ownerReferences"] = [owner]
    return pod


def create(node: GpuNode, *pods: Json) -> list[str]:
    """As a user and a scheduler do; answers the UIDs."""
    return [str(node.server.store.create("pods", pod)["metadata"]["uid"]) for pod in pods]


async def run(node: GpuNode, *pods: Json) -> list[str]:
    """Created, admitted, running."""
    uids = create(node, *pods)
    for pod, uid in zip(pods, uids, strict=True):
        await settled(node, pod["metadata"]["name"])
        assert phase(node, pod["metadata"]["name"]) == "Running", stored(node, pod)["status"]
        await node.kubelet.wait_running(uid, deadline_s=PATIENCE_S)
    return uids


async def refused(node: GpuNode, pod: Json) -> str:
    """Created and not let in; kubelet's words."""
    create(node, pod)
    await settled(node, pod["metadata"]["name"])
    status = stored(node, pod)["status"]
    assert status["phase"] == "Failed", status
    return str(status["message"])


async def settled(node: GpuNode, name: str) -> None:
    await node.server.until(lambda: phase(node, name) in ("Running", "Failed"), seconds=PATIENCE_S)


def phase(node: GpuNode, name: str) -> str:
    """Empty for a pod that is no more."""
    try:
        return str(node.server.store.get("pods", name, namespace=NAMESPACE)["status"]["phase"])
    except ApiError:
        return ""


def stored(node: GpuNode, pod: Json) -> Json:
    return node.server.store.get("pods", pod["metadata"]["name"], namespace=NAMESPACE)


def annotations(node: GpuNode, pod: Json) -> dict[str, str]:
    found: dict[str, str] = stored(node, pod)["metadata"].get("annotations") or {}
    return found


async def delete(node: GpuNode, *pods: Json, grace: int | None = None) -> None:
    """Until the API server has them no more."""
    names = [pod["metadata"]["name"] for pod in pods]
    for name in names:
        node.server.store.delete("pods", name, namespace=NAMESPACE, grace=grace)
    await node.server.until(lambda: not any(phase(node, name) for name in names), seconds=PATIENCE_S)


async def until_usage(node: GpuNode, holds: Callable[[Usage], bool], *, what: str) -> Usage:
    """The first `/usage` that is as it should be."""
    found: list[Usage] = []

    async def look() -> bool:
        found.append(await node.agent.usage())
        return holds(found[-1])

    await node.agent.until(look, what=what, deadline_s=PATIENCE_S)
    return found[-1]


async def until_held_by(node: GpuNode, uids: Iterable[str]) -> Usage:
    """The ledger holds grants of these pods and of no others."""
    wanted = set(uids)
    return await until_usage(
        node, lambda usage: holders(usage) == wanted, what=f"the ledger holds {wanted or 'nothing'}"
    )


async def until_said(node: GpuNode, message: str, *, times: int = 1) -> list[Json]:
    """Entries of the agent's log."""

    async def look() -> bool:
        return len(node.agent.entries(message)) >= times

    await node.agent.until(look, what=f"the log says {message!r}", deadline_s=PATIENCE_S)
    return node.agent.entries(message)


def holders(usage: Usage) -> set[str]:
    return {entry.uid for entry in usage.containers}


def grants(usage: Usage) -> Grants:
    return {
        (entry.uid, entry.container): (
            entry.grant,
            entry.cores,
            entry.blocks,
            tuple(share.uuid for share in entry.gpus),
        )
        for entry in usage.containers
    }


def minors(node: GpuNode, uid: str, container: str = "c") -> list[int]:
    """The GPUs whose device nodes the running container has."""
    return consistency.minors(node.kubelet.container_view(uid, container))


def limits(node: GpuNode, uid: str, container: str = "c") -> ContainerLimits:
    """As they were when the container started."""
    return read_limits(node.kubelet.container_view(uid, container).files[consistency.LIMITS])


def limits_now(node: GpuNode, uid: str, container: str = "c") -> ContainerLimits:
    """As the running container would read them now."""
    return read_limits(node.kubelet.container_view(uid, container).host_path(consistency.LIMITS).read_bytes())


def grant_directories(node: GpuNode) -> set[str]:
    return {path.name for path in node.grants.glob("g-*")}


def events(node: GpuNode, reason: str) -> list[Json]:
    return [event for event in node.server.store.objects("events") if event["reason"] == reason]


async def until_event(node: GpuNode, reason: str) -> list[Json]:
    await node.server.until(lambda: bool(events(node, reason)), seconds=PATIENCE_S)
    return events(node, reason)


async def check_consistency(node: GpuNode) -> Usage:
    """Every running container has its own grant on every side, the ledger holds no others, no GPU is given twice."""
    names = [pod["metadata"]["name"] for pod in node.server.store.objects("pods", namespace=NAMESPACE)]
    pods = [consistency.look(node, name, namespace=NAMESPACE) for name in names]
    running = [pod for pod in pods if pod.phase == "Running"]
    usage = await until_held_by(node, (pod.uid for pod in running))
    assert not consistency.wrong_answers(running, usage)
    assert not consistency.given_twice(usage)
    assert all(entry.proved for entry in usage.containers), usage
    await _until_directories(node, {entry.grant for entry in usage.containers})
    return usage


async def _until_directories(node: GpuNode, wanted: set[str]) -> None:
    async def look() -> bool:
        return grant_directories(node) == wanted

    await node.agent.until(look, what=f"there are directories of {wanted} only", deadline_s=PATIENCE_S)
