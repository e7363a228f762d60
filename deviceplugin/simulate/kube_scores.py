"""Scores nodes for a pod by CPU and memory, as kube-scheduler's default profile does.

In: a node with what is free on it, and what a pod needs. Out: an integer, the most is the best. Facts (Kubernetes
1.36.2, `pkg/scheduler/framework/plugins/noderesources`): the profile adds NodeResourcesFit, by default LeastAllocated,
and NodeResourcesBalancedAllocation, each 0 to 100 with weight 1; the latter compares the balance with the pod to the
balance without it. Every division drops the remainder, as in Go. Simplified: the profile's other scores (taints,
affinity, spread of a workload's pods, images) are equal on all nodes, and LeastAllocated assumes no requests for a pod
that has none.
"""

from enum import StrEnum

from deviceplugin.placement.node_state import NodeState, Spare

_MOST = 100


class ScoringStrategy(StrEnum):
    """Of NodeResourcesFit, by the name in KubeSchedulerConfiguration."""

    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"


class KubeScores:
    """For one run: what a node has is what it had when it was seen first. An unchanged node is scored once."""

    def __init__(self, strategy: ScoringStrategy) -> None:
        self._strategy = strategy
        self._whole: dict[str, Spare] = {}
        self._known: dict[str, tuple[NodeState, dict[Spare, int]]] = {}

    def of(self, state: NodeState, needs: Spare) -> int:
        known = self._known.get(state.name)
        if known is None or known[0] is not state:
            known = self._known[state.name] = (state, {})
        found = known[1].get(needs)
        if found is None:
            whole = self._whole.setdefault(state.name, state.spare or Spare(0, 0))
            found = known[1][needs] = score(state.spare or whole, needs, whole, self._strategy)
        return found


def score(spare: Spare, needs: Spare, whole: Spare, strategy: ScoringStrategy) -> int:
    used, left = whole - spare, spare - needs
    return _fit(left, whole, strategy) + _balance_change(used, whole - left, whole)


def _fit(left: Spare, whole: Spare, strategy: ScoringStrategy) -> int:
    """The mean of what is free, or of what is requested, of the resources that the node has."""
    counted = left if strategy is ScoringStrategy.LEAST_ALLOCATED else whole - left
    parts = [_MOST * part // size for part, size in zip(counted, whole, strict=True) if size]
    return sum(parts) // len(parts) if parts else 0


def _balance_change(before: Spare, after: Spare, whole: Spare) -> int:
    """50 to 100, and 75 where the pod changes nothing; kube-scheduler leaves it out for a pod without requests."""
    if before == after:
        return 0
    return _MOST // 2 + (_MOST // 2 + _balance(after, whole) - _balance(before, whole)) // 2


def _balance(used: Spare, whole: Spare) -> int:
    """100 where CPU and memory are used to the same fraction, 50 where one is used up and the other is free."""
    parts = [min(1.0, part / size) for part, size in zip(used, whole, strict=True) if size]
    deviation = abs(parts[0] - parts[1]) / 2 if len(parts) == 2 else 0.0
    return int((1 - deviation) * _MOST)
