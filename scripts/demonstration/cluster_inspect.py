"""Looks at the cluster's pods: the extender's annotation, the agent's ledger, the container's environment.

In: the cluster and the name of a pod. Out: plain frozen structs, which the checks are made on.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.model.annotations import parse_allocation
from sandbox.gpunode import GpuNode
from scripts.demonstration.pods import NAMESPACE, Json
from scripts.demonstration.setup import SmallCluster

ALLOCATION = "tencent.com/vcuda-allocation"
UNSCHEDULED = "kube-scheduler has not looked at it"


class Share(msgspec.Struct, frozen=True, order=True):
    """A part of one GPU."""

    uuid: str
    cores: int
    blocks: int


class Placed(msgspec.Struct, frozen=True):
    """One container: what the extender chose (annotation), what the agent granted (ledger), what it sees (env)."""

    pod: str
    container: str
    node: str
    phase: str
    gpus: tuple[int, ...]
    chosen: tuple[Share, ...]
    granted: tuple[Share, ...]
    visible: tuple[str, ...]


class WebhookReview(msgspec.Struct, frozen=True):
    """A pod at the webhook: as it is stored, or the `refusal`."""

    pod: str
    asked: dict[str, Any]
    stored: dict[str, Any] = {}
    refusal: str = ""


class PolicyRun(msgspec.Struct, frozen=True):
    """One node policy: the allocated cores of each GPU by node, before the large pod came.

    `waiting` are small pods without a node; `large` is the large pod's node, empty if it waits.
    """

    policy: str
    taken: dict[str, tuple[int, ...]]
    waiting: tuple[str, ...]
    large: str


class Waited(msgspec.Struct, frozen=True):
    """A pod without room: what it was told, and its phase after the pod `ended` was deleted."""

    pod: str
    condition: str
    explanation: str
    ended: str
    phase: str


class Survivor(msgspec.Struct, frozen=True):
    """A pod around the kill: the node that filter named, the node that it is bound to, Bindings written."""

    pod: str
    filtered: str
    bound: str
    writes: int
    phase: str


class Gang(msgspec.Struct, frozen=True):
    """How many members found a node in the one cycle, reservations then and afterwards, and which were bound."""

    size: int
    found: int
    reserved: int
    left: int
    bound: tuple[str, ...]
    why: str


class Simulated(msgspec.Struct, frozen=True):
    """A line of `vcuda simulate`; the names are those of its document."""

    policy: str
    allocated_percent_at_100: float
    allocated_percent_at_130: float


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


def bindings(cluster: SmallCluster, name: str) -> int:
    """How many Bindings the API server got for this pod."""
    return cluster.server.requests.count(("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/binding"))


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
    shares = chosen(pod).get(container, ())
    node = pod["spec"].get("nodeName", "")
    gpu_node, uid = cluster.nodes.get(node), pod["metadata"]["uid"]
    return Placed(
        pod=pod["metadata"]["name"],
        container=container,
        node=node,
        phase=pod["status"].get("phase", ""),
        gpus=await _minors(gpu_node, shares) if gpu_node else (),
        chosen=shares,
        granted=await _granted(gpu_node, uid, container) if gpu_node else (),
        visible=_visible(gpu_node, uid, container) if gpu_node else (),
    )


async def _granted(node: GpuNode, uid: str, container: str) -> tuple[Share, ...]:
    entries = [each for each in (await node.agent.usage()).containers if (each.uid, each.container) == (uid, container)]
    return tuple(sorted(Share(each.uuid, each.cores, each.blocks) for entry in entries for each in entry.gpus))


async def _minors(node: GpuNode, shares: tuple[Share, ...]) -> tuple[int, ...]:
    minors = {gpu.uuid: gpu.minor for gpu in (await node.agent.usage()).gpus}
    return tuple(sorted(minors[share.uuid] for share in shares if share.uuid in minors))


def _visible(node: GpuNode, uid: str, container: str) -> tuple[str, ...]:
    if not node.kubelet.started(uid, container):
        return ()
    listed = node.kubelet.container_view(uid, container).env.get("NVIDIA_VISIBLE_DEVICES", "")
    return tuple(sorted(listed.split(",")))
