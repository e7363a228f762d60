"""What the cluster's side reads of pods and nodes beyond `structs`, and what of them it leaves out.

In: bytes from the API server. Out: structs for `cluster_pods` and `cluster_nodes`. What containers do is not read.
"""

from deviceplugin.kube.structs import Json, Object, PodSpec


class SchedulingGroup(Json):
    """spec.schedulingGroup of 1.36."""

    pod_group_name: str | None = None


class WorkloadRef(Json):
    """spec.workloadRef of 1.35."""

    name: str | None = None
    pod_group: str | None = None
    pod_group_replica_key: str | None = None


class ClusterPodSpec(PodSpec):
    """spec of a pod with what schedulers say and read."""

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
    """status of a pod without its containers."""

    phase: str | None = None
    reason: str | None = None
    nominated_node_name: str | None = None
    conditions: list[Condition] | None = None


class ClusterPodObject(Object):
    """A pod anywhere in the cluster."""

    spec: ClusterPodSpec | None = None
    status: ClusterPodStatus | None = None


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
