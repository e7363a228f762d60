"""Gangs that were given up without a word.

In: every question about a member, and whether it found a node. Out: the gang's reservations given back. kube-scheduler
writes PodScheduled=False only where the condition changes, so of a gang's second failure nothing can be seen; it may
try it fifty times a second (1.36), and what a gang that is too large has reserved may be every GPU there is.
Invariants:

- once a member was refused, what the others have reserved gives way to whoever fits nowhere else. So does what a group
  has that was asked about again without being bound: other reasons than ours keep it from starting;
- members of a group that one cycle decides about are bound right after it: reservations end a moment after the last
  question about any member, unless kube-scheduler has nominated the node, as it does before it prepares volumes;
- a gang that waits at Permit keeps them as long as it may wait; once a member was refused, as long as other pods do;
- a gang is not woken by its own reservations coming to an end: it would be tried and given up for ever.
"""

import math
from collections.abc import Callable, Iterable
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
    members: set[PodUid] = field(default_factory=set)
    refused: set[PodUid] = field(default_factory=set)
    ends: float = 0.0
    is_again: bool = False


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
        found.is_again |= pod.uid in found.members and pod.uid not in found.refused
        found.members.add(pod.uid)
        (found.refused.discard if fits else found.refused.add)(pod.uid)
        found.ends = self._clock() + self._time_of(pod.gang, found)
        self._next = min(self._next, found.ends)

    def give_way(self, pod: ClusterPod) -> bool:
        """Whether there is more room for this pod now than there was."""
        giving = [
            found
            for gang, found in self._tries.items()
            if gang != pod.gang and (self._is_refused(found) or (found.is_again and not gang.waits))
        ]
        given = [self._give_up(found.members, tell=False) for found in giving]
        return any(given)

    def lapse(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        for gang, found in tuple(self._tries.items()):
            if found.ends <= now:
                del self._tries[gang]
                if self._is_refused(found) or not gang.waits:
                    tell = self._verdicts.refused_since(found.began, beside=found.members)
                    self._give_up(found.members, tell=tell)
        self._next = min((each.ends for each in self._tries.values()), default=math.inf)

    def _time_of(self, gang: Gang, found: _Try) -> float:
        if not gang.waits:
            return self._patience.cycle
        return self._patience.reservation if self._is_refused(found) else self._patience.gang

    def _is_refused(self, found: _Try) -> bool:
        """A member that was refused and is still there."""
        return any(not self._books.is_over(uid) for uid in found.refused)

    def _give_up(self, members: Iterable[PodUid], *, tell: bool) -> bool:
        """Whether they had anything."""
        held = [each for uid in members for each in self._books.holdings(uid)]
        over = [each for each in held if each.hold is Hold.RESERVED and not self._is_nominated(each)]
        for each in over:
            self._books.release(each.pod.uid, each.node, tell=tell)
        return bool(over)

    def _is_nominated(self, held: Holding) -> bool:
        pod = self._books.waiting.get(held.pod.uid)
        return pod is not None and pod.nominated_node == held.node
