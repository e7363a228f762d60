"""What the cluster's side reads of pods and nodes beyond `structs`, and what of them it leaves out.

In: bytes from the API server. Out: structs for `cluster_pods` and `cluster_nodes`. Of what containers do
only the CPU and memory is read that they run with. Of pods without GPUs the least is read: nearly all pods are of them.
"""

from deviceplugin.kube.structs import Amounts, HeadMeta, Json, Object, PodSpec


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
