"""The fields of Kubernetes' objects that `vcuda doctor` looks at.

In: JSON of the API server. Out: structs, and the kinds by which they are read. A pod of vcuda's own has a schema of its
own: ports, images, restarts and kubelet's words would cost the agents time and memory for every pod, if they stood in
theirs.
"""

import msgspec

from deviceplugin.errors import one_line
from deviceplugin.kube.collection import ObjectKind
from deviceplugin.kube.structs import ClusterNodeObject, Json, Object


class _ControllerSpec(Json):
    replicas: int | None = None


class _ControllerStatus(Json):
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0


class Controller(Object):
    """A Deployment or a DaemonSet."""

    spec: _ControllerSpec = msgspec.field(default_factory=_ControllerSpec)
    status: _ControllerStatus = msgspec.field(default_factory=_ControllerStatus)


class _WaitingState(Json):
    reason: str | None = None
    message: str | None = None


class _ContainerState(Json):
    waiting: _WaitingState | None = None


class _ContainerStatus(Json):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    state: _ContainerState | None = None


class _PodCondition(Json):
    type: str = ""
    status: str = ""


class _ContainerPort(Json):
    name: str = ""
    container_port: int = 0


class _OwnContainer(Json):
    name: str = ""
    image: str = ""
    ports: list[_ContainerPort] | None = None


class _PodSpec(Json):
    node_name: str | None = None
    containers: list[_OwnContainer] | None = None
    init_containers: list[_OwnContainer] | None = None


class _PodStatus(Json):
    phase: str = ""
    conditions: list[_PodCondition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class OwnPod(Object):
    """A pod of the agent or of the scheduler."""

    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def is_ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions or ())

    def port(self, name: str) -> int:
        """0 if no container has a port of this name."""
        ports = [each for one in self.spec.containers or () for each in one.ports or ()]
        return next((each.container_port for each in ports if each.name == name), 0)

    @property
    def image(self) -> str:
        """That of the container of ours, by its digest where it is known; empty before it runs."""
        every = [*(self.status.container_statuses or ()), *(self.status.init_container_statuses or ())]
        return next((each.image_id or each.image for each in every if each.name in ("agent", "extender")), "")

    @property
    def restarts(self) -> dict[str, int]:
        """By container; of those that kubelet knows."""
        every = [*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ())]
        return {each.name: each.restart_count for each in every}

    @property
    def images(self) -> dict[str, str]:
        """By container; the agent's driver and the scheduler's kube-scheduler can be of other images."""
        return {each.name: each.image for each in (*(self.spec.init_containers or ()), *(self.spec.containers or ()))}

    @property
    def waits(self) -> dict[str, str]:
        """By container, in the order of their start: why kubelet does not start it, in its words."""
        every = [*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ())]
        waiting = [(each.name, each.state.waiting) for each in every if each.state and each.state.waiting]
        return {
            name: f"{state.reason}{': ' if state.message else ''}{one_line(state.message or '')}"
            for name, state in waiting
            if state.reason not in (None, "PodInitializing", "ContainerCreating")
        }

    @property
    def trouble(self) -> str:
        """Why a container does not run, as kubelet says it."""
        if waits := self.waits:
            return " ".join(next(iter(waits.items())))
        every = [*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ())]
        return next((f"{each.name} is not ready" for each in every if not each.ready), self.status.phase)


DEPLOYMENTS = ObjectKind("apps/v1", "deployments", "Deployment", "deployment", Controller, lambda found: found)
DAEMON_SETS = ObjectKind("apps/v1", "daemonsets", "DaemonSet", "daemon set", Controller, lambda found: found)
OWN_PODS = ObjectKind("v1", "pods", "Pod", "pod", OwnPod, lambda found: found)
NAMESPACES = ObjectKind("v1", "namespaces", "Namespace", "namespace", Object, lambda found: found.metadata.labels or {})
NODES = ObjectKind("v1", "nodes", "Node", "node", ClusterNodeObject, lambda found: found)
