"""Pods as placement, identity and the scheduler need them: containers in kubelet's order, their requests and limits.

In: `kube.pods` decodes `Pod` from the JSON of the API server and of kubelet; `kube.cluster_objects` decodes
`ClusterPod`, and `PlainPod` for pods without GPUs. Not here: who has what. Kubelet admits init containers first, in
spec order, then app containers in spec order; `containers` keeps that order.

`PodLimits` are what a pod's annotations give its containers within and beside what the scheduler grants. Neither takes
anything from other containers: a soft limit is idle time, and a limit of memory only lowers what was granted. So both
can change while the pod runs. An annotation gives a number to every container or to some by name (`PerContainer`: `2`,
or `main=2,side=3`; later items win), and a ParseError says what to write.
"""

import enum
import re
from collections.abc import Mapping

import msgspec
from msgspec.structs import force_setattr

from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.claims import ContainerClaim, PodClaim
from deviceplugin.model.preferences import list_items
from deviceplugin.model.units import BLOCK_BYTES, MIB, Compute, Resource

NO_UID = PodUid("")
_GATED = "SchedulingGated"
_LONGEST_NAME = 253  # of an object; an annotation may hold more, which names none
_NAMES = (
    "scheduling.volcano.sh/group-name",
    "scheduling.k8s.io/group-name",
    "gang.scheduling.koordinator.sh/name",
    "scheduling.x-k8s.io/pod-group",
)


class Gang(msgspec.Struct, frozen=True):
    """Pods that start together or not at all. `waits`: members with a node wait at Permit until all have one.

    Kubernetes' own pod groups (`spec.schedulingGroup`) are placed in one cycle, and no member waits.
    """

    namespace: str
    name: str
    waits: bool = True

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def gang_of(
    namespace: str,
    *,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    group: str = "",
    workload: tuple[str, str, str] = ("", "", ""),
) -> Gang | None:
    """`group` is from spec.schedulingGroup (1.36); `workload` is name, group and replica of spec.workloadRef (1.35).

    The number of members is in objects that only their scheduler reads.
    """
    if group:
        return Gang(namespace, group, waits=False)
    if workload[0]:
        return Gang(namespace, "/".join(part for part in workload if part))
    for texts in (annotations, labels):
        for name in _NAMES:
            if (found := texts.get(name)) and len(found) <= _LONGEST_NAME:
                return Gang(namespace, found)
    return None


class ContainerState(enum.Enum):
    """The last state that kubelet reported; UNKNOWN before the first report."""

    UNKNOWN = "unknown"
    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


class PodContainer(msgspec.Struct, frozen=True):
    """One container: `cores` and `blocks` are its limits, `index` is its position in its own list.

    `runtime_id` is the ID of the container runtime, without its name; empty before kubelet reports it.
    `has_volume_over_compat`: see `model.allocation.covers_compat`. `claims`: of those whose ResourceClaim exists.
    """

    ref: ContainerRef
    role: ContainerRole
    index: int
    cores: int = 0
    blocks: int = 0
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    state: ContainerState = ContainerState.UNKNOWN
    runtime_id: str = ""
    has_volume_over_compat: bool = False
    claims: tuple[ContainerClaim, ...] = ()

    def wants(self, resource: Resource) -> int:
        return self.cores if resource is Resource.CORE else self.blocks

    @property
    def is_gpu(self) -> bool:
        return bool(self.cores or self.blocks)


class Pod(msgspec.Struct, frozen=True):
    """One pod bound to this node. Times are Unix seconds, 0.0 if unknown.

    `ref.uid` is the UID that kubelet uses. The mirror of a static pod has another one at the API server: `api_uid`,
    empty if only kubelet knows the pod. `mirror_of` is what a pod of the API server says of itself: it is the mirror of
    the static pod with this UID. Everybody can write that (see `agent.cluster.MirrorPods`). `annotations` has those
    that vcuda reads; where a user wrote more than it keeps of a pod, those of the user are left out, and `unread_bytes`
    is their size. `annotation_bytes` is the size of all that it has, names and values. `scheduler` is its
    schedulerName. `has_unread_claims`: its containers name more claims than are read (`model.claims`).
    """

    ref: PodRef
    containers: tuple[PodContainer, ...]
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    node: str = ""
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotation_bytes: int = 0
    unread_bytes: int = 0
    created: float = 0.0
    seen_by_kubelet: float = 0.0  # annotation kubernetes.io/config.seen, only in kubelet's own answers
    deleting: bool = False
    owner_kind: str = ""
    resource_version: str = ""
    api_uid: str = ""
    is_static: bool = False
    mirror_of: PodUid = NO_UID
    scheduler: str = ""
    has_unread_claims: bool = False

    @property
    def api_ref(self) -> PodRef:
        """The reference for the API server; without a UID if only kubelet's is known."""
        return PodRef(uid=PodUid(self.api_uid), namespace=self.ref.namespace, name=self.ref.name)

    @property
    def is_terminal(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}

    @property
    def is_gpu(self) -> bool:
        return any(container.is_gpu for container in self.containers)

    def container(self, name: str) -> PodContainer | None:
        return next((container for container in self.containers if container.ref.name == name), None)


class ScheduledCondition(msgspec.Struct, frozen=True):
    """The condition PodScheduled; if it is not true, `reason` is for example Unschedulable or SchedulerError.

    `text` is a hash of the message: another message is another rejection. `message` is its beginning, for users.
    """

    is_true: bool
    reason: str = ""
    text: int = 0
    message: str = ""


class ClusterPod(msgspec.Struct, frozen=True):
    """A pod with GPUs as the scheduler needs it. `needs` is None if it is unknown.

    `uid` is that of the API server and kube-scheduler; for a static pod kubelet uses another one.
    While it has `gates`, the names of its scheduling gates, no scheduler looks at it.
    On `nominated_node` kube-scheduler keeps capacity for the pod until its victims have ended. `claims` and
    `whole_gpus`, by container the number of `vcuda-gpu`, are only read for the views of claims. `soft_rules`: what it
    prefers of nodes (`model.preferences`).
    """

    pod: Pod
    priority: int = 0
    nominated_node: str = ""
    gang: Gang | None = None
    condition: ScheduledCondition | None = None
    needs: Compute | None = None
    gates: tuple[str, ...] = ()
    claims: tuple[PodClaim, ...] = ()
    whole_gpus: tuple[tuple[str, int], ...] = ()
    soft_rules: tuple[str, ...] = ()
    uid: PodUid = PodUid("")

    def __post_init__(self) -> None:
        force_setattr(self, "uid", PodUid(self.pod.api_uid))

    @property
    def scheduler(self) -> str:
        return self.pod.scheduler

    @property
    def has_claims(self) -> bool:
        """Whether it asks for devices by ResourceClaims, whose class may be another driver's."""
        return bool(self.claims or self.whole_gpus)

    @property
    def is_refused(self) -> bool:
        """The scheduler has rejected it for now: its reservations may go to other pods.

        The API server's condition of a pod with gates stays until a scheduler has looked at the pod.
        """
        condition = self.condition
        return condition is not None and not condition.is_true and condition.reason != _GATED


class PlainPod(msgspec.Struct, frozen=True):
    """A pod without GPUs on a node: it takes CPU and memory. A cluster may have 100,000, so it has few fields.

    `needs` is None if it cannot be parsed.
    """

    uid: PodUid
    node: str
    needs: Compute | None


_ITEM = re.compile(r"(?:([a-z0-9]([-a-z0-9]*[a-z0-9])?)=)?([0-9]{1,10})", re.ASCII)


class PerContainer(msgspec.Struct, frozen=True):
    """By a container's name, else `every`."""

    every: int
    by_name: Mapping[str, int] = msgspec.field(default_factory=dict)

    def of(self, container: str) -> int:
        return self.by_name.get(container, self.every)


def parse_per_container(text: str, annotation: str, *, absent: int, most: int, wanted: str) -> PerContainer:
    """Numbers from 1 to `most`; `absent` is that of a container which is not named. `wanted` ends the error."""
    every, by_name = absent, {}
    for item in list_items(text, annotation):
        found = _ITEM.fullmatch(item.strip())
        number = int(found.group(3)) if found else 0
        if found is None or not 1 <= number <= most:
            raise ParseError(
                f"annotation {annotation} holds {text[:60]!r}; write {wanted} from 1 to {most}, "
                "or container=number for some containers"
            )
        if found.group(1):
            by_name[found.group(1)] = number
        else:
            every = number
    return PerContainer(every, by_name)


def format_per_container(by_name: Mapping[str, int]) -> str:
    return ",".join(f"{name}={by_name[name]}" for name in sorted(by_name))


MOST_MIB = 1 << 24  # 16 TiB: more was probably meant in bytes
NO_MEMORY_LIMITS = PerContainer(0)


class PodLimits(msgspec.Struct, frozen=True):
    """Of one container. `soft_cores`: percent of a GPU, 0 if cores are a hard limit. `memory_mib` of each GPU: 0 if
    all that was granted may be used."""

    soft_cores: int = 0
    memory_mib: int = 0

    def memory_bytes(self, blocks: int) -> int:
        """What may be used of so many granted blocks of one GPU."""
        granted = blocks * BLOCK_BYTES
        return min(granted, self.memory_mib * MIB) if self.memory_mib else granted


NO_LIMITS = PodLimits()


def parse_memory_limits(annotations: Mapping[str, str], names: AnnotationNames) -> PerContainer:
    """MiB of each GPU of a container: `5000` for all containers of the pod, `main=5000,side=300` for some."""
    text = annotations.get(names.memory_limit)
    if text is None:
        return NO_MEMORY_LIMITS
    return parse_per_container(
        text, names.memory_limit, absent=0, most=MOST_MIB, wanted="the MiB of each GPU, 4096 for 4 GiB,"
    )
