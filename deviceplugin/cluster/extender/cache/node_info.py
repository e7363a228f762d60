"""One node: its GPUs as its agent reported them, and everything that pods hold of them.

In: the node object, holds of pods, and the CPU and memory of pods without GPUs. Out: a `NodeState` for placement, the
same object as long as the pods hold the same; or the reason why the node cannot be used. Holds outlive the node object:
a node that comes back has the same pods. If it comes back with other GPUs, holds of the old GPUs count for nothing.

Beside them are the GPUs that only claims get, and what claims hold (`claims`). Invariant: no state, and no reason, has
anything of these.

A container that another scheduler placed is unlocated until the agent reports its GPU. It counts on every GPU that has
room for it beside the located ones, so what is free is free wherever the container is. Anybody may create pods that
name a node, and where it is dead nobody refuses them: beyond `_MOST_UNLOCATED` such containers the node takes no pods.
"""

from collections.abc import Collection, Iterable, Mapping, MutableMapping
from itertools import chain

import structlog

from deviceplugin.cluster.extender.cache.claim_holds import NO_CLAIMS
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.rejection import (
    AGENT_DOWN,
    CROWDED,
    NO_INVENTORY,
    TOO_MANY_GPUS,
    UNKNOWN_NODE,
    UNREADABLE_INVENTORY,
    Rejection,
)
from deviceplugin.errors import ParseError, TooManyGpusError
from deviceplugin.model.allocation import Allocation, ContainerRef, GpuShare, PodUid
from deviceplugin.model.claims import minor_of_device
from deviceplugin.model.gpu import Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.node import ClusterNode, parse_inventory
from deviceplugin.model.pod_request import ContainerRequest
from deviceplugin.model.units import MIB, NOTHING, Compute
from deviceplugin.placement.candidates import state_rejection
from deviceplugin.placement.fit import GpuAmount, GpuCapacity, demand_of, model_of
from deviceplugin.placement.fragmentation import NO_NEEDS
from deviceplugin.placement.node_state import NodeState, NodeUsage, Spare, node_state
from deviceplugin.placement.snapshot import GpuView, occupied

_MOST_UNLOCATED = 256
log = structlog.get_logger("vcuda.cluster")


class NodeInfo:
    """`sentence` says more than `problem` and may name the node; explanations show it.

    `node` is the last version of the node object, None if it was deleted or never seen.

    `usable` has the state of every node without `problem` whose state need not be calculated first: between two changes
    most nodes are not asked for. `_gpus` is the state without CPU and memory.
    """

    def __init__(self, name: str, usable: MutableMapping[str, NodeState]) -> None:
        self.name = name
        self._usable = usable
        self._closed: Rejection | None = UNKNOWN_NODE
        self._unread: Rejection | None = None
        self.sentence = ""
        self.inventory: Inventory | None = None
        self.minors: Mapping[GpuUuid, int] = {}
        self._share_mode = True
        self._cordoned: frozenset[GpuUuid] = frozenset()
        self.node: ClusterNode | None = None
        self.holds: dict[PodUid, PodHold] = {}
        self.claims = NO_CLAIMS
        self._tally: NodeUsage | None = None
        self._unlocated: dict[PodUid, int] = {}
        self._compute = ComputeUsage()
        self._plain = 0
        self._gpus: NodeState | None = None

    @property
    def problem(self) -> Rejection | None:
        """Why it takes no pods."""
        return self._closed or (CROWDED if sum(self._unlocated.values()) > _MOST_UNLOCATED else None)

    def closed(self, gpu: Gpu) -> str:
        """Why a GPU of the node takes no new pods: its health, a cordon, its mode; empty if it takes them."""
        health = Health() if self.inventory is None else self.inventory.health_of(gpu.uuid)
        if not health.healthy:
            return health.reason or "unhealthy"
        if gpu.uuid in self._cordoned:
            return "cordoned"
        rejection = state_rejection(GpuView(gpu, 0, 0))
        return "" if rejection is None else rejection.value

    @property
    def is_unused(self) -> bool:
        """Neither a node object nor a pod names it, and nothing is there for claims."""
        return self.node is None and not self.holds and not self._plain and self.claims.is_empty

    def gpu_of(self, device: str) -> tuple[GpuUuid, int | None]:
        """The GPU of a device that a claim holds, by UUID and minor.

        One that is not offered any more may be the device plugin's now. Where nobody reports it, the name of the device
        stands for the UUID.
        """
        if (offered := self.claims.gpus.get(device)) is not None:
            return offered.gpu.uuid, offered.gpu.minor
        minor, known = minor_of_device(device), () if self.inventory is None else self.inventory.gpus
        return next(((gpu.uuid, gpu.minor) for gpu in known if gpu.minor == minor), (GpuUuid(device), None))

    def describe(self, node: ClusterNode) -> bool:
        """Takes a new version of the node object; false if it changes nothing for pods."""
        known, self.node = self.node, node
        if known is None or known.inventory != node.inventory:
            self._read_inventory(node.inventory)
        elif (known.cordon, known.close_nvml, known.cores) == (node.cordon, node.close_nvml, node.cores):
            if known.allocatable != node.allocatable:
                self._changed(gpus=False)
            return False
        self._cordoned = node.cordoned(self.inventory) if self.inventory else frozenset()
        self._closed = self._unread or (AGENT_DOWN if not node.cores else None)
        self._recount()
        return True

    def vanish(self) -> None:
        """The node was deleted; its pods stay until each of them is deleted too."""
        self.node, self.inventory, self.minors = None, None, {}
        self._closed, self.sentence = UNKNOWN_NODE, ""
        self._recount()

    def put_hold(self, hold: PodHold) -> None:
        uid = hold.pod.uid
        known, self.holds[uid] = self.holds.get(uid), hold
        if known is None or known.needs != hold.needs:
            if known is not None:
                self._compute.remove(known.needs)
            self._compute.add(hold.needs)
            self._changed(gpus=False)
        if not self._changes_nothing(known, hold):
            self._count(hold)
            self._changed(gpus=True)

    def add_plain(self, needs: Compute | None) -> None:
        """Counts a pod without GPUs."""
        self._plain += 1
        self._compute.add(needs)
        self._changed(gpus=False)

    def remove_plain(self, needs: Compute | None) -> None:
        self._plain -= 1
        self._compute.remove(needs)
        self._changed(gpus=False)

    def release(self, uid: PodUid) -> None:
        self._compute.remove(self.holds.pop(uid).needs)
        self._unlocated.pop(uid, None)
        if self._tally is not None:
            self._tally.release(uid)
        self._changed(gpus=True)

    @property
    def state(self) -> NodeState:
        """Only for a node without `problem`."""
        known = self._usable.get(self.name)
        if known is None:
            self._gpus = known = (self._gpus or self._calculate(())).with_spare(self._compute.spare(self._offered))
            if self.problem is None:
                self._usable[self.name] = known
        return known

    def state_without(
        self, pods: Collection[PodUid], *, also: Iterable[Allocation] = (), needs: Compute = NOTHING
    ) -> NodeState:
        """As if these pods were not there, and as if the allocations and CPU and memory (`needs`) were held too."""
        extra = tuple(also)
        absent = [self.holds[uid].needs for uid in pods if uid in self.holds]
        if not extra and not absent:
            return self.state
        spare = self._compute.spare(self._offered, without=absent, further=needs)
        return self._calculate(pods, extra).with_spare(spare)

    def steps_without(self, pods: int) -> int:
        """What `state_without` so many pods costs, in the steps of `placement.budget`; measured."""
        if not self._unlocated or self.inventory is None:
            return 100 + 4 * pods
        return 100 + 12 * len(self.holds) + 16 * sum(self._unlocated.values()) * len(self.inventory.gpus)

    def still_fits(self, uid: PodUid) -> bool:
        """Whether what a pod holds here would be free without it, on GPUs that accept work."""
        if self._tally is not None and not self._unlocated:
            return self._tally.still_fits(uid)
        state, held = self._calculate({uid}), occupied(self.holds[uid].allocations)
        free = {
            view.gpu.uuid: view.free for view in state.snapshot.gpus if view.gpu.uuid in held and state.admits(view)
        }
        return all(uuid in free and free[uuid].covers(part) for uuid, part in held.items())

    @property
    def may_be_overcommitted(self) -> bool:
        """Whether pods hold more of some GPU than it has, reservations included."""
        return self._tally is not None and self._tally.is_overbooked

    @property
    def _offered(self) -> Compute | None:
        return None if self.node is None else self.node.allocatable

    def _read_inventory(self, text: str) -> None:
        self.inventory, self.minors, self._unread, self.sentence = None, {}, NO_INVENTORY, ""
        if not text:
            return
        try:
            self.inventory, self._share_mode = parse_inventory(text)
        except ParseError as error:
            self._unread = TOO_MANY_GPUS if isinstance(error, TooManyGpusError) else UNREADABLE_INVENTORY
            self.sentence = error.message
            log.warning("inventory_unreadable", node=self.name, error=error.message)
        else:
            self._unread = None if self.inventory.gpus else NO_INVENTORY
            self.minors = {gpu.uuid: gpu.minor for gpu in self.inventory.gpus}

    def _changes_nothing(self, known: PodHold | None, hold: PodHold) -> bool:
        """Whether the pod still holds the same, and only its state has changed."""
        if known is None or self._unlocated:  # a bound hold narrows where unlocated ones may be
            return False
        return known.allocations == hold.allocations and not hold.unlocated

    def _changed(self, *, gpus: bool) -> None:
        """The state must be calculated again; without `gpus`, only CPU and memory have changed."""
        self._usable.pop(self.name, None)
        if gpus:
            self._gpus = None

    def _recount(self) -> None:
        self._tally = None
        self._changed(gpus=True)
        if self.inventory is not None:
            self._tally = NodeUsage(self.name, self.inventory, share_mode=self._share_mode, cordoned=self._cordoned)
            for hold in self.holds.values():
                self._count(hold)

    def _count(self, hold: PodHold) -> None:
        uid = hold.pod.uid
        self._unlocated.pop(uid, None)
        if hold.unlocated:
            self._unlocated[uid] = len(hold.unlocated)
        if self._tally is not None:
            self._tally.hold(uid, hold.allocations)

    def _calculate(self, absent: Collection[PodUid], also: Iterable[Allocation] = ()) -> NodeState:
        assert self.inventory is not None
        assert self._tally is not None
        further = tuple(also)
        if not further and not self._unlocated:
            return self._tally.state(without=absent)
        counted = [each for uid, each in self.holds.items() if uid not in absent]
        exact = [*chain.from_iterable(each.allocations for each in counted), *further]
        unlocated = [each for each in counted if each.unlocated]
        if unlocated:
            proved = [one for each in counted if each.is_bound for one in each.allocations]
            exact += _on_every_gpu(self.inventory, unlocated, occupied(proved))
        return node_state(self.name, self.inventory, exact, share_mode=self._share_mode, cordoned=self._cordoned)


def _on_every_gpu(
    inventory: Inventory, unlocated: Iterable[PodHold], proved: Mapping[GpuUuid, GpuAmount]
) -> Iterable[Allocation]:
    for hold in unlocated:
        for each in hold.unlocated:
            shares = tuple(
                share
                for gpu in inventory.gpus
                if (share := _share_if_it_fits(each, gpu, proved.get(gpu.uuid, GpuAmount())))
            )
            yield Allocation(ContainerRef(hold.pod, each.name), each.role, each.request, shares, each.index)


def _share_if_it_fits(wanted: ContainerRequest, gpu: Gpu, held: GpuAmount) -> GpuShare | None:
    """What the container has of this GPU if it is there; None if it cannot be there."""
    demand, model = demand_of(wanted.request), model_of(gpu)
    free = GpuCapacity(model, *(model.whole - held))
    return None if demand.rejection(free) is not None else GpuShare(gpu.uuid, *demand.takes(gpu.blocks))


class ComputeUsage:
    """The CPU and memory of one node that its pods leave free, by running sums.

    Unknown where the node or a pod does not say. kube-scheduler alone decides whether a pod fits; this value only ranks
    the nodes that it left. A reservation may exceed what the node has, so the free amount may be negative.
    """

    def __init__(self) -> None:
        self._taken = NOTHING
        self._unknown = 0

    def add(self, needs: Compute | None) -> None:
        if needs is None:
            self._unknown += 1
        else:
            self._taken += needs

    def remove(self, needs: Compute | None) -> None:
        if needs is None:
            self._unknown -= 1
        else:
            self._taken -= needs

    def spare(
        self, offered: Compute | None, *, without: Iterable[Compute | None] = (), further: Compute = NOTHING
    ) -> Spare | None:
        """What is free, as if the pods of `without` were not there and `further` was used too."""
        taken, unknown = self._taken + further, self._unknown
        for needs in without:
            if needs is None:
                unknown -= 1
            else:
                taken -= needs
        if offered is None or unknown:
            return None
        left = offered - taken
        return Spare(left.cpu_milli, left.memory_bytes // MIB)


def needs_of(found: Compute | None) -> Spare:
    """In the unit of placement: MiB, rounded up."""
    return NO_NEEDS if found is None else Spare(found.cpu_milli, -(-found.memory_bytes // MIB))
