"""A pod as placement and identity need it: its containers in kubelet's order and what each asks for.

In: `kube.pods` decodes it from the API server's and from kubelet's JSON alike. Not here: anything about who holds what.
Kubelet admits init containers first, in spec order, then app containers in spec order; `containers` keeps that order.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from deviceplugin.model.allocation import ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.units import Compute, Resource

_NAMES = (
    "scheduling.volcano.sh/group-name",
    "scheduling.k8s.io/group-name",
    "gang.scheduling.koordinator.sh/name",
    "scheduling.x-k8s.io/pod-group",
)


@dataclass(frozen=True, slots=True)
class Gang:
    """`waits`: members that have a node are held at Permit until all have one, for minutes.

    Kubernetes' own pod groups (`spec.schedulingGroup`) are placed as a whole in one cycle, and none of them waits.
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
    """`group` is spec.schedulingGroup's (1.36); `workload` spec.workloadRef's name, group and replica (1.35)."""
    if group:
        return Gang(namespace, group, waits=False)
    if workload[0]:
        return Gang(namespace, "/".join(part for part in workload if part))
    for texts in (annotations, labels):
        for name in _NAMES:
            if found := texts.get(name):
                return Gang(namespace, found)
    return None


class ContainerState(enum.Enum):
    """The last state that kubelet reported; UNKNOWN before the first report."""

    UNKNOWN = "unknown"
    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class PodContainer:
    """One container: `cores` and `blocks` are its limits, `index` its place among the containers of its own list.

    `runtime_id` is the container runtime's, without the runtime's name; empty before kubelet has reported one.
    """

    ref: ContainerRef
    role: ContainerRole
    index: int
    cores: int = 0
    blocks: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    state: ContainerState = ContainerState.UNKNOWN
    waiting_reason: str = ""
    waiting_message: str = ""
    restarts: int = 0
    runtime_id: str = ""

    def wants(self, resource: Resource) -> int:
        return self.cores if resource is Resource.CORE else self.blocks

    @property
    def is_gpu(self) -> bool:
        return bool(self.cores or self.blocks)


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod bound to this node. Times are Unix seconds, 0.0 where unknown.

    `ref.uid` is the UID that kubelet uses. The mirror of a static pod has another one at the API server: `api_uid`,
    empty where this pod is known from kubelet alone. `annotations` holds those of our domain, and `clusterName`.
    """

    ref: PodRef
    containers: tuple[PodContainer, ...]
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    node: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    seen_by_kubelet: float = 0.0  # annotation kubernetes.io/config.seen, only in kubelet's own answers
    deleting: bool = False
    owner_kind: str = ""
    resource_version: str = ""
    api_uid: str = ""
    is_static: bool = False

    @property
    def api_ref(self) -> PodRef:
        """How to name this pod to the API server; without a UID where only kubelet's is known."""
        return PodRef(uid=PodUid(self.api_uid), namespace=self.ref.namespace, name=self.ref.name)

    @property
    def is_terminal(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}

    @property
    def is_gpu(self) -> bool:
        return any(container.is_gpu for container in self.containers)

    def container(self, name: str) -> PodContainer | None:
        return next((container for container in self.containers if container.ref.name == name), None)


@dataclass(frozen=True, slots=True)
class ScheduledCondition:
    """The pod's condition PodScheduled; `reason` such as Unschedulable or SchedulerError where it is not true.

    `text` is a hash of its message: another message is another refusal. `message` is its beginning, for people.
    """

    is_true: bool
    reason: str = ""
    text: int = 0
    message: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """`nominated_node`: kube-scheduler keeps room for the pod there until its victims have gone.

    `needs` is None where nobody has told us.
    """

    pod: Pod
    scheduler: str = ""
    priority: int = 0
    nominated_node: str = ""
    gang: Gang | None = None
    condition: ScheduledCondition | None = None
    needs: Compute | None = None

    @property
    def uid(self) -> PodUid:
        """The API server's, which kube-scheduler uses too; that of a static pod is another one than kubelet's."""
        return PodUid(self.pod.api_uid)

    @property
    def is_refused(self) -> bool:
        """The scheduler has given up on it for now: whatever was reserved for it may go to others."""
        return self.condition is not None and not self.condition.is_true


@dataclass(frozen=True, slots=True)
class PlainPod:
    """`needs` is None where it cannot be read."""

    uid: PodUid
    node: str
    needs: Compute | None
