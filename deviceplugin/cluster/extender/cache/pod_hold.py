"""What one pod holds of one node, and how we know of it.

In: a bound pod with its annotations, or what a verb decided. Out: `Holding`. Which annotations are believed says
`model.annotations`, which the node's agent asks too. A container without an annotation was placed by another
scheduler, on GPUs that we do not know: it stands in `somewhere` until the node's agent writes the allocation back.
"""

import enum
import math
from dataclasses import dataclass

from deviceplugin.errors import VcudaError
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.annotations import PodAllocation, WrittenAllocation, believed
from deviceplugin.model.pod import ClusterPod, Pod, ScheduledCondition
from deviceplugin.model.pod_request import ContainerRequest, PodRequest, pod_request
from deviceplugin.model.request import Request
from deviceplugin.model.units import Compute, ResourceNames

NEVER = math.inf
_NOWHERE: tuple[ContainerRequest, ...] = ()


class Hold(enum.Enum):
    """Who says that a pod holds something."""

    BOUND = "bound"  # the API server
    COMMITTED = "committed"  # we: the Binding is under way, or written and not seen yet
    DOUBTFUL = "doubtful"  # nobody: a Binding got no answer and may still arrive
    RESERVED = "reserved"  # filter, for a Binding that is to come


@dataclass(frozen=True, slots=True)
class Holding:
    """`expires` is a time of the monotonic clock; what is bound never does.

    `request` is what placement was asked, where it was ours; `needs` is of CPU and memory, None where not known.
    `written` is what our Binding says of `allocations`, until the API server has told.
    `version` is the pod's when the reservation was made, `condition` what kube-scheduler had said of it until then.
    """

    pod: PodRef
    node: str
    hold: Hold
    allocations: tuple[Allocation, ...] = ()
    somewhere: tuple[ContainerRequest, ...] = ()
    priority: int = 0
    deleting: bool = False
    expires: float = NEVER
    version: str = ""
    condition: ScheduledCondition | None = None
    problem: str = ""
    request: PodRequest | None = None
    needs: Compute | None = None
    written: WrittenAllocation | None = None

    @property
    def is_bound(self) -> bool:
        return self.hold is Hold.BOUND

    @property
    def lapses(self) -> bool:
        return self.expires != NEVER


def bound_holding(found: ClusterPod, names: ResourceNames, *, sent: Holding | None = None) -> Holding:
    """What a bound pod holds, never raising: a pod that asks for nonsense is refused by its node and holds nothing.

    `sent`: what was committed for it on this node; it saves work where the pod says the same, and changes no answer.
    """
    pod = found.pod
    try:
        asked = pod_request(pod, names)
    except VcudaError as error:
        asked, problem = PodRequest(pod.api_ref, ()), error.message
    else:
        problem = ""
    said = believed(pod, annotation_names(names.domain), own=sent.written if sent else None)
    if sent is not None and _is_echo(sent, pod, asked, said.allocation):
        exact, somewhere = sent.allocations, _NOWHERE
    else:
        exact, somewhere = _split(pod, asked, said.allocation)
    return Holding(
        pod=pod.api_ref,
        node=pod.node,
        hold=Hold.BOUND,
        allocations=exact,
        somewhere=somewhere,
        priority=found.priority,
        deleting=pod.deleting,
        problem=problem or said.doubt,
        needs=found.needs,
    )


def given_up(pod: ClusterPod, held: Holding, *, before: ClusterPod | None) -> bool:
    """kube-scheduler has said, since the reservation was made, that it found no place for the pod.

    A pod that was refused earlier still says so while it is tried again, and may change for other reasons. A new
    refusal has other words, or takes a nomination away that stood `before`; one of which nothing of this is true is not
    told at all.
    """
    if not pod.is_refused or not is_later(pod.pod.resource_version, held.version):
        return False
    return pod.condition != held.condition or (before is not None and before.nominated_node > pod.nominated_node == "")


def is_later(version: str, known: str) -> bool:
    """Versions of one object are ordered (Kubernetes 1.35), and were before it was said; others are only different."""
    if version.isdecimal() and known.isdecimal():
        return int(version) > int(known)
    return version != known


def _split(
    pod: Pod, asked: PodRequest, written: PodAllocation | None
) -> tuple[tuple[Allocation, ...], tuple[ContainerRequest, ...]]:
    """What is known to be where, and the containers of which it is not."""
    exact: list[Allocation] = []
    somewhere: list[ContainerRequest] = []
    known = {each.name for each in asked.containers}
    shares = {} if written is None else dict(written.containers)
    for each in asked.containers:
        found = shares.get(each.name, ())
        if _covers(found, each.request):
            exact.append(Allocation(ContainerRef(pod.api_ref, each.name), each.role, each.request, found, each.index))
        else:
            somewhere.append(each)
    exact += (_unasked(pod, name, shares[name]) for name in sorted(shares.keys() - known))
    return tuple(exact), tuple(somewhere)


def _is_echo(sent: Holding, pod: Pod, asked: PodRequest, said: PodAllocation | None) -> bool:
    """Whether the pod asks what it asked when it was placed, and is believed to have what we wrote."""
    if sent.written is None or said is not sent.written.allocation or sent.request is None:
        return False
    return sent.request.containers == asked.containers and sent.request.pod == pod.api_ref


def _covers(shares: tuple[GpuShare, ...], request: Request) -> bool:
    """An annotation that gives less than the pod asks is not what kubelet was asked for."""
    cores, blocks = sum(share.cores for share in shares), sum(share.blocks for share in shares)
    return len(shares) == request.gpus and cores >= request.cores and blocks >= request.blocks


def _unasked(pod: Pod, name: str, shares: tuple[GpuShare, ...]) -> Allocation:
    found = pod.container(name)
    role, index = (ContainerRole.UNKNOWN, 0) if found is None else (found.role, found.index)
    request = Request(sum(share.cores for share in shares), sum(share.blocks for share in shares))
    return Allocation(ContainerRef(pod.api_ref, name), role, request, shares, index)
