"""From a claim to its place: the node of the moment, the pod's wishes, and the plan for its whole pod.

In: who asks, and GPUs that kubelet has reasons to be near. Out: an allocation and why, or the error of ours that
refuses the pod. Nothing is recorded here; the same claim asked twice in a row has the same place.
"""

from dataclasses import replace

from deviceplugin.errors import CapacityError
from deviceplugin.kubelet.allocate_context import Node
from deviceplugin.kubelet.claims import Claim
from deviceplugin.kubelet.pod_placement import choice_for, plan
from deviceplugin.model.allocation import Allocation, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import container_request, pod_request
from deviceplugin.model.preferences import GpuFilter
from deviceplugin.model.request import Request
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.node_state import NodeState, node_state
from deviceplugin.placement.occupancy import free_for_next_container
from deviceplugin.placement.place import Choice, place
from deviceplugin.placement.snapshot import Snapshot


def place_claim(node: Node, claim: Claim, near: frozenset[GpuUuid], *, whole: bool) -> tuple[Allocation, Choice]:
    """By a plan for the whole pod; for the container alone where the pod is a guess, which must refuse nobody else.

    `near`: GPUs beside the processors that kubelet has chosen; a wish like the others, and the last of them.
    """
    container, uid = claim.container, claim.pod.ref.uid
    names = node.layout.names
    request = container_request(claim.pod, container, share_mode=node.share_mode, names=names)
    pod = claim.pod if whole else replace(claim.pod, containers=(container,))
    asking = [each for each in pod.containers if each.is_gpu]
    wishes = {each.ref.name: wish for each in asking if (wish := node.hinted(pod, each))}
    asked = pod_request(pod, names)
    granted = [grant.allocation for grant in node.ledger.of_pod(uid)]
    state = _without(node, uid)
    view = free_for_next_container(state.snapshot, granted, role=container.role, index=container.index)
    prefer = _roomy(claim, request, view, asked.preferences.gpus) or near
    planned = plan(asked, state, granted=granted, wishes=wishes, prefer=prefer)
    return planned.of(container.ref.name), choice_for(container.ref.name, planned, asked, state)


def _without(node: Node, uid: PodUid) -> NodeState:
    """The node as if nothing of the pod were there."""
    inventory = node.feed.catalog.inventory
    others = (each for each in node.ledger.allocations() if each.owner.pod.uid != uid)
    cordoned, processes = node.cordoned(), node.processes()
    return node_state("", inventory, others, share_mode=node.share_mode, cordoned=cordoned, processes=processes)


def _roomy(claim: Claim, request: Request, view: Snapshot, wanted: GpuFilter) -> frozenset[GpuUuid]:
    """For a guess, a GPU on which any of those would fit that it may have been: its GPU cannot be changed any more."""
    shares = [each for each in claim.others if 0 < each.cores < CORES_PER_GPU and each.blocks]
    if not shares or not request.is_share or request.parts > 1:
        return frozenset()
    cores = max(request.cores, *(each.cores for each in shares))
    blocks = max(request.blocks, *(each.blocks for each in shares))
    try:
        return frozenset(share.uuid for share in place(Request(cores, blocks), view, wanted=wanted).shares)
    except CapacityError:
        return frozenset()
