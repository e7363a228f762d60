"""What becomes of a grant whose owner was guessed wrong: it keeps its GPUs and takes the true owner's request.

In: grants and the owner that kubelet's checkpoint proves. Out: the grants as they should be, or an OwnershipError.
Pure. The GPUs of a grant cannot change: kubelet has recorded its device nodes and environment in its checkpoint, and
starts the container with these. Limits can, because they are written at PreStartContainer. Whether the result fits is
for the ledger to check (`capacity`).
"""

from dataclasses import dataclass, replace

from deviceplugin.errors import OwnershipError
from deviceplugin.ledger.grant import Grant
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, OwnerKey, PodRef
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.pod import Pod
from deviceplugin.model.pod_limits import NO_LIMITS, PodLimits
from deviceplugin.model.pod_request import parts_of
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.fit import demand_of


@dataclass(frozen=True, slots=True)
class Claimant:
    """The container that a grant goes to, and what it asked for."""

    owner: ContainerRef
    role: ContainerRole
    request: Request
    limits: PodLimits = NO_LIMITS
    index: int = 0


def owner_named(key: OwnerKey, pod: Pod | None) -> tuple[ContainerRef, ContainerRole, int]:
    """Names, role and index of a container; without its pod only the UID and the container's name are known."""
    owner = ContainerRef(pod.ref if pod is not None else PodRef(key[0], "", ""), key[1])
    known = pod.container(key[1]) if pod is not None else None
    return (owner, known.role, known.index) if known is not None else (owner, ContainerRole.UNKNOWN, 0)


def claimant_proved(
    grant: Grant, key: OwnerKey, counts: tuple[int, int], pod: Pod | None, names: ResourceNames
) -> Claimant:
    """The container that kubelet's checkpoint names for the grant: it has the counts, the pod says over how many GPUs.

    Where the pod is not known, counts as the grant's mean that it is the grant's request. RequestError or ParseError
    for a request that vcuda would not have admitted.
    """
    owner, role, index = owner_named(key, pod)
    request = grant.allocation.request
    if pod is not None:
        parts = parts_of(pod, key[1], names)
        request = parse_request(*counts, parts=parts, names=names)
    elif (request.cores, request.blocks) != counts:
        request = parse_request(*counts, names=names)
    return Claimant(owner, role, request, index=index)


def claimant_of(grant: Grant) -> Claimant:
    allocation = grant.allocation
    return Claimant(allocation.owner, allocation.role, allocation.request, grant.limits, allocation.index)


def moved(grant: Grant, to: Claimant, inventory: Inventory) -> Grant:
    """The grant in the hands of another container, on the same GPUs, sized by that container's request."""
    shares = grant.allocation.shares
    if len(shares) != to.request.gpus:
        raise OwnershipError(
            f"container {to.owner} asked for {to.request.gpus} GPUs and kubelet gave it grant {grant.id}, which has "
            f"{len(shares)}; delete the pod, so that it is admitted again"
        )
    sized = tuple(share_for(share.uuid, to.request, inventory, least=share.blocks) for share in shares)
    allocation = Allocation(to.owner, to.role, to.request, sized, to.index)
    return replace(grant, allocation=allocation, limits=to.limits)


def kept(grant: Grant, to: Claimant) -> Grant:
    """The grant under another container's name and otherwise as it is; that container's start will size it."""
    allocation = replace(grant.allocation, owner=to.owner, role=to.role, index=to.index)
    return replace(grant, allocation=allocation, limits=to.limits, proved=False)


def share_for(uuid: GpuUuid, request: Request, inventory: Inventory, *, least: int = 0) -> GpuShare:
    """What a request takes of a GPU; one that is gone had `least` blocks, and what the request needs."""
    demand, gpu = demand_of(request), inventory.gpu(uuid)
    return GpuShare(uuid, *demand.takes(gpu.blocks if gpu is not None else max(least, demand.amount.blocks)))
