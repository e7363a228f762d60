"""The requests to the API server that the agent needs.

In: references, annotations, events. Out: pods, nodes, claims and slices as values; errors as in `objects`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deviceplugin.kube.collection import ObjectKind
from deviceplugin.kube.objects import ObjectClient, ObjectRef
from deviceplugin.kube.pods import pod_kind
from deviceplugin.kube.resource_claims import CLAIMS, STATED_CLAIMS, with_devices
from deviceplugin.kube.resource_slices import SLICES, NodeSlice, owned_slice
from deviceplugin.kube.structs import Json, Object
from deviceplugin.kube.transport import Transport
from deviceplugin.model.allocation import PodRef
from deviceplugin.model.claims import Claim, ClaimRef, DeviceStatus
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames

Texts = Mapping[str, str | None]
"""Labels or annotations to set; None removes one."""


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """What the agent may change of a node's metadata."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def _node(found: Object) -> NodeMetadata:
    return NodeMetadata(found.metadata.labels or {}, found.metadata.annotations or {})


_NODES = ObjectKind("v1", "nodes", "Node", "node", Object, _node)
_EVENTS = ObjectKind("v1", "events", "Event", "event", Json, lambda _: None)


class KubeClient(ObjectClient):
    """The only way of the agent to the API server."""

    def __init__(self, transport: Transport, *, names: ResourceNames = ResourceNames()) -> None:
        super().__init__(transport)
        self._pods = pod_kind(names)

    async def get_pod(self, pod: PodRef) -> Pod:
        return await self.get(self._pods, pod)

    async def patch_pod_annotations(self, pod: PodRef, annotations: Texts) -> Pod:
        change = {"metadata": {"annotations": dict(annotations)}}
        return await self.patch(self._pods, pod, change, what=f"annotate pod {pod}")

    async def delete_pod(self, pod: PodRef, *, grace_seconds: int | None = None) -> None:
        await self.delete(self._pods, pod, grace_seconds=grace_seconds)

    async def get_node(self, name: str) -> NodeMetadata:
        return await self.get(_NODES, ObjectRef("", name))

    async def patch_node(self, name: str, *, labels: Texts, annotations: Texts) -> NodeMetadata:
        change = {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}}
        return await self.patch(_NODES, ObjectRef("", name), change, what=f"label node {name}")

    async def get_claim(self, claim: ClaimRef) -> Claim:
        return await self.get(CLAIMS, claim)

    async def show_devices(self, claim: ClaimRef, driver: str, shown: Sequence[DeviceStatus]) -> None:
        """Replaces what the driver says in `status.devices`; what others say stays.

        Raises KubeConflictError if the claim changed meanwhile, KubeNotFoundError if it is gone.
        """
        found = await self.get(STATED_CLAIMS, claim)
        change = with_devices(found, driver, shown)
        if change is not None:
            what = f"show the devices of claim {claim}"
            await self.patch(STATED_CLAIMS, claim, change, what=what, part=("status",))

    async def create_slice(self, node: ClusterNode, spec: Mapping[str, object]) -> NodeSlice:
        """Owned by the node, so that it goes with it."""
        return await self.create(SLICES, "", owned_slice(node, spec), what="create a ResourceSlice")

    async def replace_slice(self, old: NodeSlice, spec: Mapping[str, object]) -> NodeSlice:
        """Raises KubeConflictError if it has changed since it was read, KubeNotFoundError if it is gone."""
        change = {"metadata": {"name": old.name, "resourceVersion": old.version}, "spec": spec}
        return await self.patch(SLICES, ObjectRef("", old.name, old.uid), change, what="change a ResourceSlice")

    async def delete_slice(self, old: NodeSlice) -> None:
        await self.delete(SLICES, ObjectRef("", old.name, old.uid))

    async def create_event(self, namespace: str, event: Mapping[str, object]) -> None:
        await self.create(_EVENTS, namespace, event, what="create an event")

    async def patch_event(self, namespace: str, name: str, change: Mapping[str, object]) -> None:
        await self.patch(_EVENTS, ObjectRef(namespace, name), change, what="count an event")
