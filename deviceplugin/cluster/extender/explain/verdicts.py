"""Filter's last verdict on each pod, for explanations.

In: each answer of filter. Out: the last verdict on a pod, and whether any pod waits for room. The number of verdicts is
bounded: the oldest are dropped first. Reasons and names are shared with the cache, so a verdict on 500 nodes is two
short rows.

Why filter chose a node and its GPUs, kept until the Binding, which writes it down.

In: the choice among nodes, with their scores, and the GPUs chosen on the best. Out: a `DecisionRecord` for the pod's
annotation, so that every replica can say why a pod is where it is, also after a restart; and from such a record the
lines of an explanation, and a sentence for events. Sentences are made at the Binding, not while kube-scheduler waits
for filter.

Why a pod waits, and how many wait for each reason: the gauge by which an operator sees what a cluster lacks.

In: the cache, and filter's last verdicts. Out: the `Reason` of a pod, and counts. The set of reasons is bounded:
constant texts, those of `rejection` and those of `State`; a wrong request is one reason, whatever it says. A pod that
nodes refused for several reasons counts to the one that most nodes gave, of those that may go away when pods end if
there are any. Of a pod whose verdict is not known, because this replica leads only since then or many pods wait,
kube-scheduler's message has the reasons.
"""

import enum
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import groupby
from typing import NamedTuple

import msgspec

from deviceplugin.cluster.extender.cache.pod_hold import is_later
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.rejection import PREFERRED, Rejection, label_of, main_of, main_rejection, summary_of
from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import Allocation, PodRef, PodUid
from deviceplugin.model.annotations import VERSION, ContainerRecord, DecisionRecord, parse_decision
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.preferences import NodePolicy
from deviceplugin.placement.describe import gpus_text, listed
from deviceplugin.placement.nodes import NodeChoice
from deviceplugin.placement.pod import PodChoice

_MOST_REASONS = 4
_MOST_OF_A_POD = 3
_MOST_GATES = 3
_BEST = {
    NodePolicy.BINPACK: "the fullest",
    NodePolicy.SPREAD: "the emptiest",
    NodePolicy.FRAGMENTATION: "the one that leaves the fewest useless cores",
}


class Decision(msgspec.Struct, frozen=True):
    """`fits` counts the nodes with room, `next` are the best of the others, best first.

    `equal`: the first of these has the same score, and the node was taken by its name. `placed` is None if the pod
    was placed without a choice among nodes.
    """

    node: str
    at: float
    policy: NodePolicy
    fits: int
    next: tuple[str, ...]
    equal: bool
    rejected: tuple[Rejection, ...]
    placed: PodChoice


def decision_of(
    choice: NodeChoice, rejected: Mapping[str, Rejection], *, policy: NodePolicy, at: float
) -> Decision | None:
    """None if no node carries the pod. `rejected`: why each other node was not taken."""
    if choice.node is None or choice.placed is None:
        return None
    chosen, *others = choice.best
    return Decision(
        node=choice.node,
        at=at,
        policy=policy,
        fits=choice.fits,
        next=tuple(name for _, name in others),
        equal=bool(others) and others[0][0] == chosen[0],
        rejected=tuple(rejected.values()),
        placed=choice.placed,
    )


def record_of(
    decision: Decision | None, pod: PodRef, node: str, allocations: tuple[Allocation, ...], inventory: Inventory | None
) -> DecisionRecord | None:
    """For the annotation; None if nothing is known about the choice of this node."""
    if decision is None or decision.node != node:
        return None
    chosen = {each.owner.name: each.shares for each in decision.placed.allocations}
    containers = {
        each.owner.name: _container(decision.placed, each.owner.name, _minors(each, inventory))
        for each in allocations
        if chosen.get(each.owner.name) == each.shares
    }
    reason, others = _node_reason(decision), tuple(_node_others(decision))
    return DecisionRecord(VERSION, pod.uid, node, round(decision.at), reason, others, containers)


def _minors(allocation: Allocation, inventory: Inventory | None) -> tuple[int, ...]:
    gpus = inventory.gpus if inventory else ()
    return tuple(sorted(gpu.minor for gpu in gpus if gpu.uuid in allocation.uuids))


def _container(placed: PodChoice, name: str, minors: tuple[int, ...]) -> ContainerRecord:
    reason = next(
        reason for each, reason in zip(placed.allocations, placed.reasons, strict=True) if each.owner.name == name
    )
    choice = placed.choice(name)
    passed = [] if choice is None else sorted((each.reason, each.gpu.minor) for each in choice.passed_over)
    others = [
        f"{gpus_text(minor for _, minor in same)}: {why}" for why, same in groupby(passed, key=lambda each: each[0])
    ]
    return ContainerRecord(minors, reason, tuple(others))


def _node_reason(decision: Decision) -> str:
    node, policy = f"node {decision.node}", f"policy {decision.policy.value}"
    if decision.fits == 1:
        return f"{node} is the only one that fits"
    if decision.equal:
        return f"{node} is the first by name of those that are best by {policy}; {decision.fits} nodes fit"
    return f"{node} is {_BEST[decision.policy]} of {decision.fits} nodes that fit ({policy})"


def _node_others(decision: Decision) -> Iterator[str]:
    if decision.next:
        more = decision.fits - 1 - len(decision.next)
        names = [*decision.next, *([f"{more} more"] if more > 0 else [])]
        yield f"{'next in that order: ' if len(names) > 1 else 'next: '}{listed(names)}"
    counted = Counter(why.text for why in decision.rejected).most_common()
    for text, count in counted[:_MOST_REASONS]:
        yield f"{count} node{'s' * (count != 1)}: {text}"
    if left := sum(count for _, count in counted[_MOST_REASONS:]):
        yield f"{left} node{'s' * (left != 1)}: other reasons"


def written_decision(text: str) -> DecisionRecord | None:
    """None if the annotation is empty or cannot be read."""
    try:
        return parse_decision(text) if text else None
    except ParseError:
        return None


def summary(record: DecisionRecord) -> str:
    """One sentence, for an event on the pod."""
    parts = (f"container {name}: {each.reason}" for name, each in record.containers.items())
    return "; ".join((record.reason, *parts))


def why_lines(
    written: str, pod: PodRef, node: str, allocations: tuple[Allocation, ...], inventory: Inventory | None
) -> tuple[str, ...]:
    """Lines for people, from the annotation of a bound pod; empty if it has none that is about this pod and node."""
    record = written_decision(written)
    if record is None or record.pod != pod.uid or record.node != node:
        return ()
    lines = [record.reason, *(f"  {each}" for each in record.others)]
    for each in allocations:
        found = record.containers.get(each.owner.name)
        if found is None:
            continue
        if found.gpus != _minors(each, inventory):
            lines.append(f"container {each.owner.name}: the node's agent has placed it again since")
            continue
        lines += [f"container {each.owner.name}: {found.reason}", *(f"  {other}" for other in found.others)]
    return tuple(lines)


_MOST = 1_000
_MOST_HUNGRY = 100_000


class LastVerdict(msgspec.Struct, frozen=True):
    """`at` is in Unix seconds. `node` is the chosen one; `fits`: the pod fits on at least one node.

    `fitting` are nodes on which the pod fits too, but another node was preferred. `counted` has each of the `reasons`
    once with its nodes, that of most first; empty if the pod fits. `decision`: why `node`, where the pod was placed.
    """

    pod: ClusterPod
    at: float
    node: str | None
    fits: bool
    names: tuple[str, ...]
    reasons: tuple[Rejection, ...]
    fitting: tuple[str, ...] = ()
    counted: tuple[tuple[Rejection, int], ...] = ()
    decision: Decision | None = None

    @property
    def distinct(self) -> tuple[Rejection, ...]:
        return tuple(why for why, _ in self.counted)

    @property
    def refused(self) -> Mapping[str, Rejection]:
        against = dict(zip(self.names, self.reasons, strict=True))
        others = (name for name in self.fitting if name != self.node and name not in against)
        return against | dict.fromkeys(others, PREFERRED)

    def is_superseded_by(self, waiting: ClusterPod) -> bool:
        """kube-scheduler has refused the pod after this verdict, and for another reason.

        After a refusal by the extender kube-scheduler's message has the extender's reasons, which no other plugin uses.
        A refusal that the pod already carried when filter was asked is older than the verdict.
        """
        condition = waiting.condition
        if condition is None or not waiting.is_refused or not condition.message:
            return False
        if not is_later(waiting.pod.resource_version, self.pod.pod.resource_version):
            return False
        if self.fits:
            return condition != self.pod.condition
        return not any(why.text in condition.message for why in self.distinct)


class Verdicts:
    """`most` pods are remembered; `count` verdicts were recorded since the start."""

    def __init__(self, *, most: int = _MOST, wall: Callable[[], float] = time.time) -> None:
        self._most = most
        self._wall = wall
        self._last: OrderedDict[PodUid, LastVerdict] = OrderedDict()
        self._unplaced: OrderedDict[PodUid, int] = OrderedDict()
        self.count = 0

    def record(
        self,
        pod: ClusterPod,
        node: str | None,
        refused: Mapping[str, Rejection],
        *,
        fitting: Iterable[str] = (),
        fits: bool = False,
        decision: Decision | None = None,
    ) -> None:
        uid = pod.uid
        self.count += 1
        self._last.pop(uid, None)
        names, reasons = tuple(refused), tuple(refused.values())
        counted = () if fits else _counted(reasons)
        self._last[uid] = LastVerdict(pod, self._wall(), node, fits, names, reasons, tuple(fitting), counted, decision)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        self._unplaced.pop(uid, None)
        if not fits:
            self._unplaced[uid] = self.count
        if len(self._unplaced) > _MOST_HUNGRY:
            self._unplaced.popitem(last=False)

    def forget(self, uid: PodUid) -> None:
        """The pod has a node or was deleted."""
        self._last.pop(uid, None)
        self._unplaced.pop(uid, None)

    @property
    def has_unplaced_pods(self) -> bool:
        """Some pod fitted on none of the nodes that filter was last asked about."""
        return bool(self._unplaced)

    def refused_since(self, count: int, *, but: Container[PodUid]) -> bool:
        """Whether another pod has waited since that many verdicts were recorded."""
        for uid, at in reversed(self._unplaced.items()):
            if at <= count:
                return False
            if uid not in but:
                return True
        return False

    def is_unanswered(self, pod: ClusterPod) -> bool:
        """kube-scheduler asks again, so the last attempt has failed; whether its refusal may still be written.

        It is not where the condition would be the same. The extender's reasons are in the message if it refused.
        """
        last, now = self._last.get(pod.uid), pod.condition
        if last is None or last.pod.condition != now:
            return False
        return last.fits or now is None or not any(why.text in now.message for why in last.distinct)

    def decision(self, uid: PodUid) -> Decision | None:
        verdict = self._last.get(uid)
        return None if verdict is None else verdict.decision

    def of(self, uid: PodUid) -> LastVerdict | None:
        return self._last.get(uid)

    def find(self, namespace: str, name: str) -> LastVerdict | None:
        """The latest pod of that name."""
        named = (each for each in reversed(self._last.values()) if str(each.pod.pod.ref) == f"{namespace}/{name}")
        return next(named, None)


def _counted(reasons: tuple[Rejection, ...]) -> tuple[tuple[Rejection, int], ...]:
    """Counted by identity, as reasons are shared: hashing those of 5,000 nodes would take longer than choosing one."""
    by_id = dict(zip(map(id, reasons), reasons, strict=True))
    found: Counter[Rejection] = Counter()
    for each, count in Counter(map(id, reasons)).items():
        found[by_id[each]] += count
    return tuple(found.most_common())


class State(enum.Enum):
    """Why a pod waits that no node refused last."""

    GATED = "it has scheduling gates"
    DELETING = "it is being deleted"
    NOT_ASKED = "kube-scheduler has not asked about it"
    PLACED = "a node is chosen, and kube-scheduler has not bound it yet"
    OTHER = "kube-scheduler refused it for a reason outside the extender"
    NO_NODE = "kube-scheduler asked about no node"


def pending(cache: SchedulerCache, verdicts: Verdicts) -> Mapping[str, int]:
    """Every `State` has a count, also 0; reasons of nodes only if a pod waits for them."""
    counts = Counter({each.value: 0 for each in State})
    for pod in cache.waiting.values():
        is_held = not pod.pod.deleting and any(cache.holds(pod.uid))
        counts[State.PLACED.value if is_held else reason_of(pod, verdicts.of(pod.uid)).kind] += 1
    return counts


class Reason(NamedTuple):
    """Why a pod waits: `kind` groups pods, `sentence` makes the one for this pod, where somebody reads it."""

    kind: str
    sentence: Callable[[], str]


def reason_of(pod: ClusterPod, verdict: LastVerdict | None) -> Reason:
    """Of a pod for which nothing is reserved."""
    if pod.pod.deleting:
        return Reason(State.DELETING.value, lambda: "the pod is being deleted")
    if pod.gates:
        return Reason(State.GATED.value, lambda: gates_sentence(pod))
    if verdict is not None and not verdict.is_superseded_by(pod):
        return _judged(verdict)
    condition = pod.condition
    if condition is None or not pod.is_refused:
        return Reason(State.NOT_ASKED.value, lambda: State.NOT_ASKED.value)
    kind = State.OTHER.value if verdict is not None else _told(condition.message)
    return Reason(kind, lambda: " ".join(condition.message.split()) or kind)


def gates_sentence(pod: ClusterPod) -> str:
    """Their names tell who must remove them."""
    if len(pod.gates) == 1:
        return f"the pod is Pending until its scheduling gate {pod.gates[0]} is removed"
    more = f" and {len(pod.gates) - _MOST_GATES} more" if len(pod.gates) > _MOST_GATES else ""
    return f"the pod is Pending until its scheduling gates {', '.join(pod.gates[:_MOST_GATES])}{more} are removed"


def _judged(verdict: LastVerdict) -> Reason:
    if verdict.fits:
        where = f"node {verdict.node}" if verdict.node else "a node"
        return Reason(State.PLACED.value, lambda: f"{where} was chosen; kube-scheduler has not bound the pod yet")
    if not verdict.counted:
        return Reason(State.NO_NODE.value, lambda: State.NO_NODE.value)
    counted = dict(verdict.counted)
    return Reason(label_of(main_rejection(counted).text), partial(summary_of, counted, most=_MOST_OF_A_POD))


@lru_cache(maxsize=1024)
def _told(message: str) -> str:
    return main_of(message) or State.OTHER.value
