"""What every node has and who holds what of it: the only memory of the extender that decides anything.

In: nodes and pods as the watches tell of them, reservations of filter, commitments of bind. Out: the state of a node,
or why it cannot be used. Pods that want no GPU count too, for the CPU and memory that they take. Not here: any choice,
and the API server. Invariants:

- a bound pod has one holding, on the node it is bound to, however the events about it were mixed up;
- a pod that ended or was deleted holds nothing, and no later event about it brings it back; one that is being deleted
  still holds, for its containers still run;
- what is not bound ends with its reason: the pod bound elsewhere, ended, deleted, refused anew, or its time over (a
  gang's may end before: `gangs`).
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace

from deviceplugin.cluster.extender.cache.node_info import NodeBook
from deviceplugin.cluster.extender.cache.pod_hold import Hold, Holding, bound_holding, given_up
from deviceplugin.cluster.extender.cache.reservations import Reservations
from deviceplugin.cluster.extender.refusal import UNKNOWN_NODE, Refusal
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.pod import ClusterPod, PlainPod
from deviceplugin.model.units import Compute, ResourceNames

_MOST_GONE = 20_000
Freed = Callable[[str], None]


class Books:
    """`freed` is called with a node's name when a pod there holds less than before."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        names: ResourceNames = ResourceNames(),
        freed: Freed = lambda _: None,
    ) -> None:
        self._names = names
        self._clock = clock
        self._freed = freed
        self._nodes: dict[str, NodeBook] = {}
        self._where: dict[PodUid, tuple[str, ...]] = {}
        self._waiting: dict[PodUid, ClusterPod] = {}
        self._told: dict[PodUid, ClusterPod] = {}
        self._plain: dict[PodUid, PlainPod] = {}
        self._nominated: dict[str, dict[PodUid, ClusterPod]] = {}
        self._ended: set[PodUid] = set()
        self._gone: OrderedDict[PodUid, None] = OrderedDict()
        self._lapses = Reservations()

    @property
    def nodes(self) -> Mapping[str, NodeBook]:
        return self._nodes

    @property
    def waiting(self) -> Mapping[PodUid, ClusterPod]:
        """Pods that want GPUs and are on no node."""
        return self._waiting

    def waiting_pod(self, namespace: str, name: str) -> ClusterPod | None:
        """Looks through all that wait: people ask seldom."""
        wanted = (namespace, name)
        named = (each for each in self._waiting.values() if (each.pod.ref.namespace, each.pod.ref.name) == wanted)
        return next(named, None)

    def pod(self, uid: PodUid) -> ClusterPod | None:
        """As the API server last told of it."""
        return self._told.get(uid) or self._waiting.get(uid)

    def put_node(self, node: ClusterNode) -> None:
        if self._book(node.name).describe(node):
            self._freed(node.name)

    def drop_node(self, name: str) -> None:
        if (book := self._nodes.get(name)) is not None:
            book.vanish()
            self._tidy(name)

    def put_pod(self, pod: ClusterPod) -> None:
        uid = pod.uid
        if not pod.pod.is_gpu or uid in self._gone or uid in self._ended:
            return
        self.drop_plain(uid)
        if pod.pod.is_terminal:
            self._ended.add(uid)
            self._end(uid)
        elif pod.pod.node:
            self._settle(pod)
        elif self.bound_to(uid) is None:
            self._wait(pod)

    def drop_pod(self, uid: PodUid) -> None:
        """It was deleted. Its UID never comes again, but late news of it may."""
        self._ended.discard(uid)
        self._end(uid)
        self._gone[uid] = None
        if len(self._gone) > _MOST_GONE:
            self._gone.popitem(last=False)

    def put_plain(self, pod: PlainPod) -> None:
        """It takes CPU and memory of its node, and no GPU."""
        known = self._plain.get(pod.uid)
        if known == pod:
            return
        self._book(pod.node).take(pod.needs)
        self._plain[pod.uid] = pod
        if known is not None:
            self._give_back(known)

    def drop_plain(self, uid: PodUid) -> None:
        """It has ended or was deleted."""
        if (known := self._plain.pop(uid, None)) is not None:
            self._give_back(known)

    def needs_of(self, uid: PodUid) -> Compute | None:
        """CPU and memory of a pod that wants GPUs, where somebody has told."""
        found = next((held.needs for held in self.holdings(uid) if held.needs is not None), None)
        waiting = self._waiting.get(uid)
        return waiting.needs if found is None and waiting is not None else found

    def is_new(self, uid: PodUid) -> bool:
        """Nobody has told of it before."""
        return not (uid in self._waiting or uid in self._where or self.is_over(uid))

    def is_over(self, uid: PodUid) -> bool:
        return uid in self._gone or uid in self._ended

    def bound_to(self, uid: PodUid) -> str | None:
        return next((each.node for each in self.holdings(uid) if each.is_bound), None)

    def holdings(self, uid: PodUid) -> Iterator[Holding]:
        return (self._nodes[node].holdings[uid] for node in self._where.get(uid, ()))

    def on(self, node: str, uid: PodUid) -> Holding | None:
        book = self._nodes.get(node)
        return None if book is None else book.holdings.get(uid)

    def problem(self, node: str) -> Refusal | None:
        book = self._nodes.get(node)
        return UNKNOWN_NODE if book is None else book.problem

    @property
    def nominated_nodes(self) -> Container[str]:
        """Nodes on which kube-scheduler makes room for some pod."""
        return self._nominated

    def nominated(self, node: str) -> Iterable[ClusterPod]:
        """Pods for which kube-scheduler makes room there."""
        return self._nominated.get(node, {}).values()

    def hold(self, holding: Holding) -> None:
        """Takes the place of what the pod held of this node; what is reserved for it elsewhere is given up."""
        uid = holding.pod.uid
        for other in tuple(self.holdings(uid)):
            if other.node != holding.node and other.hold is Hold.RESERVED:
                self.release(uid, other.node)
        self._enter(holding)

    def release(self, uid: PodUid, node: str, *, tell: bool = True) -> None:
        """Whoever wanted it does not any more. Nobody is told that there is room where it helps nobody."""
        if self.on(node, uid) is None:
            return
        self._nodes[node].release(uid)
        left = tuple(other for other in self._where[uid] if other != node)
        if left:
            self._where[uid] = left
        else:
            del self._where[uid]
        self._tidy(node)
        if tell:
            self._freed(node)

    def lapse(self) -> None:
        """Ends reservations that have waited too long; a Binding in doubt does not end by time alone."""
        for uid, node in self._lapses.due(self._clock()):
            held = self.on(node, uid)
            if held is not None and held.hold is Hold.RESERVED and held.expires <= self._clock():
                self.release(uid, node)

    def _enter(self, holding: Holding) -> None:
        uid, node = holding.pod.uid, holding.node
        self._book(node).hold(holding)
        if node not in self._where.get(uid, ()):
            self._where[uid] = (*self._where.get(uid, ()), node)
        if holding.lapses:
            self._lapses.expect(uid, node, holding.expires)

    def _settle(self, pod: ClusterPod) -> None:
        """A bound pod: the API server's word replaces ours."""
        uid, node = pod.uid, pod.pod.node
        self._forget_waiting(uid)
        known = self.on(node, uid)
        last, self._told[uid] = self._told.get(uid), pod
        if last is not None and _says_the_same(last, pod) and self._where.get(uid) == (node,):
            return  # as kubelet's reports do, of which there are several for every pod
        found = bound_holding(pod, self._names, sent=known)
        if known != found:
            self._enter(found)
        for other in tuple(self.holdings(uid)):
            if other.node != node:
                self.release(uid, other.node)
        if known is not None and (known.allocations, known.somewhere) != (found.allocations, found.somewhere):
            self._freed(node)

    def _wait(self, pod: ClusterPod) -> None:
        uid = pod.uid
        before = self._waiting.get(uid)
        self._forget_waiting(uid)
        self._waiting[uid] = pod
        if pod.nominated_node:
            self._nominated.setdefault(pod.nominated_node, {})[uid] = pod
        for held in tuple(self.holdings(uid)):
            if pod.pod.deleting or given_up(pod, held, before=before):
                self._give_up(held)

    def _give_up(self, held: Holding) -> None:
        """What may have been bound already stays, but filter's promise beside it ends."""
        if held.hold is Hold.RESERVED:
            self.release(held.pod.uid, held.node)
        elif held.hold is Hold.DOUBTFUL:
            self._enter(replace(held, expires=min(held.expires, self._clock())))

    def _end(self, uid: PodUid) -> None:
        self._forget_waiting(uid)
        self._told.pop(uid, None)
        for held in tuple(self.holdings(uid)):
            self.release(uid, held.node)

    def _forget_waiting(self, uid: PodUid) -> None:
        pod = self._waiting.pop(uid, None)
        if pod is not None and pod.nominated_node:
            there = self._nominated[pod.nominated_node]
            del there[uid]
            if not there:
                del self._nominated[pod.nominated_node]

    def _book(self, name: str) -> NodeBook:
        book = self._nodes.get(name)
        if book is None:
            book = self._nodes[name] = NodeBook(name)
        return book

    def _give_back(self, pod: PlainPod) -> None:
        self._nodes[pod.node].give_back(pod.needs)
        self._tidy(pod.node)

    def _tidy(self, name: str) -> None:
        if self._nodes[name].is_forgotten:
            del self._nodes[name]


def _says_the_same(known: ClusterPod, pod: ClusterPod) -> bool:
    """About what the pod holds."""
    was, now = known.pod, pod.pod
    return (
        (was.node, was.deleting, known.priority, known.needs) == (now.node, now.deleting, pod.priority, pod.needs)
        and was.annotations == now.annotations
        and was.containers == now.containers
    )
