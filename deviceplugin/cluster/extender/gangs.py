"""Groups that one cycle of kube-scheduler decides about, and that it gave up without a word.

In: every question about a member. Out: the group's reservations given back. kube-scheduler writes PodScheduled=False
only where the condition changes, so a group's second failure cannot be seen, and it tries one that does not fit many
times a second (1.36). What a group that is too large has reserved may be every GPU there is. Invariants:

- members are bound right after the cycle: reservations end a moment after the last question about any of them, unless
  kube-scheduler has nominated the node, as it does before it prepares volumes;
- what a group has that was asked about again, so was not bound, gives way to whoever fits nowhere else;
- a group is not woken by its own reservations coming to an end: it would be tried and given up for ever.

Not here: gangs whose members wait at Permit. What one of those has is still wanted when another was refused.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from deviceplugin.cluster.extender.books import Books
from deviceplugin.cluster.extender.holding import Hold, Holding
from deviceplugin.cluster.extender.verdicts import Verdicts
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.cluster_pod import ClusterPod
from deviceplugin.model.gang import Gang


@dataclass(slots=True)
class _Try:
    """`began`: how many verdicts there were before it; `ends`: when it is over, if nobody is asked about before."""

    began: int
    members: set[PodUid] = field(default_factory=set)
    ends: float = 0.0
    is_again: bool = False


class Gangs:
    """One try per group, forgotten when it is over. `patience`: seconds from a last question to the Bindings."""

    def __init__(self, books: Books, verdicts: Verdicts, *, patience: float, clock: Callable[[], float]) -> None:
        self._books = books
        self._verdicts = verdicts
        self._patience = patience
        self._clock = clock
        self._tries: dict[Gang, _Try] = {}
        self._next = math.inf

    def asked(self, pod: ClusterPod) -> None:
        """Before the verdict is recorded."""
        if pod.gang is None or pod.gang.waits:
            return
        found = self._tries.setdefault(pod.gang, _Try(self._verdicts.count))
        found.is_again |= pod.uid in found.members
        found.members.add(pod.uid)
        found.ends = self._clock() + self._patience
        self._next = min(self._next, found.ends)

    def give_way(self, pod: ClusterPod) -> bool:
        """Whether there is more room for this pod now than there was."""
        others = [found for gang, found in self._tries.items() if gang != pod.gang and found.is_again]
        given = [self._give_up(found.members, tell=False) for found in others]
        return any(given)

    def lapse(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        for gang, found in tuple(self._tries.items()):
            if found.ends <= now:
                del self._tries[gang]
                self._give_up(found.members, tell=self._verdicts.refused_since(found.began, beside=found.members))
        self._next = min((each.ends for each in self._tries.values()), default=math.inf)

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
