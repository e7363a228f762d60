"""Gangs that kube-scheduler has given up without a word.

In: every question about a member, and whether it found a node. Out: the gang's reservations given back. kube-scheduler
writes PodScheduled=False only where the condition changes, so of a gang's second failure nothing can be seen; and what
a gang that is too large has reserved may be every GPU there is. Invariants:

- members of a group that one cycle decides about are bound right after it: reservations end a moment after the last
  question about any member, unless kube-scheduler has nominated the node, as it does before it prepares volumes;
- a gang that waits at Permit keeps them as long as it may wait; once a member was refused, as long as other pods do;
- a gang is not woken by its own reservations coming to an end: it would be tried and given up for ever.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from deviceplugin.cluster.extender.books import Books
from deviceplugin.cluster.extender.holding import Hold, Holding
from deviceplugin.cluster.extender.reservations import Patience
from deviceplugin.cluster.extender.verdicts import Verdicts
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.cluster_pod import ClusterPod
from deviceplugin.model.gang import Gang


@dataclass(slots=True)
class _Try:
    """`began`: how many verdicts there were before it; `ends`: when it is over, if nobody is asked about before."""

    began: int
    members: dict[PodUid, bool] = field(default_factory=dict)
    ends: float = 0.0

    @property
    def is_refused(self) -> bool:
        return not all(self.members.values())


class Gangs:
    """One try per gang; forgotten when it is over."""

    def __init__(self, books: Books, verdicts: Verdicts, *, patience: Patience, clock: Callable[[], float]) -> None:
        self._books = books
        self._verdicts = verdicts
        self._patience = patience
        self._clock = clock
        self._tries: dict[Gang, _Try] = {}
        self._next = math.inf

    def asked(self, pod: ClusterPod, *, fits: bool) -> None:
        """Before the verdict is recorded."""
        if pod.gang is None:
            return
        found = self._tries.setdefault(pod.gang, _Try(self._verdicts.count))
        found.members[pod.uid] = fits
        found.ends = self._clock() + self._time_of(pod.gang, found)
        self._next = min(self._next, found.ends)

    def lapse(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        for gang, found in tuple(self._tries.items()):
            if found.ends <= now:
                del self._tries[gang]
                if found.is_refused or not gang.waits:
                    self._give_up(found)
        self._next = min((each.ends for each in self._tries.values()), default=math.inf)

    def _time_of(self, gang: Gang, found: _Try) -> float:
        if not gang.waits:
            return self._patience.cycle
        return self._patience.reservation if found.is_refused else self._patience.gang

    def _give_up(self, found: _Try) -> None:
        tell = self._verdicts.refused_since(found.began, beside=found.members)
        for uid in found.members:
            for held in tuple(self._books.holdings(uid)):
                if held.hold is Hold.RESERVED and not self._is_nominated(held):
                    self._books.release(uid, held.node, tell=tell)

    def _is_nominated(self, held: Holding) -> bool:
        pod = self._books.waiting.get(held.pod.uid)
        return pod is not None and pod.nominated_node == held.node
