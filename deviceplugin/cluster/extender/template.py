"""A node that exists only as a template of its group.

In: a node as a cluster autoscaler imagines it. Out: the same with an inventory, from its annotation where it has one,
else from the labels that our agent sets on such nodes: model, number and memory of the GPUs. Links are unknown then.
"""

from dataclasses import replace

from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.inventory_annotation import format_inventory
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import CORES_PER_GPU, MIB, ResourceNames

_MOST_GPUS = 64
_MOST_MIB = 1 << 24


def described(node: ClusterNode, names: ResourceNames) -> ClusterNode:
    """A template's kubelet offers what its GPUs have, whatever it says itself."""
    if node.inventory:
        return replace(node, cores=node.cores or CORES_PER_GPU)
    count = _number(node.labels.get(f"{names.domain}/gpu-count", ""), _MOST_GPUS)
    mib = _number(node.labels.get(f"{names.domain}/gpu-memory", ""), _MOST_MIB)
    if not count or not mib:
        return node
    model = node.labels.get(f"{names.domain}/gpu-model", "").replace("-", " ")
    gpus = tuple(Gpu(GpuUuid(f"{node.name}-{at}"), at, at, model, mib * MIB) for at in range(count))
    inventory = Inventory(gpus, Topology(tuple(range(count)), {}), Driver("", (0, 0)))
    text = format_inventory(inventory, share_mode=True)
    return replace(node, inventory=text, cores=count * CORES_PER_GPU)


def _number(text: str, most: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= most else 0
