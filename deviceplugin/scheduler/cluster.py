"""Watches every node and pod of the cluster for the extender and the webhook, and claims for the views.

In: the API server. Out: calls of `Extender.put_*` and `drop_*`, for claims of those of its cache's `claims`; the known
GPUs for the webhook. `synced` is set when nodes and pods are in the cache and each node was calculated once.
Placement never waits for claims: where they cannot be listed, only the views lack them.
"""

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

from deviceplugin.cluster.extender.cache.claim_holds import ClaimHolds
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.webhook.resources import KnownGpus
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.cluster_objects import AnyPod, cluster_nodes, cluster_pods
from deviceplugin.kube.collection import EventKind
from deviceplugin.kube.reflector import Reflector
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
_Key = TypeVar("_Key", bound=Hashable)
_Item = TypeVar("_Item")
_Watch = (
    Reflector[str, ClusterNode] | Reflector[PodUid, AnyPod] | Reflector[str, NodeOffer] | Reflector[ClaimKey, Claim]
)


class ClusterWatch:
    """`run` runs until it is cancelled. `claims`: whether nodes may offer GPUs to claims."""

    def __init__(
        self, client: ClusterClient, extender: Extender, *, names: ResourceNames, claims: bool = False
    ) -> None:
        self._extender = extender
        self._held = extender.cache.claims
        self._nodes = _followed(Reflector(client, cluster_nodes(names)), self._put_node, self._drop_node)
        self._pods = _followed(Reflector(client, cluster_pods(names, claims=claims)), self._put_pod, self._drop_pod)
        self._watches: dict[str, _Watch] = {"nodes": self._nodes, "pods": self._pods}
        if claims:
            self._watches |= _claim_watches(client, self._held)
        self._known: KnownGpus | None = None
        self._known_at = -math.inf
        self._known_is_old = False
        self.synced = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for what, each in self._watches.items():
                group.create_task(each.run(), name=what)
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
        if self.synced.is_set():  # nothing that was listed is forgotten
            return ()
        waited = (("nodes", self._nodes), ("pods", self._pods))
        listed = tuple(f"it has not read the cluster's {what}" for what, each in waited if not each.synced.is_set())
        return listed or ("its cache is not complete",)

    def last_events(self) -> Iterator[tuple[tuple[str], float]]:
        """Unix time of the last event by kind of object, as rows of a metric."""
        for what, each in self._watches.items():
            if (age := each.last_event_age) is not None:
                yield (what,), time.time() - age

    def unreadable(self) -> list[tuple[tuple[str], int]]:
        """How many objects of each kind cannot be read, as rows of a metric."""
        return [((what,), each.unreadable) for what, each in self._watches.items()]

    def _put_node(self, node: ClusterNode) -> None:
        before = self._inventory(node.name)
        self._extender.put_node(node)
        self._known_is_old = self._known_is_old or self._inventory(node.name) is not before

    def _drop_node(self, node: ClusterNode) -> None:
        self._known_is_old = self._known_is_old or self._inventory(node.name) is not None
        self._extender.drop_node(node.name)

    def _inventory(self, node: str) -> Inventory | None:
        found = self._extender.cache.nodes.get(node)
        return None if found is None else found.inventory

    def _put_pod(self, pod: AnyPod) -> None:
        """For the extender a pod that asks by claims alone takes CPU and memory, and no GPU."""
        if isinstance(pod, PlainPod):
            self._extender.put_plain(pod)
            return
        if pod.has_claims:
            self._held.put_pod(pod)
        if pod.pod.is_gpu:
            self._extender.put_pod(pod)
        elif pod.pod.node:
            self._extender.put_plain(PlainPod(pod.uid, pod.pod.node, pod.needs))

    def _drop_pod(self, pod: AnyPod) -> None:
        if isinstance(pod, ClusterPod) and pod.has_claims:
            self._held.drop_pod(pod.uid)
        if isinstance(pod, ClusterPod) and pod.pod.is_gpu:
            self._extender.drop_pod(pod.uid)
        else:
            self._extender.drop_plain(pod.uid)


def _claim_watches(client: ClusterClient, held: ClaimHolds) -> dict[str, _Watch]:
    """What nodes offer to claims, and all claims."""
    offers: Reflector[str, NodeOffer] = Reflector(client, offers_of(held.names.driver))
    claims: Reflector[ClaimKey, Claim] = Reflector(client, cluster_claims(held.names))
    return {
        "resourceslices": _followed(offers, held.put_offer, lambda offer: held.drop_offer(offer.node)),
        "resourceclaims": _followed(claims, held.put_claim, lambda claim: held.drop_claim(claim.key)),
    }


def _followed(
    watch: Reflector[_Key, _Item], put: Callable[[_Item], None], drop: Callable[[_Item], None]
) -> Reflector[_Key, _Item]:
    watch.subscribe(lambda change: (drop if change.kind is EventKind.DELETED else put)(change.item))
    return watch
