"""Watches every node and pod of the cluster for the extender and the webhook.

In: the API server. Out: calls of `Extender.put_*` and `drop_*`, and the known GPUs for the webhook. `synced` is
set when both lists are in the cache and each node was calculated once.
"""

import asyncio
import time
from collections.abc import Iterator

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.cluster_nodes import cluster_nodes
from deviceplugin.kube.cluster_pods import AnyPod, cluster_pods
from deviceplugin.kube.collection import EventKind
from deviceplugin.kube.reflector import Reflector, StoreChange
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.pod import PlainPod
from deviceplugin.model.units import ResourceNames


class ClusterWatch:
    """`run` runs until it is cancelled."""

    def __init__(self, client: ClusterClient, extender: Extender, *, names: ResourceNames) -> None:
        self._extender = extender
        self._nodes: Reflector[str, ClusterNode] = Reflector(client, cluster_nodes(names))
        self._pods: Reflector[PodUid, AnyPod] = Reflector(client, cluster_pods(names))
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)
        self._known: KnownGpus | None = None
        self.synced = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(), name="nodes")
            group.create_task(self._pods.run(), name="pods")
            await self._nodes.synced.wait()
            await self._pods.synced.wait()
            self._extender.warm_up()
            self.synced.set()

    @property
    def known(self) -> KnownGpus:
        """Calculated again after a node has changed."""
        if self._known is None:
            cache = self._extender.cache.nodes.values()
            self._known = KnownGpus.of(node_info.inventory for node_info in cache if node_info.inventory is not None)
        return self._known

    def missing(self) -> tuple[str, ...]:
        """What is not listed yet, as phrases for `/readyz`."""
        waited = (("nodes", self._nodes), ("pods", self._pods))
        listed = tuple(f"the cluster's {what} are not listed yet" for what, each in waited if not each.synced.is_set())
        return listed or (() if self.synced.is_set() else ("the scheduler's cache is not complete yet",))

    def last_events(self) -> Iterator[tuple[tuple[str], float]]:
        """Unix time of the last event by kind of object, as rows of a metric."""
        for what, watch in (("nodes", self._nodes), ("pods", self._pods)):
            if (age := watch.last_event_age) is not None:
                yield (what,), time.time() - age

    def _node_changed(self, change: StoreChange[ClusterNode]) -> None:
        self._known = None
        if change.kind is EventKind.DELETED:
            self._extender.drop_node(change.item.name)
        else:
            self._extender.put_node(change.item)

    def _pod_changed(self, change: StoreChange[AnyPod]) -> None:
        pod, is_gone = change.item, change.kind is EventKind.DELETED
        if isinstance(pod, PlainPod):
            self._extender.drop_plain(pod.uid) if is_gone else self._extender.put_plain(pod)
        elif is_gone:
            self._extender.drop_pod(pod.uid)
        else:
            self._extender.put_pod(pod)
