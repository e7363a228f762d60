"""What kube-scheduler itself holds against a node before it asks us, as far as we know it.

In: a node, and the pods on it. Out: a reason, and what would have to change. kube-scheduler adds up what pods ask of
each resource over all GPUs of a node, and compares with what kubelet offers: such a sum may leave room where no single
GPU has any, and none where one has, as where a GPU is ill. Its other checks (CPU, taints, affinity, volumes) are not
known here.
"""

from dataclasses import dataclass

from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.refusal import Refusal
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.pod import ClusterPod, Pod
from deviceplugin.model.units import ResourceNames

UNSCHEDULABLE = Refusal("node is unschedulable")
NOT_READY = Refusal("node is not ready")
SUMS = Refusal("too little by kube-scheduler's own sums, though single GPUs have room")


@dataclass(frozen=True, slots=True)
class Amount:
    """Of both resources."""

    cores: int = 0
    blocks: int = 0

    def covers(self, other: "Amount") -> bool:
        return self.cores >= other.cores and self.blocks >= other.blocks

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cores + other.cores, self.blocks + other.blocks)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.cores - other.cores, self.blocks - other.blocks)

    def at_least(self, other: "Amount") -> "Amount":
        return Amount(max(self.cores, other.cores), max(self.blocks, other.blocks))


def asked_in_all(pod: Pod) -> Amount:
    """As kube-scheduler adds up: what runs at once, or the largest init container beside the sidecars before it."""
    steady, first = Amount(), Amount()
    for each in pod.containers:  # init containers and sidecars come first, in their order
        asks = Amount(each.cores, each.blocks)
        if each.role is ContainerRole.INIT:
            first = first.at_least(steady + asks)
        else:
            steady += asks
    return steady.at_least(first)


class Sums:
    """For one pod; reads only."""

    def __init__(self, books: Books, pod: ClusterPod) -> None:
        self._books = books
        self._pod = pod
        self._asks = asked_in_all(pod.pod)

    def left(self, name: str) -> Amount:
        """Below nothing, maybe: what runs outlives a GPU that fell ill."""
        book = self._books.nodes.get(name)
        if book is None or book.node is None:
            return Amount()
        left = Amount(book.node.cores, book.node.blocks)
        for uid in book.holdings:
            if uid != self._pod.uid and (found := self._books.pod(uid)) is not None:
                left -= asked_in_all(found.pod)
        return left

    def suffice(self, name: str) -> bool:
        return self.left(name).covers(self._asks)

    def against(self, name: str, names: ResourceNames) -> tuple[Refusal, str] | None:
        """Of a node whose GPUs have room; the sentence says what would have to change."""
        book = self._books.nodes.get(name)
        node: ClusterNode | None = None if book is None else book.node
        if node is None:
            return None
        if node.unschedulable:
            return UNSCHEDULABLE, f"kubectl uncordon {name}"
        if not node.ready:
            return NOT_READY, "its kubelet must report that the node is ready"
        left = self.left(name)
        if left.covers(self._asks):
            return None
        short = [
            f"the pod asks {asks} {what} in all, and {max(0, free)} of {offered} are not asked by others"
            for what, asks, free, offered in (
                (names.core, self._asks.cores, left.cores, node.cores),
                (names.memory, self._asks.blocks, left.blocks, node.blocks),
            )
            if free < asks
        ]
        return SUMS, "; ".join(short)
