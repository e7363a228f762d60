"""One node: its GPUs as its agent wrote them down, and everything that pods hold of them.

In: what the node says of itself, holdings, and what pods without GPUs take beside them. Out: a `NodeState` for
placement, the same object for as long as the pods hold the same; or the reason why the node cannot be used. What pods
hold outlives the node's own entry: a node that comes back has the same pods, and if it comes back with other GPUs, what
was held of the old ones is held of nothing.

A container that somebody else placed may be on any GPU that has room for it beside what is known: it counts on each of
them, so that what is left is free wherever it is.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import structlog

from deviceplugin.cluster.extender.cache.compute_usage import Beside
from deviceplugin.cluster.extender.cache.pod_hold import Holding
from deviceplugin.cluster.extender.refusal import AGENT_AWAY, FOREIGN_INVENTORY, NO_INVENTORY, UNKNOWN_NODE, Refusal
from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import Allocation, ContainerRef, GpuShare, PodUid
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.inventory_annotation import parse_inventory
from deviceplugin.model.pod_request import ContainerRequest
from deviceplugin.model.units import NOTHING, Compute
from deviceplugin.placement.fit import GpuAmount, GpuCapacity, demand_of, model_of
from deviceplugin.placement.node_state import NodeState, NodeUsage, Spare, node_state
from deviceplugin.placement.occupancy import occupied

log = structlog.get_logger("vcuda.cluster")


class NodeBook:
    """`sentence` says more than `problem`: it may name the node and is for people who ask.

    `known` is `state`, or None where that has to be calculated first; `_gpus` is right but for CPU and memory.
    """

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
        self._tally: NodeUsage | None = None
        self._wandering: set[PodUid] = set()
        self._beside = Beside()
        self._plain = 0
        self._gpus: NodeState | None = None
        self.known: NodeState | None = None

    @property
    def holdings(self) -> Mapping[PodUid, Holding]:
        return self._holdings

    @property
    def node(self) -> ClusterNode | None:
        """What it last said of itself; None of a node that was deleted or never came."""
        return self._node

    @property
    def is_forgotten(self) -> bool:
        """Neither a node nor a pod speaks of it."""
        return self._node is None and not self._holdings and not self._plain

    def describe(self, node: ClusterNode) -> bool:
        """Takes over what the node says of itself; false where nothing of it changes what pods may have."""
        known, self._node = self._node, node
        if known is None or known.inventory != node.inventory:
            self._read_inventory(node.inventory)
        elif (known.cordon, known.cores) == (node.cordon, node.cores):
            if known.allocatable != node.allocatable:
                self._spare_has_changed()
            return False
        self._cordoned = node.cordoned(self.inventory) if self.inventory else frozenset()
        self.problem = self._unread or (AGENT_AWAY if not node.cores else None)
        self._count_anew()
        return True

    def vanish(self) -> None:
        """The node was deleted; its pods are on their own until each of them is deleted too."""
        self._node, self.inventory = None, None
        self.problem, self.sentence = UNKNOWN_NODE, ""
        self._count_anew()

    def hold(self, holding: Holding) -> None:
        uid = holding.pod.uid
        known, self._holdings[uid] = self._holdings.get(uid), holding
        if known is None or known.needs != holding.needs:
            if known is not None:
                self._beside.give_back(known.needs)
            self._beside.take(holding.needs)
            self._spare_has_changed()
        if not self._is_counted(known, holding):
            self._count(holding)
            self.known = self._gpus = None

    def take(self, needs: Compute | None) -> None:
        """A pod that wants no GPU has come."""
        self._plain += 1
        self._beside.take(needs)
        self._spare_has_changed()

    def give_back(self, needs: Compute | None) -> None:
        self._plain -= 1
        self._beside.give_back(needs)
        self._spare_has_changed()

    def release(self, uid: PodUid) -> None:
        self._beside.give_back(self._holdings.pop(uid).needs)
        self._wandering.discard(uid)
        if self._tally is not None:
            self._tally.release(uid)
        self.known = self._gpus = None

    @property
    def state(self) -> NodeState:
        """Only of a node that can be used."""
        if self.known is None:
            self._gpus = self.known = (self._gpus or self._calculate(())).with_spare(self._spare)
        return self.known

    def state_without(
        self, pods: Collection[PodUid], *, beside: Iterable[Allocation] = (), needs: Compute = NOTHING
    ) -> NodeState:
        """As if these pods were not there, and as if something further was held, with so much CPU and memory."""
        extra = tuple(beside)
        absent = [self._holdings[uid].needs for uid in pods if uid in self._holdings]
        if not extra and not absent:
            return self.state
        spare = self._beside.spare(self._offered, without=absent, further=needs)
        return self._calculate(pods, extra).with_spare(spare)

    def still_fits(self, uid: PodUid) -> bool:
        """Whether what a pod holds here would be free without it, on GPUs that work may land on."""
        assert self._tally is not None
        if not self._wandering:
            return self._tally.fits(uid)
        return _fits(self._holdings[uid].allocations, self.state_without({uid}))

    @property
    def is_suspect(self) -> bool:
        """Whether more is held of some GPU than it has, what is not bound yet included."""
        return self._tally is not None and self._tally.is_overbooked

    @property
    def unknown_gpus(self) -> int:
        """How many GPUs pods hold that this node does not have."""
        known = {gpu.uuid for gpu in self.inventory.gpus} if self.inventory else set()
        held = {uuid for each in self._holdings.values() for one in each.allocations for uuid in one.uuids}
        return len(held - known)

    @property
    def _offered(self) -> Compute | None:
        return None if self._node is None else self._node.allocatable

    @property
    def _spare(self) -> Spare | None:
        return self._beside.spare(self._offered)

    def _spare_has_changed(self) -> None:
        """Calculated when somebody asks: on most nodes nobody does between two such changes."""
        self.known = None

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

    def _is_counted(self, known: Holding | None, holding: Holding) -> bool:
        """Whether only our knowledge of the pod has changed, and nothing that it holds."""
        if known is None or self._wandering:  # what is proved narrows where the others may be
            return False
        return known.allocations == holding.allocations and not holding.somewhere

    def _count_anew(self) -> None:
        self.known = self._gpus = self._tally = None
        if self.inventory is not None:
            self._tally = NodeUsage(self.name, self.inventory, share_mode=self._share_mode, cordoned=self._cordoned)
            for holding in self._holdings.values():
                self._count(holding)

    def _count(self, holding: Holding) -> None:
        uid = holding.pod.uid
        self._wandering.discard(uid)
        if holding.somewhere:
            self._wandering.add(uid)
        if self._tally is not None:
            self._tally.hold(uid, holding.allocations)

    def _calculate(self, absent: Collection[PodUid], beside: Iterable[Allocation] = ()) -> NodeState:
        assert self.inventory is not None
        assert self._tally is not None
        further = tuple(beside)
        if not further and not self._wandering:
            return self._tally.state(without=absent)
        counted = [each for uid, each in self._holdings.items() if uid not in absent]
        exact = [*chain.from_iterable(each.allocations for each in counted), *further]
        wandering = [each for each in counted if each.somewhere]
        if wandering:
            proved = [one for each in counted if each.is_bound for one in each.allocations]
            exact += _everywhere(self.inventory, wandering, occupied(proved))
        return node_state(self.name, self.inventory, exact, share_mode=self._share_mode, cordoned=self._cordoned)


def _fits(allocations: Iterable[Allocation], state: NodeState) -> bool:
    free = {view.gpu.uuid: GpuAmount(view.free_cores, view.free_blocks) for view in state.open_gpus.views}
    return all(uuid in free and free[uuid].covers(held) for uuid, held in occupied(allocations).items())


def _everywhere(
    inventory: Inventory, wandering: Iterable[Holding], proved: Mapping[GpuUuid, GpuAmount]
) -> Iterable[Allocation]:
    for holding in wandering:
        for each in holding.somewhere:
            shares = tuple(
                share for gpu in inventory.gpus if (share := _maybe(each, gpu, proved.get(gpu.uuid, GpuAmount())))
            )
            yield Allocation(ContainerRef(holding.pod, each.name), each.role, each.request, shares, each.index)


def _maybe(wanted: ContainerRequest, gpu: Gpu, held: GpuAmount) -> GpuShare | None:
    """What the container has of this GPU if it is there; None where it cannot be there."""
    demand, model = demand_of(wanted.request), model_of(gpu)
    free = GpuCapacity(model, *(model.whole - held))
    return None if demand.rejection(free) is not None else GpuShare(gpu.uuid, *demand.takes(gpu.blocks))
