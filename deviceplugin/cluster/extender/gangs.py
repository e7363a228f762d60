"""Gangs that kube-scheduler gave up without a word.

In: every question about a member, and whether it found a node. Out: the gang's reservations given back. kube-scheduler
writes PodScheduled=False only where the condition changes, so a gang's second failure cannot be seen; and what a gang
that is too large has reserved may be every GPU there is. Invariants:

- a group that one cycle decides about is bound right after it: its reservations end a moment after the last question
  about any member, unless kube-scheduler has nominated the node, as it does before it prepares volumes. Asked about
  again, so not bound, it gives way to whoever fits nowhere else: 1.36 tries it anew many times a second;
- a gang that waits at Permit gives way once a member was refused. From then on it gets nothing until it is tried anew,
  which shows when a member is asked about that had found a node: else the late member would start it without the rest;
- a gang is not woken by its own reservations coming to an end: it would be tried and given up for ever.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from deviceplugin.cluster.extender.cache.pod_hold import Hold, Holding
from deviceplugin.cluster.extender.cache.reservations import Patience
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.explain.verdicts import Verdicts
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod, Gang


@dataclass(slots=True)
class _Try:
    """`began`: how many verdicts there were before it; `ends`: when it is over, if nobody is asked about before.

    `placed` and `refused` are members as this round of questions went so far; `members` are those of all rounds.
    """

    began: int
    members: set[PodUid] = field(default_factory=set)
    placed: set[PodUid] = field(default_factory=set)
    refused: set[PodUid] = field(default_factory=set)
    ends: float = 0.0
    is_again: bool = False
    gave_way: bool = False

    def begin_again(self) -> None:
        self.placed.clear()
        self.refused.clear()
        self.is_again, self.gave_way = True, False


class Gangs:
    """One try per gang, forgotten when it is over."""

    def __init__(self, books: Books, verdicts: Verdicts, *, patience: Patience, clock: Callable[[], float]) -> None:
        self._books = books
        self._verdicts = verdicts
        self._patience = patience
        self._clock = clock
        self._tries: dict[Gang, _Try] = {}
        self._next = math.inf

    def ask(self, pod: ClusterPod) -> bool:
        """Before a member is placed: whether it may be."""
        found = self._tries.get(pod.gang) if pod.gang else None
        if found is not None and pod.uid in found.placed:
            found.begin_again()
        return found is None or not found.gave_way

    def answered(self, pod: ClusterPod, *, fits: bool) -> None:
        """Before the verdict is recorded."""
        if pod.gang is None:
            return
        found = self._tries.setdefault(pod.gang, _Try(self._verdicts.count))
        found.members.add(pod.uid)
        (found.placed if fits else found.refused).add(pod.uid)
        if fits:
            found.refused.discard(pod.uid)
        found.ends = self._clock() + (self._patience.gang if pod.gang.waits else self._patience.cycle)
        self._next = min(self._next, found.ends)

    def give_way(self, pod: ClusterPod) -> bool:
        """Whether there is more room for this pod now than there was."""
        given = False
        for gang, found in self._tries.items():
            if gang != pod.gang and self._is_given_up(gang, found) and self._release(found.members, tell=False):
                found.gave_way = gang.waits
                given = True
        return given

    def lapse(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        for gang, found in tuple(self._tries.items()):
            if found.ends <= now:
                del self._tries[gang]
                tell = self._verdicts.refused_since(found.began, beside=found.members)
                self._release(found.members, tell=tell)
        self._next = min((each.ends for each in self._tries.values()), default=math.inf)

    def _is_given_up(self, gang: Gang, found: _Try) -> bool:
        if not gang.waits:
            return found.is_again
        return any(not self._books.is_over(uid) for uid in found.refused)

    def _release(self, members: Iterable[PodUid], *, tell: bool) -> bool:
        """Whether they had anything."""
        held = [each for uid in members for each in self._books.holdings(uid)]
        over = [each for each in held if each.hold is Hold.RESERVED and not self._is_nominated(each)]
        for each in over:
            self._books.release(each.pod.uid, each.node, tell=tell)
        return bool(over)

    def _is_nominated(self, held: Holding) -> bool:
        pod = self._books.waiting.get(held.pod.uid)
        return pod is not None and pod.nominated_node == held.node
