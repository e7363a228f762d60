"""ResourceSlices of resource.k8s.io: what a driver offers on one node.

In: devices as values. Out: the JSON of a slice; the slices of one driver and node, read, written and deleted. A pool is
one slice here, so every change is atomic. Not here: when to write (`dra`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from deviceplugin.kube.collection import Collection, reader
from deviceplugin.kube.structs import Json, Object, decode
from deviceplugin.kube.transport import MERGE, Transport, group_path
from deviceplugin.model.claims import AttributeValue, PublishedDevice
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.units import BLOCK_MIB

GROUP = "resource.k8s.io/v1"
_PLURAL = "resourceslices"


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """One slice that exists. `spec` is what it offers, as JSON that two equal offers have in common."""

    name: str
    uid: str
    version: str
    generation: int
    spec: Mapping[str, object]


class _Pool(Json):
    """spec.pool."""

    name: str = ""
    generation: int = 0


class _Spec(Json):
    """spec, as far as it must be told apart from another driver's or node's."""

    driver: str = ""
    node_name: str | None = None
    pool: _Pool | None = None


class _ResourceSlice(Object):
    """A ResourceSlice."""

    spec: dict[str, object]


def slices_of(driver: str, node: str) -> Collection[str, NodeSlice]:
    """By name. The API server accepts no other field selectors, and RBAC none at all."""
    return Collection(
        what=f"the ResourceSlices of {driver} on {node}",
        path=group_path(GROUP, _PLURAL),
        read=reader(_ResourceSlice, _value, what="a ResourceSlice"),
        key=lambda each: each.name,
        identity=lambda each: each.uid,
        query={"fieldSelector": f"spec.driver={driver},spec.nodeName={node}"},
    )


def slice_spec(driver: str, node: str, devices: Sequence[PublishedDevice], generation: int) -> dict[str, object]:
    """The pool has the node's name."""
    return {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "devices": [_device(each) for each in devices],
    }


def offer(spec: object) -> object:
    """What two specs that offer the same have in common: no generation, and no time at which a taint was first seen."""
    if isinstance(spec, Mapping):
        return {key: offer(value) for key, value in spec.items() if key not in ("generation", "timeAdded")}
    return list(map(offer, spec)) if isinstance(spec, list) else spec


async def create_slice(transport: Transport, node: ClusterNode, spec: Mapping[str, object]) -> NodeSlice:
    """Owned by the node, so that it goes with it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": True}
    metadata = {"generateName": f"{node.name}-vcuda-", "ownerReferences": [owner]}
    body = msgspec.json.encode({"apiVersion": GROUP, "kind": "ResourceSlice", "metadata": metadata, "spec": spec})
    found = await transport.request("POST", group_path(GROUP, _PLURAL), what="create a ResourceSlice", body=body)
    return _value(decode(_ResourceSlice, found, what="a ResourceSlice"))


async def replace_slice(transport: Transport, old: NodeSlice, spec: Mapping[str, object]) -> NodeSlice:
    """Raises KubeConflictError if it has changed since it was read, KubeNotFoundError if it is gone."""
    metadata = {"name": old.name, "uid": old.uid, "resourceVersion": old.version}
    change = msgspec.json.encode({"metadata": metadata, "spec": spec})
    found = await transport.request(
        "PATCH",
        group_path(GROUP, _PLURAL, old.name),
        what="change a ResourceSlice",
        body=change,
        content_type=MERGE,
    )
    return _value(decode(_ResourceSlice, found, what="a ResourceSlice"))


async def delete_slice(transport: Transport, old: NodeSlice) -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": old.uid}}
    path = group_path(GROUP, _PLURAL, old.name)
    await transport.request("DELETE", path, what="delete a ResourceSlice", body=msgspec.json.encode(options))


def _value(found: _ResourceSlice) -> NodeSlice:
    spec = msgspec.convert(found.spec, _Spec)
    generation = spec.pool.generation if spec.pool is not None else 0
    meta = found.metadata
    return NodeSlice(meta.name, meta.uid, meta.resource_version, generation, found.spec)


def _device(device: PublishedDevice) -> dict[str, object]:
    found: dict[str, object] = {
        "name": device.name,
        "allowMultipleAllocations": True,
        "attributes": {name: _attribute(value) for name, value in device.attributes.items()},
        "capacity": {
            "cores": _capacity(str(device.cores), "1"),
            "memory": _capacity(_memory(device.blocks), _memory(1)),
        },
    }
    if device.taints:
        found["taints"] = [
            {"key": each.key, "effect": "NoSchedule"} | ({"value": each.value} if each.value else {})
            for each in device.taints
        ]
    return found


def _capacity(value: str, step: str) -> dict[str, object]:
    """What a request leaves out is all of it: the default. Requests are rounded up to a whole step."""
    return {
        "value": value,
        "requestPolicy": {"default": value, "validRange": {"min": step, "max": value, "step": step}},
    }


def _memory(blocks: int) -> str:
    """As the API server writes it back: with the largest unit of which it is a whole number."""
    mib = blocks * BLOCK_MIB
    for unit, size in (("Ti", 1 << 20), ("Gi", 1 << 10)):
        if mib % size == 0:
            return f"{mib // size}{unit}"
    return f"{mib}Mi"


def _attribute(value: AttributeValue) -> dict[str, object]:
    """The one key that says the type."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, tuple):
        return {"version": ".".join(map(str, value))}
    return {"string": value}
