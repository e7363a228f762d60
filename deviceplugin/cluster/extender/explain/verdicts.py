"""Filter's last verdict on each pod, for explanations.

In: each answer of filter. Out: the last verdict on a pod, and whether any pod waits for room. The number of verdicts is
bounded: the oldest are dropped first. Reasons and names are shared with the cache, so a verdict on 500 nodes is two
short rows.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from deviceplugin.cluster.extender.cache.pod_hold import is_later
from deviceplugin.cluster.extender.explain.decision import Decision
from deviceplugin.cluster.extender.rejection import PREFERRED, Rejection
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod

_MOST = 1_000
_MOST_HUNGRY = 100_000


@dataclass(frozen=True, slots=True)
class LastVerdict:
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
