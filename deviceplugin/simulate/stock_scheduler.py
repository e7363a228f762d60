"""Chooses as the cluster's own kube-scheduler does: for pods without GPUs, and for pods that ask by ResourceClaim.

In: a pod and the nodes. Out: a `NodeChoice`. Facts (Kubernetes 1.36, its default plugins): nodes are scored by CPU and
memory and never by GPUs; of equal nodes one is drawn. For claims the first devices of the node that fit
are taken, in the order of the ResourceSlice, which is that of the minor numbers; there is no score of devices. Each
container has a claim of its own, and all are held at once, also those of init containers. Simplified: every node is
scored, whereas kube-scheduler looks at a part of them in clusters of more than 100 nodes.

Nodes are scored for a pod by CPU and memory, as kube-scheduler's default profile does.

In: a node with what is free on it, and what a pod needs. Out: an integer, the most is the best. Facts (Kubernetes
1.36.2, `pkg/scheduler/framework/plugins/noderesources`): the profile adds NodeResourcesFit, by default LeastAllocated,
and NodeResourcesBalancedAllocation, each 0 to 100 with weight 1; the latter compares the balance with the pod to the
balance without it. Every division drops the remainder, as in Go. Simplified: the profile's other scores (taints,
affinity, spread of a workload's pods, images) are equal on all nodes, and LeastAllocated assumes no requests for a pod
that has none.
"""

import random
from collections.abc import Iterable, Mapping
from enum import StrEnum

from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuFilter
from deviceplugin.placement.fit import NodeRejection, demand_of
from deviceplugin.placement.node_score import NodeChoice
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.place import shares_of
from deviceplugin.placement.pod import PodChoice
from deviceplugin.placement.snapshot import GpuView

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


_REASON = ("the first that fits",)


class StockScheduler:
    """For one run. `seed` draws among equal nodes."""

    def __init__(self, seed: int, strategy: ScoringStrategy = ScoringStrategy.LEAST_ALLOCATED) -> None:
        self._drawn = random.Random(seed)  # noqa: S311 - a repeatable experiment, not a secret
        self._scores = KubeScores(strategy)
        self._known: dict[str, tuple[NodeState, dict[object, PodChoice | None]]] = {}

    def choose(self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare) -> NodeChoice:
        refused: dict[str, NodeRejection] = {}
        best: list[tuple[NodeState, PodChoice]] = []
        most = -1
        for state in states:
            score = self._scores.of(state, needs)
            if state.spare is not None and not state.spare.covers(needs):
                refused[state.name] = NodeRejection.SPARE
                continue
            placed = self._placed(pod, state)
            if placed is None:
                refused[state.name] = NodeRejection.SHARES
                continue
            if score > most:
                best, most = [], score
            if score == most:
                best.append((state, placed))
        if not best:
            return NodeChoice(None, None, {}, refused)
        state, placed = self._drawn.choice(sorted(best, key=lambda each: each[0].name))
        return NodeChoice(state.name, placed, {}, refused)

    def _placed(self, pod: PodRequest, state: NodeState) -> PodChoice | None:
        """A node that has not changed answers a pod of a known shape from memory."""
        known = self._known.get(state.name)
        if known is None or known[0] is not state:
            known = self._known[state.name] = (state, {})
        shape = pod.shape
        if shape not in known[1]:
            known[1][shape] = first_fit(pod, state)
        found = known[1][shape]
        return None if found is None else _for(pod, found)


def first_fit(pod: PodRequest, state: NodeState) -> PodChoice | None:
    """None if a container finds no room beside those before it."""
    free = {view.gpu.uuid: view for view in state.open_gpus.views}
    allocations = []
    for container in pod.containers:
        chosen = _first(container, free, pod.preferences.gpus)
        if chosen is None:
            return None
        demand = demand_of(container.request)
        shares = shares_of(container.request, chosen)
        owner = ContainerRef(pod.pod, container.name)
        allocations.append(Allocation(owner, ContainerRole.UNKNOWN, container.request, shares, container.index))
        for view in chosen:
            free[view.gpu.uuid] = view.less(demand.takes(view.gpu.blocks))
    return PodChoice(tuple(allocations), _REASON * len(allocations))


def _first(
    container: ContainerRequest, free: Mapping[GpuUuid, GpuView], wanted: GpuFilter
) -> tuple[GpuView, ...] | None:
    """Of as many GPUs as the request has parts, each once."""
    demand, found = demand_of(container.request), []
    for view in sorted(free.values(), key=lambda each: each.gpu.minor):
        if not (wanted.admits_uuid(view.gpu.uuid) and wanted.admits_model(view.gpu.model)):
            continue
        if demand.rejection(view.capacity) is None:
            found.append(view)
            if len(found) == container.request.gpus:
                return tuple(found)
    return None


def _for(pod: PodRequest, found: PodChoice) -> PodChoice:
    """The same for another pod of the shape."""
    allocations = tuple(
        Allocation(ContainerRef(pod.pod, asked.name), each.role, each.request, each.shares, each.index)
        for asked, each in zip(pod.containers, found.allocations, strict=True)
    )
    return PodChoice(allocations, found.reasons)
