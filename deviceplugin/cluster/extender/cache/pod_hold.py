"""What one pod holds of one node, and who says so.

In: a bound pod with its annotations, or what a verb decided. Out: `PodHold`. `model.annotations` decides which
annotations count, here and in the node's agent. A container without an annotation was placed by another scheduler on
unknown GPUs: it is `unlocated` until the node's agent writes its allocation.
"""

import enum
import math
from collections.abc import Iterator, Mapping

import msgspec

from deviceplugin.errors import VcudaError
from deviceplugin.model.allocation import Allocation, ContainerRef, GpuShare, PodRef
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.annotations import TrustedAllocation, trusted_allocation
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod, Pod, ScheduledCondition
from deviceplugin.model.pod_request import ContainerRequest, PodRequest, pod_request
from deviceplugin.model.request import Request
from deviceplugin.model.units import Compute, ResourceNames
from deviceplugin.placement.fit import GpuAmount
from deviceplugin.placement.snapshot import peak_use
from deviceplugin.structs import replace

NEVER = math.inf


class HoldState(enum.Enum):
    """Who says that a pod holds something; kube-scheduler's word for the second is assumed too."""

    BOUND = "bound"  # the API server
    ASSUMED = "assumed"  # this process: the Binding is being written, or written and not seen in the watch yet
    UNCONFIRMED = "unconfirmed"  # unknown: the Binding got no answer and may still take effect
    RESERVED = "reserved"  # filter, for a Binding to come


class PodHold(msgspec.Struct, frozen=True):
    """`expires` is a time of the monotonic clock; a bound pod's hold never expires.

    `request` is what placement was asked, where this process placed the pod; `needs` is CPU and memory, None if not
    known. `version` is the pod's resourceVersion at the reservation, `condition` its PodScheduled condition then. So
    many refusals of earlier attempts may still arrive as `late`, until `late_until`.
    `total`: what kube-scheduler counts for a bound pod.
    `why`: the annotation `vcuda-decision` of a bound pod, as it is written. `announced`: another scheduler binds the
    pod, and its GPUs are written to it after that; until the pod shows them, they are these.
    """

    pod: PodRef
    node: str
    state: HoldState
    allocations: tuple[Allocation, ...] = ()
    unlocated: tuple[ContainerRequest, ...] = ()
    priority: int = 0
    deleting: bool = False
    expires: float = NEVER
    version: str = ""
    condition: ScheduledCondition | None = None
    late: int = 0
    late_until: float = 0.0
    problem: str = ""
    request: PodRequest | None = None
    needs: Compute | None = None
    total: GpuAmount = msgspec.field(default_factory=GpuAmount)
    why: str = ""
    announced: bool = False

    @property
    def is_bound(self) -> bool:
        return self.state is HoldState.BOUND

    @property
    def has_deadline(self) -> bool:
        return self.expires != NEVER

    @property
    def uuids(self) -> frozenset[GpuUuid]:
        return frozenset(uuid for each in self.allocations for uuid in each.uuids)


def reserved_hold(
    pod: ClusterPod, node: str, allocations: tuple[Allocation, ...], asked: PodRequest, *, expires: float
) -> PodHold:
    """For a Binding to come."""
    return PodHold(
        pod=pod.pod.api_ref,
        node=node,
        state=HoldState.RESERVED,
        allocations=allocations,
        priority=pod.priority,
        expires=expires,
        version=pod.pod.resource_version,
        condition=pod.condition,
        request=asked,
        needs=pod.needs,
    )


def bound_hold(found: ClusterPod, names: ResourceNames, known_request: PodRequest | None = None) -> PodHold:
    """What a bound pod holds. Never raises: a pod with a wrong request is refused by its node and holds nothing."""
    pod, known = found.pod, annotation_names(names.domain)
    asked, problem = (known_request, "") if known_request is not None else _asked_once(pod, names)
    said = trusted_allocation(pod, known)
    exact, unlocated = _split(pod, asked, said)
    return PodHold(
        pod=pod.api_ref,
        node=pod.node,
        state=HoldState.BOUND,
        allocations=exact,
        unlocated=unlocated,
        priority=found.priority,
        deleting=pod.deleting,
        problem=problem or said.doubt,
        needs=found.needs,
        total=total_request(pod),
        why=pod.annotations.get(known.decision, ""),
    )


def total_request(pod: Pod) -> GpuAmount:
    """Cores and blocks that kube-scheduler counts for a pod."""
    return peak_use(
        (each.role, each.index, GpuAmount(each.cores, each.blocks)) for each in pod.containers if each.is_gpu
    )


def _asked_once(pod: Pod, names: ResourceNames) -> tuple[PodRequest, str]:
    """With the sentence that says what is wrong. Its owner's later annotations take away nothing that it has."""
    try:
        return pod_request(pod, names), ""
    except VcudaError as error:
        problem = error.message
    known = annotation_names(names.domain)
    kept = {name: text for name, text in pod.annotations.items() if known.is_machine_written(name)}
    try:
        return pod_request(replace(pod, annotations=kept), names), problem
    except VcudaError:
        return PodRequest(pod.api_ref, ()), problem


def as_first_seen(found: PodHold, known: PodHold | None) -> PodHold:
    """Until the agent writes what it gave, a bound container has what it asked when it was bound."""
    if known is None or not (known.is_bound and known.unlocated and found.unlocated):
        return found
    first = {each.name: each for each in known.unlocated}
    return replace(found, unlocated=tuple(first.get(each.name, each) for each in found.unlocated))


def refused_since_reserved(pod: ClusterPod, held: PodHold, *, before: ClusterPod | None) -> bool:
    """kube-scheduler has refused the pod after the reservation was made.

    A pod keeps an earlier refusal while it is retried, and its object may change for other reasons. A new refusal has
    another message, or takes away a nomination that the pod had `before`. Any other refusal is invisible.
    """
    if not pod.is_refused or not is_later(pod.pod.resource_version, held.version):
        return False
    return pod.condition != held.condition or (before is not None and before.nominated_node > pod.nominated_node == "")


def is_later(version: str, known: str) -> bool:
    """resourceVersions of one object are ordered numbers (documented since Kubernetes 1.35); others only differ."""
    if version.isdecimal() and known.isdecimal():
        return int(version) > int(known)
    return version != known


def _split(
    pod: Pod, asked: PodRequest, said: TrustedAllocation
) -> tuple[tuple[Allocation, ...], tuple[ContainerRequest, ...]]:
    """The located allocations, and the containers without one."""
    located = {each.ref.name: shares for each in pod.containers if each.is_gpu and (shares := said.shares_of(each))}
    known = {each.name for each in asked.containers}
    exact = [_located(pod, each, located[each.name]) for each in asked.containers if each.name in located]
    exact += _unreadable(pod, {name: shares for name, shares in located.items() if name not in known})
    return tuple(exact), tuple(each for each in asked.containers if each.name not in located)


def _located(pod: Pod, of: ContainerRequest, shares: tuple[GpuShare, ...]) -> Allocation:
    return Allocation(ContainerRef(pod.api_ref, of.name), of.role, of.request, shares, of.index)


def _unreadable(pod: Pod, located: Mapping[str, tuple[GpuShare, ...]]) -> Iterator[Allocation]:
    """Containers of a pod whose request cannot be read: it may have been placed by a version that could."""
    for name, shares in located.items():
        if (container := pod.container(name)) is not None:
            request = Request(container.cores, container.blocks, len(shares))
            yield _located(pod, ContainerRequest(name, container.role, container.index, request), shares)
