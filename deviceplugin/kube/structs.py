"""What we read of the API server's JSON, as msgspec structs; everything else in it is skipped without allocation.

In: bytes from the API server or from kubelet. Out: structs for `pods`, `node` and `client`, or ParseError. Nothing
outside `kube` sees them. Every field may be missing or null: kubelet writes null for an empty list.
"""

from typing import TypeVar

import msgspec

from deviceplugin.errors import ParseError

Decoded = TypeVar("Decoded")


class Json(msgspec.Struct, rename="camel"):
    """Kubernetes writes its keys in camel case."""


class OwnerReference(Json):
    """Who made an object; one of its owners may be the controller."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Meta(Json):
    """metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class Object(Json):
    """Any object: what lists and watches need of it. The schemas of single kinds add to it."""

    metadata: Meta


class HeadMeta(Json):
    """The least of metadata: labels and annotations are skipped."""

    uid: str = ""
    resource_version: str = ""


class Head(Json):
    """An object of which no more is wanted."""

    metadata: HeadMeta


class EnvVar(Json):
    """One environment variable; `value` is null where it comes from elsewhere."""

    name: str
    value: str | None = None


class Amounts(Json):
    """CPU and memory out of a list of resources, as written."""

    cpu: str | int | None = None
    memory: str | int | None = None


class Resources(Json):
    """Limits and requests as written: quantities. The API server sets requests where only limits were given."""

    limits: dict[str, str | int] | None = None
    requests: Amounts | None = None


class ContainerSpec(Json):
    """A container of a pod's spec."""

    name: str
    env: list[EnvVar] | None = None
    resources: Resources | None = None
    restart_policy: str | None = None


class Waiting(Json):
    """Why a container waits."""

    reason: str | None = None
    message: str | None = None


class Empty(Json):
    """An object of which only the presence counts."""


class State(Json):
    """One of the three is set."""

    waiting: Waiting | None = None
    running: Empty | None = None
    terminated: Empty | None = None


class ContainerStatus(Json):
    """What kubelet last reported of a container."""

    name: str
    state: State | None = None
    restart_count: int = 0
    container_id: str | None = msgspec.field(default=None, name="containerID")


class PodSpec(Json):
    """spec of a pod."""

    containers: list[ContainerSpec] | None = None
    init_containers: list[ContainerSpec] | None = None
    node_name: str | None = None


class PodStatus(Json):
    """status of a pod."""

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class PodObject(Object):
    """A pod."""

    spec: PodSpec | None = None
    status: PodStatus | None = None


class ListMeta(Json):
    """metadata of a list: its version, and the token of its next page."""

    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class Page(Json):
    """A page of any list; each item is read on its own."""

    items: list[msgspec.Raw] | None = None
    metadata: ListMeta | None = None


class StatusObject(Json):
    """The API server's refusal."""

    message: str | None = None
    reason: str | None = None
    code: int | None = None


class WatchLine(Json):
    """One line of a watch; what `object` is depends on `type`."""

    type: str
    object: msgspec.Raw


def decode(type_: type[Decoded], body: bytes | msgspec.Raw, *, what: str) -> Decoded:
    """JSON into a struct; anything else is one ParseError that names `what` and the place."""
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"{what} cannot be read: {str(error)[:200]}") from None


class SchedulingGroup(Json):
    """spec.schedulingGroup of 1.36."""

    pod_group_name: str | None = None


class WorkloadRef(Json):
    """spec.workloadRef of 1.35."""

    name: str | None = None
    pod_group: str | None = None
    pod_group_replica_key: str | None = None


class Requests(Json):
    """Resources of which no more than CPU and memory is wanted."""

    requests: Amounts | None = None


class ResizedStatus(Json):
    """What a container runs with, which differs from its spec while it is being resized."""

    name: str = ""
    resources: Requests | None = None
    allocated_resources: Amounts | None = None


class ClusterPodSpec(PodSpec):
    """spec of a pod with what schedulers say and read."""

    resources: Requests | None = None
    overhead: Amounts | None = None
    scheduler_name: str | None = None
    priority: int | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadRef | None = None


class Condition(Json):
    """A condition of a pod or a node."""

    type: str
    status: str = ""
    reason: str | None = None
    message: str | None = None


class ClusterPodStatus(Json):
    """status of a pod without what its containers do."""

    phase: str | None = None
    reason: str | None = None
    nominated_node_name: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ResizedStatus] | None = None
    init_container_statuses: list[ResizedStatus] | None = None


class ClusterPodObject(Object):
    """A pod anywhere in the cluster."""

    spec: ClusterPodSpec | None = None
    status: ClusterPodStatus | None = None


class PlainContainer(Json):
    """A container of a pod without GPUs."""

    name: str = ""
    resources: Requests | None = None
    restart_policy: str | None = None


class PlainSpec(Json):
    """spec of a pod without GPUs."""

    node_name: str | None = None
    containers: list[PlainContainer] | None = None
    init_containers: list[PlainContainer] | None = None
    resources: Requests | None = None
    overhead: Amounts | None = None


class PlainCondition(Json):
    """A condition of such a pod."""

    type: str = ""
    reason: str | None = None


class PlainStatus(Json):
    """status of such a pod."""

    conditions: list[PlainCondition] | None = None
    container_statuses: list[ResizedStatus] | None = None
    init_container_statuses: list[ResizedStatus] | None = None


class PlainPodObject(Json):
    """A pod of which no more is wanted than where it is and what it takes there."""

    metadata: HeadMeta
    spec: PlainSpec | None = None
    status: PlainStatus | None = None


class NodeSpec(Json):
    """spec of a node."""

    unschedulable: bool | None = None


class NodeStatus(Json):
    """status of a node."""

    allocatable: dict[str, str | int] | None = None
    conditions: list[Condition] | None = None


class ClusterNodeObject(Object):
    """A node of the cluster."""

    spec: NodeSpec | None = None
    status: NodeStatus | None = None
