"""Nodes from Kubernetes objects.

In: objects; what is no node is passed over. Out: `NodeState` without any pod on it. The GPUs of a node are those of the
agent's inventory annotation; where no agent runs yet, as many as its `vcuda-core` or `nvidia.com/gpu` say, of the model
and memory that its labels name. CPU and memory are what is allocatable. GPUs that are cordoned or unhealthy stay so;
a node that is cordoned or not ready counts like any other, because it is the cluster that is planned with.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.kube.cluster_nodes import cluster_node
from deviceplugin.kube.quantity import exact_quantity, parse_quantity
from deviceplugin.kube.structs import ClusterNodeObject
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.inventory_annotation import parse_inventory
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU, MIB, ResourceNames
from deviceplugin.placement.node_state import NodeState, Spare, node_state
from deviceplugin.simulate.objects import Found, Quantities

_PLAIN = "nvidia.com/gpu"
_MODELS = ("nvidia.com/gpu.product", "gaia.tencent.com/gpu-model")
_MEMORY_MIB = "nvidia.com/gpu.memory"
_MOST_GPUS = 64
_NAMES = ResourceNames()


class _Meta(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Status(msgspec.Struct):
    allocatable: Quantities | None = None


class _Node(msgspec.Struct):
    metadata: _Meta
    status: _Status | None = None


def nodes_of_objects(found: Iterator[Found], *, file: str) -> Iterator[NodeState]:
    names: set[str] = set()
    for each in found:
        if each.kind != "Node":
            continue
        node = _node(each)
        if not node.name or node.name in names:
            raise ParseError(f"{each.where} has no name of its own")
        names.add(node.name)
        yield node
    if not names:
        raise ParseError(f"{file} holds no object of kind Node")


def _node(found: Found) -> NodeState:
    read = found.read(_Node)
    allocatable = (read.status.allocatable if read.status else None) or {}
    try:
        spare = Spare(
            int(exact_quantity(allocatable.get("cpu", 0)) * 1000),
            int(exact_quantity(allocatable.get("memory", 0)) / MIB),
        )
        inventory, share_mode = _inventory(read.metadata, allocatable)
    except ParseError as error:
        raise ParseError(f"{found.where}: {error.message}") from None
    cordoned = cluster_node(found.read(ClusterNodeObject), _NAMES).cordoned(inventory)
    return replace(node_state(read.metadata.name, inventory, (), share_mode=share_mode, cordoned=cordoned), spare=spare)


def _inventory(meta: _Meta, allocatable: Quantities) -> tuple[Inventory, bool]:
    written = (meta.annotations or {}).get(AnnotationNames(_NAMES.domain).inventory)
    if written is not None:
        return parse_inventory(written)
    count = parse_quantity(allocatable.get(_NAMES.core, 0)) // CORES_PER_GPU
    count = count or parse_quantity(allocatable.get(_PLAIN, 0))
    if not 0 <= count <= _MOST_GPUS:
        raise ParseError(f"{count} GPUs are not possible; a node has 0 to {_MOST_GPUS}")
    labels = meta.labels or {}
    memory = _memory_of_one(labels, allocatable, count)
    model = next((labels[label] for label in _MODELS if label in labels), "unknown")
    gpus = tuple(Gpu(GpuUuid(f"{meta.name}/{minor}"), minor, minor, model, memory) for minor in range(count))
    return Inventory(gpus, Topology(tuple(range(count))), Driver("", (0, 0))), True


def _memory_of_one(labels: Mapping[str, str], allocatable: Quantities, count: int) -> int:
    """In bytes; 0 where nothing says."""
    if count and (blocks := parse_quantity(allocatable.get(_NAMES.memory, 0))):
        return blocks // count * BLOCK_BYTES
    return parse_quantity(labels.get(_MEMORY_MIB, 0)) * MIB
