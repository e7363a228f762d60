"""The agent's connection to the API server: it follows the cluster and answers the rest of the agent from memory.

In: a kubeconfig or the pod's service account; kubelet's lists of pods, the owners in the ledger. Out: the pods of this
node, one pod by name, what their annotations ask of the node, the cordon, events, the node's labels and inventory.
Registration with kubelet waits for nothing here: to import the client and read credentials takes half a second, and the
API server may be away for hours. Only credentials that can never work end the agent, with an error that says why.

`PodHints` are the GPUs that a scheduler chose for a container, and its limits. A hint is followed if it fits. An
annotation that cannot be read or trusted (`model.annotations`) counts as missing and is logged, at most once a minute
for each pod: its author may change it without pause.

`MirrorPods` shows static pods by the UID that kubelet uses. Kubelet runs them under UIDs of its own and shows each at
the API server as a mirror pod, which has another UID there and kubelet's in an annotation. Everybody who may create
pods can write that annotation, with the UID of any pod. Invariant: a pod counts as a mirror only if a node owns it, and
if kubelet has listed a static pod with this name and UID, or the ledger knows one. Other pods with the annotation are
left out: kubelet runs none of them.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

import structlog

from deviceplugin.errors import KubeNotFoundError, ParseError, VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.cluster_objects import cluster_nodes
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.events import EventRecorder
from deviceplugin.kube.node_publisher import NodePublisher
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.reflector import Reflector, StoreChange
from deviceplugin.kube.transport import Transport
from deviceplugin.kubelet.identity_sources import KubeletPods
from deviceplugin.log import Pace
from deviceplugin.model import annotations as text
from deviceplugin.model.allocation import ContainerRole, PodRef, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import trusted_allocation, trusted_minors
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.pod import (
    NO_LIMITS,
    NO_MEMORY_LIMITS,
    PerContainer,
    Pod,
    PodContainer,
    PodLimits,
    parse_memory_limits,
)
from deviceplugin.model.preferences import parse_preferences
from deviceplugin.model.units import ResourceNames
from deviceplugin.structs import replace


class MirrorPods:
    """`owners`: of the grants in the ledger. A static pod that kubelet does not list any more may still be stopping."""

    def __init__(self, owners: Callable[[], Iterable[PodRef]]) -> None:
        self._owners = owners
        self._listed: dict[PodUid, PodRef] = {}

    def kubelet_lists(self, pods: Iterable[Pod]) -> None:
        """What kubelet answers each time. Only a changed file makes another static pod, so nothing is forgotten."""
        self._listed |= {pod.ref.uid: pod.ref for pod in pods if pod.is_static}

    def resolved(self, watched: Iterable[Pod]) -> Iterator[Pod]:
        """These pods, each by kubelet's UID."""
        for pod in watched:
            if not pod.mirror_of:
                yield pod
            elif self._is_confirmed(pod):
                yield as_static(pod)

    def _is_confirmed(self, pod: Pod) -> bool:
        claim = replace(pod.ref, uid=pod.mirror_of)
        return pod.owner_kind == "Node" and (self._listed.get(claim.uid) == claim or claim in self._owners())


def as_static(mirror: Pod) -> Pod:
    """The static pod, with what the API server says about it."""
    ref = replace(mirror.ref, uid=mirror.mirror_of)
    containers = tuple(replace(each, ref=replace(each.ref, pod=ref)) for each in mirror.containers)
    return replace(mirror, ref=ref, containers=containers, is_static=True)


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
            log.warning("cordon_unknown", effect="GPUs are allocated as if none were cordoned")
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


class PodHints:
    """Reads the annotations of one domain; `inventory` is read at each call."""

    def __init__(self, names: AnnotationNames, inventory: Callable[[], Inventory]) -> None:
        self._names = names
        self._inventory = inventory
        self._pace = Pace()

    def scheduled_gpus(self, pod: Pod, container: PodContainer) -> frozenset[GpuUuid]:
        """Empty if no scheduler chose, or if a chosen GPU is not on this node."""
        if not pod.annotations:
            return frozenset()
        try:
            chosen = self._by_uuid(pod, container) or self._by_minor(pod, container)
        except ParseError as error:
            self._ignored(pod, error.message)
            return frozenset()
        return chosen if chosen <= {gpu.uuid for gpu in self._inventory().gpus} else frozenset()

    def written_limits(self, pod: Pod) -> tuple[str | None, str | None]:
        """The annotations that `limits` reads."""
        return pod.annotations.get(self._names.core_limit), pod.annotations.get(self._names.memory_limit)

    def limits(self, pod: Pod, container: str) -> PodLimits:
        if self.written_limits(pod) == (None, None):
            return NO_LIMITS
        return PodLimits(self._soft_cores(pod), self._memory_limits(pod).of(container))

    def _soft_cores(self, pod: Pod) -> int:
        written = pod.annotations.get(self._names.core_limit)
        try:
            return 0 if written is None else text.parse_core_limit(written)
        except ParseError as error:
            self._ignored(pod, error.message)
            return 0

    def _memory_limits(self, pod: Pod) -> PerContainer:
        try:
            return parse_memory_limits(pod.annotations, self._names)
        except ParseError as error:
            self._ignored(pod, error.message)
            return NO_MEMORY_LIMITS

    def predicate_time(self, pod: Pod) -> int | None:
        """Nanoseconds; raises ParseError."""
        written = pod.annotations.get(self._names.predicate_time)
        return None if written is None else text.parse_predicate_time(written)

    def _by_uuid(self, pod: Pod, container: PodContainer) -> frozenset[GpuUuid]:
        trusted = trusted_allocation(pod, self._names)
        if trusted.doubt:
            self._ignored(pod, trusted.doubt)
        return frozenset(share.uuid for share in trusted.shares_of(container))

    def _by_minor(self, pod: Pod, container: PodContainer) -> frozenset[GpuUuid]:
        """gpu-manager's schedulers do not know the pod's filter, so a choice against it is none."""
        if container.role is not ContainerRole.APP:
            return frozenset()
        minors = set(trusted_minors(pod, container.index, self._names))
        wanted = parse_preferences(pod.annotations, self._names).gpus
        chosen = [gpu for gpu in self._inventory().gpus if gpu.minor in minors]
        admitted = all(wanted.admits_uuid(gpu.uuid) and wanted.admits_model(gpu.model) for gpu in chosen)
        return frozenset(gpu.uuid for gpu in chosen) if admitted and len(chosen) == len(minors) else frozenset()

    def _ignored(self, pod: Pod, why: str) -> None:
        if self._pace.allows(pod.ref.uid):
            log.warning("annotation_ignored", pod=str(pod.ref), error=why)
