"""Watches every node and pod of the cluster for the extender and the webhook, and claims for the views.

In: the API server. Out: calls of `Extender.put_*` and `drop_*`, for claims of those of its cache's `claims`; the known
GPUs for the webhook. `synced` is set when nodes and pods are in the cache and each node was calculated once.
Placement never waits for claims: where they cannot be listed, only the views lack them.
"""

import asyncio
import math
import time
from collections.abc import Iterator

from deviceplugin.cluster.extender.cache.claim_holds import ClaimHolds
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.cluster_objects import AnyPod, cluster_nodes, cluster_pods
from deviceplugin.kube.collection import EventKind
from deviceplugin.kube.reflector import Reflector, StoreChange
from deviceplugin.kube.resource_claims import cluster_claims
from deviceplugin.kube.resource_slices import offers_of
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.claims import Claim, ClaimKey, NodeOffer
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.pod import ClusterPod, PlainPod
from deviceplugin.model.units import ResourceNames

_FEW_NODES = 100
_KNOWN_EVERY_S = 1.0


class ClusterWatch:
    """`run` runs until it is cancelled. `claims`: whether nodes may offer GPUs to claims."""

    def __init__(
        self, client: ClusterClient, extender: Extender, *, names: ResourceNames, claims: bool = False
    ) -> None:
        self._extender = extender
        self._nodes: Reflector[str, ClusterNode] = Reflector(client, cluster_nodes(names))
        self._pods: Reflector[PodUid, AnyPod] = Reflector(client, cluster_pods(names, claims=claims))
        self._claims = _ClaimWatch(client, extender.cache.claims) if claims else None
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)
        self._known: KnownGpus | None = None
        self._known_at = -math.inf
        self._known_is_old = False
        self.synced = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(), name="nodes")
            group.create_task(self._pods.run(), name="pods")
            if self._claims is not None:
                group.create_task(self._claims.run(), name="claims")
            await self._nodes.synced.wait()
            await self._pods.synced.wait()
            self._extender.warm_up()
            self.synced.set()

    @property
    def known(self) -> KnownGpus:
        """Calculated again after the GPUs of a node have changed; in a large cluster at most once a second.

        It takes 40 ms with 5,000 nodes, and a node may change its inventory at any pace.
        """
        nodes, now = self._extender.cache.nodes, time.monotonic()
        is_due = len(nodes) <= _FEW_NODES or now - self._known_at >= _KNOWN_EVERY_S
        if self._known is None or (self._known_is_old and is_due):
            found = (node_info.inventory for node_info in nodes.values() if node_info.inventory is not None)
            self._known, self._known_at, self._known_is_old = KnownGpus.of(found), now, False
        return self._known

    def missing(self) -> tuple[str, ...]:
        """What is not listed yet, as phrases for `/readyz`."""
        waited = (("nodes", self._nodes), ("pods", self._pods))
        listed = tuple(f"the cluster's {what} are not listed yet" for what, each in waited if not each.synced.is_set())
        return listed or (() if self.synced.is_set() else ("the scheduler's cache is not complete yet",))

    def last_events(self) -> Iterator[tuple[tuple[str], float]]:
        """Unix time of the last event by kind of object, as rows of a metric."""
        ages = [("nodes", self._nodes.last_event_age), ("pods", self._pods.last_event_age)]
        if self._claims is not None:
            ages += self._claims.last_event_ages
        for what, age in ages:
            if age is not None:
                yield (what,), time.time() - age

    def unreadable(self) -> list[tuple[tuple[str], int]]:
        """How many objects of each kind cannot be read, as rows of a metric."""
        found = [(("nodes",), self._nodes.unreadable), (("pods",), self._pods.unreadable)]
        return found if self._claims is None else found + self._claims.unreadable

    def _node_changed(self, change: StoreChange[ClusterNode]) -> None:
        before = self._inventory(change.item.name)
        if change.kind is EventKind.DELETED:
            self._extender.drop_node(change.item.name)
        else:
            self._extender.put_node(change.item)
        self._known_is_old = self._known_is_old or self._inventory(change.item.name) is not before

    def _inventory(self, node: str) -> Inventory | None:
        found = self._extender.cache.nodes.get(node)
        return None if found is None else found.inventory

    def _pod_changed(self, change: StoreChange[AnyPod]) -> None:
        pod, is_gone = change.item, change.kind is EventKind.DELETED
        if isinstance(pod, ClusterPod) and self._claims is not None and pod.has_claims:
            self._claims.pod_changed(pod, is_gone=is_gone)
        if isinstance(pod, PlainPod) or not pod.pod.is_gpu:
            self._plain_changed(pod, is_gone=is_gone)
        elif is_gone:
            self._extender.drop_pod(pod.uid)
        else:
            self._extender.put_pod(pod)

    def _plain_changed(self, pod: AnyPod, *, is_gone: bool) -> None:
        """For the extender a pod that asks by claims alone takes CPU and memory, and no GPU."""
        if is_gone:
            self._extender.drop_plain(pod.uid)
        elif isinstance(pod, PlainPod):
            self._extender.put_plain(pod)
        elif pod.pod.node:
            self._extender.put_plain(PlainPod(pod.uid, pod.pod.node, pod.needs))


class _ClaimWatch:
    """What nodes offer to claims, and all claims."""

    def __init__(self, client: ClusterClient, held: ClaimHolds) -> None:
        self._held = held
        self._offers: Reflector[str, NodeOffer] = Reflector(client, offers_of(held.names.driver))
        self._claims: Reflector[ClaimKey, Claim] = Reflector(client, cluster_claims(held.names))
        self._offers.subscribe(self._offer_changed)
        self._claims.subscribe(self._claim_changed)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._offers.run())
            group.create_task(self._claims.run())

    @property
    def last_event_ages(self) -> list[tuple[str, float | None]]:
        return [("resourceslices", self._offers.last_event_age), ("resourceclaims", self._claims.last_event_age)]

    @property
    def unreadable(self) -> list[tuple[tuple[str], int]]:
        return [(("resourceslices",), self._offers.unreadable), (("resourceclaims",), self._claims.unreadable)]

    def pod_changed(self, pod: ClusterPod, *, is_gone: bool) -> None:
        if is_gone:
            self._held.drop_pod(pod.uid)
        else:
            self._held.put_pod(pod)

    def _offer_changed(self, change: StoreChange[NodeOffer]) -> None:
        if change.kind is EventKind.DELETED:
            self._held.drop_offer(change.item.node)
        else:
            self._held.put_offer(change.item)

    def _claim_changed(self, change: StoreChange[Claim]) -> None:
        if change.kind is EventKind.DELETED:
            self._held.drop_claim(change.item.key)
        else:
            self._held.put_claim(change.item)
