"""The agent's connection to the API server: it follows the cluster and answers the rest of the agent from memory.

In: a kubeconfig or the pod's service account. Out: the pods of this node, one pod by name, the cordon, events, the
node's labels and inventory. Registration with kubelet waits for nothing here: to import the client and read credentials
takes half a second, and the API server may be away for hours. Only credentials that can never work end the agent, with
an error that says why.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

import structlog

from deviceplugin.agent.mirror_pods import MirrorPods, as_static
from deviceplugin.errors import KubeNotFoundError, VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.cluster_nodes import cluster_nodes
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.events import EventRecorder
from deviceplugin.kube.node_publisher import NodePublisher
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.reflector import Reflector, StoreChange
from deviceplugin.kube.transport import Transport
from deviceplugin.kubelet.pods_client import KubeletPods
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import trusted_allocation
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames

log = structlog.get_logger("vcuda.agent")
_CORDON_WAIT_S = 0.5
_KUBELET_BUDGET_S = 1.0
_PROMISED_S = 1.0
_LOOK_AGAIN_S = 0.005
_WORDS_SHOWN = 8
_WORD_SHOWN = 60


class Cluster:
    """`run` until it is cancelled, then `close`; everything else may be called from the start."""

    def __init__(
        self,
        kubeconfig: Path | None,
        *,
        node: str,
        names: ResourceNames,
        labels: Mapping[str, str],
        share_mode: bool,
        inventory: Callable[[], Inventory | None],
        close_nvml: Callable[[bool], None],
        owners: Callable[[], Iterable[PodRef]],
    ) -> None:
        self.credentials = Credentials(kubeconfig)
        self.client = KubeClient(Transport(self.credentials), names=names)
        self.reflector = Reflector(self.client, pods_of_node(node, names))
        self.mirror_pods = MirrorPods(owners)
        self.cordon = Cordon(self.client, node=node, names=names, inventory=inventory, close_nvml=close_nvml)
        self.events = EventRecorder(self.client, node=node)
        self.publisher = NodePublisher(self.client, node=node, names=names, labels=labels, share_mode=share_mode)

    @property
    def is_synced(self) -> bool:
        return self.reflector.synced.is_set()

    async def run(self) -> None:
        await self.credentials.access()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.reflector.run(), name="pods")
            group.create_task(self.cordon.run(), name="cordon")
            group.create_task(self.events.run(), name="events")
            group.create_task(self.publisher.run(), name="node")

    async def close(self) -> None:
        """After every task that uses the client has ended."""
        await self.client.close()

    def pods(self) -> tuple[Pod, ...]:
        """This node's pods as far as the watch has come, by kubelet's UIDs; empty before."""
        return tuple(self.mirror_pods.resolved(self.reflector.items.values()))

    def pod(self, uid: PodUid) -> Pod | None:
        """By kubelet's UID."""
        if (found := self.reflector.items.get(uid)) is not None and not found.mirror_of:
            return found
        return next((pod for pod in self.pods() if pod.is_static and pod.ref.uid == uid), None)

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        """A pod that kubelet has under this name, None if there is none; raises KubeError."""
        try:
            found = await self.client.get_pod(PodRef(PodUid(""), namespace, name))
        except KubeNotFoundError:
            return None
        return as_static(found) if found.mirror_of else found


class NodePods:
    """Pods for kubelet's flows (`kubelet.allocate_context.Pods`): the watch first, then kubelet itself.

    `volcano` is the schedulerName of Volcano's pods where it asks vcuda about GPUs, otherwise empty.
    """

    def __init__(self, cluster: Cluster, kubelet: KubeletPods, *, names: AnnotationNames, volcano: str) -> None:
        self._cluster = cluster
        self._kubelet = kubelet
        self._names = names
        self._volcano = volcano

    def watched(self) -> Sequence[Pod]:
        return self._cluster.pods()

    async def find(self, uid: PodUid) -> Pod | None:
        return (await self.find_all({uid})).get(uid)

    async def find_all(self, uids: Set[PodUid]) -> dict[PodUid, Pod]:
        """Those of them that are shown; kubelet is asked at most once."""
        found = {uid: pod for uid in uids if (pod := self._cluster.pod(uid)) is not None}
        if found.keys() == uids:
            return found
        try:
            async with asyncio.timeout(_KUBELET_BUDGET_S):
                shown = await self._kubelet.fetch()
        except (TimeoutError, VcudaError):
            return found
        return {pod.ref.uid: pod for pod in shown if pod.ref.uid in uids} | found

    async def with_promised_gpus(self, pod: Pod) -> Pod:
        """A pod of Volcano gets its annotations after its Binding (`cluster.volcano.announcements`), so kubelet may ask
        before them. Without them the agent chooses, as it does while the API server is away."""
        if not self._volcano or pod.scheduler != self._volcano:
            return pod
        until = time.monotonic() + _PROMISED_S
        while trusted_allocation(pod, self._names).allocation is None and self._cluster.is_synced:
            if time.monotonic() > until:
                log.warning("gpus_not_promised", pod=str(pod.ref), effect="the agent chooses the pod's GPUs itself")
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
            if (found := self._cluster.pod(pod.ref.uid)) is not None:
                pod = replace(pod, annotations=found.annotations)
        return pod


class Cordon:
    """What the operator asks by annotations of this node: `vcuda-cordon` and `vcuda-close-nvml`. `run` until cancelled.

    If the API server is away, or does not let the agent watch its node, the last known cordon counts. Only a fresh
    agent knows none; its first Allocate waits a moment for it (`wait_known`).
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        names: ResourceNames,
        inventory: Callable[[], Inventory | None],
        close_nvml: Callable[[bool], None],
    ) -> None:
        self._reflector = Reflector(client, cluster_nodes(names, only=node))
        self._reflector.subscribe(self._changed)
        self._inventory = inventory
        self._close_nvml = close_nvml
        self._has_waited = False
        self._names: frozenset[str] = frozenset()

    async def run(self) -> None:
        await self._reflector.run()

    async def wait_known(self) -> None:
        """Waits for the first answer of the API server, once and at most 0.5 s: kubelet waits too."""
        if self._reflector.synced.is_set() or self._has_waited:
            return
        try:
            async with asyncio.timeout(_CORDON_WAIT_S):
                await self._reflector.synced.wait()
        except TimeoutError:
            log.warning("cordon_unknown", effect="GPUs are granted as if none were cordoned")
            self._has_waited = True

    @property
    def node(self) -> ClusterNode | None:
        """This node, as far as its watch has come."""
        return next(iter(self._reflector.items.values()), None)

    def gpus(self) -> frozenset[GpuUuid]:
        inventory, node = self._inventory(), self.node
        return node.cordoned(inventory) if node is not None and inventory is not None else frozenset()

    def _changed(self, change: StoreChange[ClusterNode]) -> None:
        self._close_nvml(change.item.close_nvml)
        if change.item.cordon != self._names:
            self._names = change.item.cordon
            log.info("cordon_changed", gpus=sorted(self._names))
            self._warn_unmatched(change.item)

    def _warn_unmatched(self, node: ClusterNode) -> None:
        inventory = self._inventory()
        if inventory is not None and (words := sorted(node.unmatched(inventory))):
            listed = ", ".join(word[:_WORD_SHOWN] for word in words[:_WORDS_SHOWN])
            text = f"no GPU of this node is named {listed}; write UUIDs or minor numbers into the cordon"
            log.warning("cordon_unmatched", error=text)
