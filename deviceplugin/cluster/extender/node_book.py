"""One node: its GPUs as its agent wrote them down, and everything that pods hold of them.

In: what the node says of itself, and holdings. Out: a `NodeState` for placement, the same object until something
changes; or the reason why the node cannot be used. What pods hold outlives the node's own entry: a node that comes back
has the same pods, and if it comes back with other GPUs, what was held of the old ones is held of nothing.

A container that somebody else placed may be on any GPU that has room for it beside what is known: it counts on each of
them, so that what is left is free wherever it is.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import structlog

from deviceplugin.cluster.extender.holding import Holding
from deviceplugin.cluster.extender.refusal import AGENT_AWAY, FOREIGN_INVENTORY, NO_INVENTORY, UNKNOWN_NODE, Refusal
from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import Allocation, ContainerRef, GpuShare, PodUid
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.inventory_annotation import parse_inventory
from deviceplugin.model.pod_request import ContainerRequest
from deviceplugin.model.request import RequestKind
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.node_state import NodeState, node_state
from deviceplugin.placement.occupancy import Occupancy, occupied

log = structlog.get_logger("vcuda.cluster")


class NodeBook:
    """`sentence` says more than `problem`: it may name the node and is for people who ask."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problem: Refusal | None = UNKNOWN_NODE
        self._unread: Refusal | None = None
        self.sentence = ""
        self.inventory: Inventory | None = None
        self._share_mode = True
        self._cordoned: frozenset[GpuUuid] = frozenset()
        self._node: ClusterNode | None = None
        self._holdings: dict[PodUid, Holding] = {}
        self._state: NodeState | None = None

    @property
    def holdings(self) -> Mapping[PodUid, Holding]:
        return self._holdings

    @property
    def is_forgotten(self) -> bool:
        """Neither a node nor a pod speaks of it."""
        return self._node is None and not self._holdings

    def describe(self, node: ClusterNode) -> bool:
        """Takes over what the node says of itself; false where nothing of it changes what pods may have."""
        known, self._node = self._node, node
        if known is None or known.inventory != node.inventory:
            self._read_inventory(node.inventory)
        elif (known.cordon, known.cores) == (node.cordon, node.cores):
            return False
        self._cordoned = node.cordoned(self.inventory) if self.inventory else frozenset()
        self.problem = self._unread or (AGENT_AWAY if not node.cores else None)
        self._state = None
        return True

    def vanish(self) -> None:
        """The node was deleted; its pods are on their own until each of them is deleted too."""
        self._node, self.inventory, self._state = None, None, None
        self.problem, self.sentence = UNKNOWN_NODE, ""

    def hold(self, holding: Holding) -> None:
        self._holdings[holding.pod.uid] = holding
        self._state = None

    def release(self, uid: PodUid) -> None:
        del self._holdings[uid]
        self._state = None

    @property
    def state(self) -> NodeState:
        """Only of a node that can be used."""
        if self._state is None:
            self._state = self._calculate(self._holdings.values())
        return self._state

    def state_without(self, pods: Collection[PodUid], *, beside: Iterable[Allocation] = ()) -> NodeState:
        """As if these pods were not there, and as if something further was held."""
        extra = tuple(beside)
        if not extra and not any(uid in self._holdings for uid in pods):
            return self.state
        return self._calculate((each for uid, each in self._holdings.items() if uid not in pods), extra)

    @property
    def unknown_gpus(self) -> int:
        """How many GPUs pods hold that this node does not have."""
        known = {gpu.uuid for gpu in self.inventory.gpus} if self.inventory else set()
        held = {uuid for each in self._holdings.values() for one in each.allocations for uuid in one.uuids}
        return len(held - known)

    def _read_inventory(self, text: str) -> None:
        self.inventory, self._unread, self.sentence = None, NO_INVENTORY, ""
        if not text:
            return
        try:
            self.inventory, self._share_mode = parse_inventory(text)
        except ParseError as error:
            self._unread, self.sentence = FOREIGN_INVENTORY, error.message
            log.warning("node is not used", node=self.name, cause=error.message)
        else:
            self._unread = None if self.inventory.gpus else NO_INVENTORY

    def _calculate(self, holdings: Iterable[Holding], beside: Iterable[Allocation] = ()) -> NodeState:
        assert self.inventory is not None
        counted = list(holdings)
        exact = [*chain.from_iterable(each.allocations for each in counted), *beside]
        wandering = [each for each in counted if each.somewhere]
        if wandering:
            proved = [one for each in counted if each.is_bound for one in each.allocations]
            exact += _everywhere(self.inventory, wandering, occupied(proved))
        return node_state(self.name, self.inventory, exact, share_mode=self._share_mode, cordoned=self._cordoned)


def _everywhere(
    inventory: Inventory, wandering: Iterable[Holding], proved: Mapping[GpuUuid, Occupancy]
) -> Iterable[Allocation]:
    for holding in wandering:
        for each in holding.somewhere:
            shares = tuple(
                share for gpu in inventory.gpus if (share := _maybe(each, gpu, proved.get(gpu.uuid, Occupancy())))
            )
            yield Allocation(ContainerRef(holding.pod, each.name), each.role, each.request, shares, each.index)


def _maybe(wanted: ContainerRequest, gpu: Gpu, held: Occupancy) -> GpuShare | None:
    """What the container has of this GPU if it is there; None where it cannot be there."""
    request = wanted.request
    whole = request.kind is not RequestKind.SHARE
    cores = CORES_PER_GPU if whole else request.cores_per_gpu
    blocks = gpu.blocks if whole else request.blocks_per_gpu
    if gpu.blocks < request.blocks_per_gpu or held.cores + cores > CORES_PER_GPU or held.blocks + blocks > gpu.blocks:
        return None
    return GpuShare(gpu.uuid, cores, blocks)
