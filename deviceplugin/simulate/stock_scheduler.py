"""Chooses as the cluster's own kube-scheduler does: for pods without GPUs, and for pods that ask by ResourceClaim.

In: a pod and the nodes. Out: a `NodeChoice`. Facts (Kubernetes 1.36, its default plugins): nodes are scored by CPU and
memory (`kube_scores`) and never by GPUs; of equal nodes one is drawn. For claims the first devices of the node that fit
are taken, in the order of the ResourceSlice, which is that of the minor numbers; there is no score of devices. Each
container has a claim of its own, and all are held at once, also those of init containers. Simplified: every node is
scored, whereas kube-scheduler looks at a part of them in clusters of more than 100 nodes.
"""

import random
from collections.abc import Iterable, Mapping

from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuFilter
from deviceplugin.placement.fit import demand_of
from deviceplugin.placement.node_score import NodeChoice
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.place import shares_of
from deviceplugin.placement.pod import PodChoice
from deviceplugin.placement.rejection import NodeRejection
from deviceplugin.placement.snapshot import GpuView
from deviceplugin.simulate.kube_scores import KubeScores, ScoringStrategy

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
