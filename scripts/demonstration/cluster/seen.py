"""Looks at a pod from three sides: the extender's annotation, the agent's ledger, the container's own environment.

In: the stage and a pod's name. Out: `Placed`, one for each container.
"""

from deviceplugin.errors import ParseError
from deviceplugin.model.annotations import parse_allocation
from sandbox.gpunode import GpuNode
from scripts.demonstration.cluster.cast import NAMESPACE, Json
from scripts.demonstration.cluster.findings import Placed, Share
from scripts.demonstration.cluster.stage import Stage

ALLOCATION = "tencent.com/vcuda-allocation"
UNSCHEDULED = "it has not been looked at"


async def placed(stage: Stage, name: str) -> list[Placed]:
    raw = stored(stage, name)
    node = raw["spec"].get("nodeName", "")
    return [await _container(stage, raw, item["name"], node) for item in raw["spec"]["containers"]]


def stored(stage: Stage, name: str) -> Json:
    return stage.server.store.get("pods", name, namespace=NAMESPACE)


def names(stage: Stage) -> list[str]:
    return [item["metadata"]["name"] for item in stage.server.store.objects("pods", namespace=NAMESPACE)]


def phase(stage: Stage, name: str) -> str:
    return str(stored(stage, name)["status"].get("phase", ""))


def node_of(stage: Stage, name: str) -> str:
    return str(stored(stage, name)["spec"].get("nodeName", ""))


def condition(stage: Stage, name: str) -> str:
    """What `kubectl describe pod` would say of a pod that has no node."""
    conditions = stored(stage, name)["status"].get("conditions") or []
    found = [each.get("message", "") for each in conditions if each["type"] == "PodScheduled"]
    return str(found[0]) if found else UNSCHEDULED


def bindings(stage: Stage, name: str) -> int:
    """How many Bindings were sent to the API server for this pod."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/binding"
    return stage.server.requests.count(("POST", path))


def chosen(raw: Json) -> dict[str, tuple[Share, ...]]:
    """By container, from the annotation; nothing where there is none of this pod."""
    text = (raw["metadata"].get("annotations") or {}).get(ALLOCATION)
    try:
        written = parse_allocation(text) if text else None
    except ParseError:
        return {}
    if written is None or written.pod != raw["metadata"]["uid"]:
        return {}
    return {
        container: tuple(sorted(Share(str(each.uuid), each.cores, each.blocks) for each in shares))
        for container, shares in written.containers.items()
    }


async def _container(stage: Stage, raw: Json, container: str, node: str) -> Placed:
    shares = chosen(raw).get(container, ())
    there = stage.nodes.get(node)
    uid = raw["metadata"]["uid"]
    return Placed(
        pod=raw["metadata"]["name"],
        container=container,
        node=node,
        phase=raw["status"].get("phase", ""),
        gpus=await _minors(there, shares) if there else (),
        chosen=shares,
        held=await _held(there, uid, container) if there else (),
        visible=_visible(there, uid, container) if there else (),
    )


async def _held(node: GpuNode, uid: str, container: str) -> tuple[Share, ...]:
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
