"""The annotations that a Binding carries besides the node's name.

In: an assumed pod. Out: annotations in gpu-manager's forms and in vcuda's; the node's agent applies exactly these.
Pure.
"""

from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.model import annotations as text
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.units import ResourceNames


def written_allocation(held: PodHold) -> text.WrittenAllocation:
    shares = {each.owner.name: each.shares for each in held.allocations}
    allocation = text.PodAllocation(held.pod.uid, shares)
    return text.WrittenAllocation(allocation, text.format_allocation(allocation))


def binding_annotations(
    held: PodHold, inventory: Inventory | None, *, now_ns: int, names: ResourceNames
) -> dict[str, str]:
    """GPU indices are written for app containers only: that is what they count."""
    known = annotation_names(names.domain)
    written = held.written or written_allocation(held)
    out = {
        known.predicate_time: text.format_predicate_time(now_ns),
        known.predicate_node: held.node,
        known.gpu_assigned: text.format_assigned(False),
        known.allocation: written.text,
    }
    minors = {gpu.uuid: gpu.minor for gpu in inventory.gpus} if inventory else {}
    for each in held.allocations:
        indices = sorted(minors[uuid] for uuid in each.uuids if uuid in minors)
        if each.role is ContainerRole.APP and indices:
            out[known.gpu_indices(each.index)] = text.format_gpu_indices(indices)
    return out
