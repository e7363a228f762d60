"""What every node has and who holds what of it: the only state on which the extender's decisions depend.

In: nodes and pods from the watches, reservations of filter, assumed pods of bind. Out: the state of a node, or why it
cannot be used. Pods without GPUs count for their CPU and memory. Not here: any choice, and the API server. Invariants:

- a bound pod has one hold, on the node it is bound to, in whatever order the events about it arrived;
- a pod that ended or was deleted holds nothing, and no later event brings it back; one that is being deleted still
  holds, because its containers still run;
- a reservation ends with its reason: the pod was bound elsewhere, ended, was deleted, was refused again in this
  attempt, or the reservation expired (a gang's may end earlier: `gangs`).
"""

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

from deviceplugin.cluster.extender.cache.claim_holds import NO_CLAIMS, ClaimHolds, NodeClaims
from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import (
    HoldState,
    PodHold,
    as_first_seen,
    bound_hold,
    refused_since_reserved,
)
from deviceplugin.cluster.extender.rejection import UNKNOWN_NODE, Rejection
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.claims import ClaimNames
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.pod import ClusterPod, Gang, PlainPod
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.units import CORES_PER_GPU, Compute, ResourceNames
from deviceplugin.placement.node_state import NodeState
from deviceplugin.structs import replace

_MOST_GONE = 20_000
_Size = tuple[int, int]  # cores and blocks
_Place = tuple[_Size, PodUid]


class SchedulerCache:
    """`freed` is called with a node's name when a pod there holds less than before. `promised`, which may be set, is
    called once with the hold of a pod that another scheduler has bound where it was promised GPUs.

    `waiting` are the pods that request GPUs and are on no node, `waiting_gangs` those of them that are members of a
    gang and hold nothing. Only this class changes them and `nodes`. `usable` has the state of each node that can be
    used, but for those that have changed since somebody asked for it. `suspects` are nodes that changed or got a bound
    pod, by any report; `OvercommitMonitor` takes them from there. `claims` follows what claims hold, which no decision
    depends on.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        names: ResourceNames = ResourceNames(),
        freed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._names = names
        self._clock = clock
        self._freed = freed
        self.promised: Callable[[PodHold], None] = lambda _: None
        self.nodes: dict[str, NodeInfo] = {}
        self.usable: dict[str, NodeState] = {}
        self.claims = ClaimHolds(ClaimNames(names.domain), self._claims_on, self._drop_if_unused)
        self._where: dict[PodUid, tuple[str, ...]] = {}
        self.waiting: dict[PodUid, ClusterPod] = {}
        self.waiting_gangs = WaitingGangs()
        self._last_seen: dict[PodUid, ClusterPod] = {}
        self._plain: dict[PodUid, PlainPod] = {}
        self._nominated: dict[str, dict[PodUid, ClusterPod]] = {}
        self._ended: set[PodUid] = set()
        self._deleted: OrderedDict[PodUid, None] = OrderedDict()
        self._deadlines: list[tuple[float, PodUid, str]] = []
        self.suspects: dict[str, None] = {}

    def waiting_pod(self, namespace: str, name: str) -> ClusterPod | None:
        """Looks through all waiting pods: people ask rarely."""
        return next((each for each in self.waiting.values() if str(each.pod.ref) == f"{namespace}/{name}"), None)

    def pod(self, uid: PodUid) -> ClusterPod | None:
        """The last version from the API server."""
        return self._last_seen.get(uid) or self.waiting.get(uid)

    def put_node(self, node: ClusterNode) -> None:
        self.suspects[node.name] = None
        if self._node(node.name).describe(node):
            self._freed(node.name)

    def drop_node(self, name: str) -> None:
        if (node_info := self.nodes.get(name)) is not None:
            node_info.vanish()
            self._drop_if_unused(name)

    def put_pod(self, pod: ClusterPod, asked: PodRequest | None = None) -> None:
        """`asked`: its request, where the caller has read it already."""
        uid = pod.uid
        if not pod.pod.is_gpu or uid in self._deleted or uid in self._ended:
            return
        self.drop_plain(uid)
        if pod.pod.is_terminal:
            self._ended.add(uid)
            self._end(uid)
        elif pod.pod.node:
            self.suspects[pod.pod.node] = None
            self._put_bound(pod, asked)
        elif self.bound_to(uid) is None:
            self._put_waiting(pod)

    def drop_pod(self, uid: PodUid) -> None:
        """The pod was deleted. Its UID never comes again, but a late event may."""
        self._ended.discard(uid)
        self._end(uid)
        self._deleted[uid] = None
        if len(self._deleted) > _MOST_GONE:
            self._deleted.popitem(last=False)

    def put_plain(self, pod: PlainPod) -> None:
        """A pod that uses CPU and memory of its node, and no GPU."""
        known = self._plain.get(pod.uid)
        if known == pod:
            return
        self._node(pod.node).add_plain(pod.needs)
        self._plain[pod.uid] = pod
        if known is not None:
            self._remove_plain(known)

    def drop_plain(self, uid: PodUid) -> None:
        """It has ended or was deleted."""
        if (known := self._plain.pop(uid, None)) is not None:
            self._remove_plain(known)

    def needs_of(self, uid: PodUid) -> Compute | None:
        """CPU and memory of a GPU pod, where known."""
        found = next((held.needs for held in self.holds(uid) if held.needs is not None), None)
        waiting = self.waiting.get(uid)
        return waiting.needs if found is None and waiting is not None else found

    def is_new(self, uid: PodUid) -> bool:
        """It was never seen before."""
        return not (uid in self.waiting or uid in self._where or self.is_over(uid))

    def is_over(self, uid: PodUid) -> bool:
        return uid in self._deleted or uid in self._ended

    def bound_to(self, uid: PodUid) -> str | None:
        return next((each.node for each in self.holds(uid) if each.is_bound), None)

    def holds(self, uid: PodUid) -> Iterator[PodHold]:
        return (self.nodes[node].holds[uid] for node in self._where.get(uid, ()))

    def on(self, node: str, uid: PodUid) -> PodHold | None:
        node_info = self.nodes.get(node)
        return None if node_info is None else node_info.holds.get(uid)

    def problem(self, node: str) -> Rejection | None:
        node_info = self.nodes.get(node)
        return UNKNOWN_NODE if node_info is None else node_info.problem

    @property
    def nominated_nodes(self) -> Collection[str]:
        """Nodes on which kube-scheduler makes room for a pod."""
        return self._nominated

    def nominated(self, node: str) -> Iterable[ClusterPod]:
        """Pods for which kube-scheduler makes room there."""
        return self._nominated.get(node, {}).values()

    def put_hold(self, hold: PodHold) -> None:
        """Replaces the pod's hold on this node, and releases its reservations on other nodes."""
        self.release_reservations(hold.pod.uid, but=hold.node)
        self._enter(hold)

    def release_reservations(self, uid: PodUid, *, but: str = "") -> None:
        """On all nodes but one; what may be bound already stays."""
        for held in tuple(self.holds(uid)):
            if held.node != but and held.state is HoldState.RESERVED:
                self.release(uid, held.node)

    def release(self, uid: PodUid, node: str, *, notify: bool = True) -> None:
        """Removes a hold; without `notify`, `freed` is not called."""
        if self.on(node, uid) is None:
            return
        self.nodes[node].release(uid)
        left = tuple(other for other in self._where[uid] if other != node)
        if left:
            self._where[uid] = left
        else:
            del self._where[uid]
            if uid in self.waiting:
                self.waiting_gangs.put(self.waiting[uid])
        self._drop_if_unused(node)
        if notify:
            self._freed(node)

    def expire(self) -> None:
        """Expires reservations; a hold with an unconfirmed Binding does not end by time alone.

        `_deadlines` is a heap. A prolonged reservation leaves its old entry there, so the hold is asked again.
        """
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, uid, node = heapq.heappop(self._deadlines)
            held = self.on(node, uid)
            if held is not None and held.state is HoldState.RESERVED and held.expires <= now:
                self.release(uid, node)

    def _enter(self, hold: PodHold) -> None:
        uid, node = hold.pod.uid, hold.node
        self._node(node).put_hold(hold)
        self.waiting_gangs.drop(uid)
        if node not in self._where.get(uid, ()):
            self._where[uid] = (*self._where.get(uid, ()), node)
        if hold.has_deadline:
            heapq.heappush(self._deadlines, (hold.expires, uid, node))

    def _put_bound(self, pod: ClusterPod, asked: PodRequest | None) -> None:
        """A bound pod: the API server's version replaces the assumed one."""
        uid, node = pod.uid, pod.pod.node
        self._forget_waiting(uid)
        known = self.on(node, uid)
        last, self._last_seen[uid] = self._last_seen.get(uid), pod
        if last is not None and _holds_the_same(last, pod) and self._where.get(uid) == (node,):
            return  # most updates are kubelet's status reports
        found = as_first_seen(bound_hold(pod, self._names, asked), known)
        if known is not None and known.announced and found.unlocated and not found.allocations:
            found = replace(found, allocations=known.allocations, unlocated=(), announced=True)
        if known != found:
            self._enter(found)
        if found.announced and known is not None and not known.is_bound:
            self.promised(found)
        for other in tuple(self.holds(uid)):
            if other.node != node:
                self.release(uid, other.node)
        if known is not None and (known.allocations, known.unlocated) != (found.allocations, found.unlocated):
            self._freed(node)

    def _put_waiting(self, pod: ClusterPod) -> None:
        uid = pod.uid
        before = self.waiting.get(uid)
        self._forget_waiting(uid)
        self.waiting[uid] = pod
        if uid not in self._where:
            self.waiting_gangs.put(pod)
        if pod.nominated_node:
            self._nominated.setdefault(pod.nominated_node, {})[uid] = pod
        for held in tuple(self.holds(uid)):
            is_refused = not held.announced and refused_since_reserved(pod, held, before=before)  # else we are told
            if pod.pod.deleting or (is_refused and not self._is_late(held)):
                self._drop_reservation(held)
            elif is_refused:
                version = pod.pod.resource_version
                self._enter(replace(held, late=held.late - 1, version=version, condition=pod.condition))

    def _is_late(self, held: PodHold) -> bool:
        """What kube-scheduler writes of an attempt arrives after the next one has begun."""
        return held.late > 0 and self._clock() < held.late_until

    def _drop_reservation(self, held: PodHold) -> None:
        """Releases a reservation; a hold that may be bound already stays, but no longer prolonged by filter."""
        if held.state is HoldState.RESERVED:
            self.release(held.pod.uid, held.node)
        elif held.state is HoldState.UNCONFIRMED:
            self._enter(replace(held, expires=min(held.expires, self._clock())))

    def _end(self, uid: PodUid) -> None:
        self._forget_waiting(uid)
        self._last_seen.pop(uid, None)
        for held in tuple(self.holds(uid)):
            self.release(uid, held.node)

    def _forget_waiting(self, uid: PodUid) -> None:
        pod = self.waiting.pop(uid, None)
        self.waiting_gangs.drop(uid)
        if pod is not None and pod.nominated_node:
            there = self._nominated[pod.nominated_node]
            del there[uid]
            if not there:
                del self._nominated[pod.nominated_node]

    def _node(self, name: str) -> NodeInfo:
        node_info = self.nodes.get(name)
        if node_info is None:
            node_info = self.nodes[name] = NodeInfo(name, self.usable)
        return node_info

    def _claims_on(self, node: str) -> NodeClaims:
        info = self._node(node)
        if info.claims is NO_CLAIMS:
            info.claims = NodeClaims(node)
        return info.claims

    def _remove_plain(self, pod: PlainPod) -> None:
        self.nodes[pod.node].remove_plain(pod.needs)
        self._drop_if_unused(pod.node)

    def _drop_if_unused(self, name: str) -> None:
        if self.nodes[name].is_unused:
            del self.nodes[name]


def _holds_the_same(known: ClusterPod, pod: ClusterPod) -> bool:
    """Whether both versions say the same about what the pod holds."""
    was, now = known.pod, pod.pod
    return (
        (was.node, was.deleting, known.priority, known.needs) == (now.node, now.deleting, pod.priority, pod.needs)
        and was.annotations == now.annotations
        and was.containers == now.containers
    )


class WaitingGangs:
    """The waiting members of each gang that hold nothing, the largest first.

    What is asked costs the same however many there are. Nothing of a pod is parsed: its size here is the most that it
    may take of one GPU, by the numbers of its containers. What is kept of a pod goes with it.
    """

    def __init__(self) -> None:
        self._members: dict[Gang, list[_Place]] = {}
        self._places: dict[PodUid, tuple[Gang, _Place]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def put(self, pod: ClusterPod) -> None:
        """Takes the place of an earlier version."""
        self.drop(pod.uid)
        if pod.gang is None or pod.pod.deleting:
            return
        place = (_most_of_a_gpu(pod), pod.uid)
        self._places[pod.uid] = (pod.gang, place)
        insort(self._members.setdefault(pod.gang, []), place)

    def drop(self, uid: PodUid) -> None:
        """It waits no more, or holds something."""
        known = self._places.pop(uid, None)
        if known is None:
            return
        gang, place = known
        members = self._members[gang]
        del members[bisect_left(members, place)]
        if not members:
            del self._members[gang]

    def largest(self, gang: Gang, *, above: _Size, most: int) -> list[PodUid]:
        """At most so many of those that may be larger than `above`, the largest first."""
        return [uid for size, uid in islice(reversed(self._members.get(gang, ())), most) if size > above]


def _most_of_a_gpu(pod: ClusterPod) -> _Size:
    """Exact for a share of one GPU; what is spread over several takes less of each."""
    return max((min(each.cores, CORES_PER_GPU), each.blocks) for each in pod.pod.containers)
