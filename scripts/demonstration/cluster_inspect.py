"""Looks at the cluster's pods: the extender's annotation, the agent's ledger, the container's environment.

In: the cluster and the name of a pod. Out: plain values, which the checks are made on.
"""

from collections.abc import Iterable
from typing import NamedTuple

from deviceplugin.errors import ParseError
from deviceplugin.model.annotations import parse_allocation
from sandbox.gpunode import GpuNode
from scripts.demonstration.pods import NAMESPACE, Json
from scripts.demonstration.setup import SmallCluster

ALLOCATION = "tencent.com/vcuda-allocation"
UNSCHEDULED = "kube-scheduler has not looked at it"


class Share(NamedTuple):
    """A part of one GPU."""

    uuid: str
    cores: int
    blocks: int


class Placed(NamedTuple):
    """One container: what the extender chose (annotation), what the agent granted (ledger), what it sees (env)."""

    pod: str
    node: str
    phase: str
    chosen: tuple[Share, ...]
    granted: tuple[Share, ...]
    visible: tuple[str, ...]


class PolicyRun(NamedTuple):
    """One node policy: the nodes of the small pods in their order, and the large pod's; empty for one that waits."""

    policy: str
    nodes: tuple[str, ...]
    large: str


class Survivor(NamedTuple):
    """A pod around the kill: the node that filter named, the node that it is bound to, Bindings written."""

    pod: str
    filtered: str
    bound: str
    writes: int
    phase: str


class Gang(NamedTuple):
    """How many members found a node in the one cycle, reservations then and afterwards, and which were bound."""

    size: int
    found: int
    reserved: int
    left: int
    bound: tuple[str, ...]
    why: str


async def placed(cluster: SmallCluster, names: Iterable[str]) -> tuple[Placed, ...]:
    pods = [stored(cluster, name) for name in names]
    return tuple([await _container(cluster, pod, item["name"]) for pod in pods for item in pod["spec"]["containers"]])


def stored(cluster: SmallCluster, name: str) -> Json:
    return cluster.server.store.get("pods", name, namespace=NAMESPACE)


def names(cluster: SmallCluster) -> list[str]:
    return [item["metadata"]["name"] for item in cluster.server.store.objects("pods", namespace=NAMESPACE)]


def phase(cluster: SmallCluster, name: str) -> str:
    return str(stored(cluster, name)["status"].get("phase", ""))


def node_of(cluster: SmallCluster, name: str) -> str:
    return str(stored(cluster, name)["spec"].get("nodeName", ""))


def condition(cluster: SmallCluster, name: str) -> str:
    """What `kubectl describe pod` would print for a pod that has no node."""
    conditions = stored(cluster, name)["status"].get("conditions") or []
    return next((str(each.get("message", "")) for each in conditions if each["type"] == "PodScheduled"), UNSCHEDULED)


def survivor(cluster: SmallCluster, name: str, filtered: str) -> Survivor:
    binding = ("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/binding")
    writes = cluster.server.requests.count(binding)
    return Survivor(name, filtered, node_of(cluster, name), writes, phase(cluster, name))


def chosen(pod: Json) -> dict[str, tuple[Share, ...]]:
    """By container, from the annotation; nothing if it has none or another pod's."""
    text = (pod["metadata"].get("annotations") or {}).get(ALLOCATION)
    try:
        written = parse_allocation(text) if text else None
    except ParseError:
        return {}
    if written is None or written.pod != pod["metadata"]["uid"]:
        return {}
    return {
        container: tuple(sorted(Share(str(each.uuid), each.cores, each.blocks) for each in shares))
        for container, shares in written.containers.items()
    }


async def _container(cluster: SmallCluster, pod: Json, container: str) -> Placed:
    meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
    gpu_node = cluster.nodes.get(node)
    return Placed(
        pod=meta["name"],
        node=node,
        phase=pod["status"].get("phase", ""),
        chosen=chosen(pod).get(container, ()),
        granted=await _granted(gpu_node, meta["uid"], container) if gpu_node else (),
        visible=_visible(gpu_node, meta["uid"], container) if gpu_node else (),
    )


async def _granted(node: GpuNode, uid: str, container: str) -> tuple[Share, ...]:
    entries = [each for each in (await node.agent.usage()).containers if (each.uid, each.container) == (uid, container)]
    return tuple(sorted(Share(each.uuid, each.cores, each.blocks) for entry in entries for each in entry.gpus))


def _visible(node: GpuNode, uid: str, container: str) -> tuple[str, ...]:
    if not node.kubelet.started(uid, container):
        return ()
    listed = node.kubelet.container_view(uid, container).env.get("NVIDIA_VISIBLE_DEVICES", "")
    return tuple(sorted(listed.split(",")))
