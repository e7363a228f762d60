"""What kinds of task a cluster has seen of late, for the policy that plans for those to come.

In: each pod once, with the CPU and memory that it needs, when it is first heard of. Out: a `Workload`, or None while
too few were seen to say anything. What is long ago counts less: whenever so many tasks have been counted, every count
is halved. Rare kinds beyond the most frequent ones are left out, so that a cluster in which no two pods are alike costs
no more than another. The same pods in the same order give the same workload.
"""

from collections import Counter

from deviceplugin.model.pod_request import PodRequest
from deviceplugin.placement.node_state import Spare
from deviceplugin.placement.workload import NO_NEEDS, TaskKind, Workload, kinds_of

ENOUGH = 100
"""Tasks, before they say more about what comes than the assumed ones."""
_HALVE_AT = 20_000
_MOST_KINDS = 64
_MOST_COUNTED = 4_096


class Observed:
    """Bounded, whatever comes. `tasks` were seen in all."""

    def __init__(self, *, enough: int = ENOUGH, halve_at: int = _HALVE_AT, most_kinds: int = _MOST_KINDS) -> None:
        self._enough = enough
        self._halve_at = halve_at
        self._most_kinds = most_kinds
        self._counts: Counter[TaskKind] = Counter()
        self._total = 0
        self.tasks = 0

    def see(self, pod: PodRequest, needs: Spare = NO_NEEDS) -> None:
        for kind in kinds_of(pod, needs):
            self._counts[kind] += 1
            self._total += 1
            self.tasks += 1
        if self._total >= self._halve_at or len(self._counts) > _MOST_COUNTED:
            self._halve()

    def workload(self) -> Workload | None:
        if self.tasks < self._enough:
            return None
        return Workload(tuple(self._counts.most_common(self._most_kinds))) if self._counts else None

    def _halve(self) -> None:
        """A kind of which one was left is forgotten."""
        self._counts = Counter({kind: count // 2 for kind, count in self._counts.items() if count > 1})
        self._total = self._counts.total()
