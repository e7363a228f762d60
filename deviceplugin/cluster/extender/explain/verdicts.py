"""What filter last said about each pod, for whoever asks why it waits.

In: each answer of filter. Out: the last verdict of a pod, and whether anybody waits for room at all. Bounded: the
oldest are forgotten first. Reasons and names are shared with the books, so that a verdict on 500 nodes is two short
rows.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from deviceplugin.cluster.extender.refusal import PREFERRED, Refusal
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import ClusterPod

_MOST = 1_000
_MOST_HUNGRY = 100_000


@dataclass(frozen=True, slots=True)
class LastVerdict:
    """`at` is Unix seconds. `node` is the one that was chosen; `fits`: at least one node carried the pod.

    `aside` are nodes against which nothing speaks but that another was preferred.
    """

    pod: ClusterPod
    at: float
    node: str | None
    fits: bool
    names: tuple[str, ...]
    reasons: tuple[Refusal, ...]
    aside: tuple[str, ...] = ()

    @property
    def refused(self) -> Mapping[str, Refusal]:
        against = dict(zip(self.names, self.reasons, strict=True))
        others = (name for name in self.aside if name != self.node and name not in against)
        return against | dict.fromkeys(others, PREFERRED)


class Verdicts:
    """`most` pods are remembered; `count` verdicts were recorded since the start."""

    def __init__(self, *, most: int = _MOST, wall: Callable[[], float] = time.time) -> None:
        self._most = most
        self._wall = wall
        self._last: OrderedDict[PodUid, LastVerdict] = OrderedDict()
        self._hungry: OrderedDict[PodUid, int] = OrderedDict()
        self.count = 0

    def record(
        self,
        pod: ClusterPod,
        node: str | None,
        refused: Mapping[str, Refusal],
        *,
        aside: Iterable[str] = (),
        fits: bool = False,
    ) -> None:
        uid = pod.uid
        self.count += 1
        self._last.pop(uid, None)
        names, reasons = tuple(refused), tuple(refused.values())
        self._last[uid] = LastVerdict(pod, self._wall(), node, fits, names, reasons, tuple(aside))
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        self._hungry.pop(uid, None)
        if not fits:
            self._hungry[uid] = self.count
        if len(self._hungry) > _MOST_HUNGRY:
            self._hungry.popitem(last=False)

    def forget(self, uid: PodUid) -> None:
        """The pod has a node or is gone: nobody asks any more why it waits."""
        self._last.pop(uid, None)
        self._hungry.pop(uid, None)

    @property
    def anybody_waits(self) -> bool:
        """Some pod was refused by every node that it was last asked about."""
        return bool(self._hungry)

    def refused_since(self, count: int, *, beside: Container[PodUid]) -> bool:
        """Whether anybody else has waited since that many verdicts were recorded."""
        for uid, at in reversed(self._hungry.items()):
            if at <= count:
                return False
            if uid not in beside:
                return True
        return False

    def of(self, uid: PodUid) -> LastVerdict | None:
        return self._last.get(uid)

    def find(self, namespace: str, name: str) -> LastVerdict | None:
        """The latest pod of that name."""
        found = (each for each in reversed(self._last.values()) if _named(each.pod.pod.ref, namespace, name))
        return next(found, None)


def _named(pod: PodRef, namespace: str, name: str) -> bool:
    return (pod.namespace, pod.name) == (namespace, name)
