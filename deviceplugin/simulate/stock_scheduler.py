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

`OtherPods` says who places pods without GPUs while a policy of ours places the others.

In: a chooser of ours, and what the plan says of the other pods. Out: a chooser for all pods. In a cluster the extender
is not asked about a pod without GPUs (`managedResources`): kube-scheduler places it by its own scores, and takes CPU
and memory away beside the GPUs. Of a pod with GPUs filter answers one node, so there kube-scheduler's scores do not
count. Invariant: the same seed gives the same choices, whatever the order of the nodes.
"""

import random
from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol

import msgspec

from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.placement.candidates import Restrictions, survey
from deviceplugin.placement.capacity_after import KeptAnswers
from deviceplugin.placement.fit import NodeRejection
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.nodes import NodeChoice
from deviceplugin.placement.pod import PodChoice, shares_of
from deviceplugin.placement.snapshot import OwnUse

_MOST = 100


class ScoringStrategy(StrEnum):
    """Of NodeResourcesFit, by the name in KubeSchedulerConfiguration."""

    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"


class KubeScores:
    """For one run: what a node has is what it had when it was seen first."""

    def __init__(self, strategy: ScoringStrategy) -> None:
        self._strategy = strategy
        self._whole: dict[str, Spare] = {}

    def of(self, state: NodeState, needs: Spare) -> int:
        whole = self._whole.setdefault(state.name, state.spare or Spare(0, 0))
        return score(state.spare or whole, needs, whole, self._strategy)


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
_Fits = tuple[int, str]
"""A score and the name of the node."""


class StockScheduler:
    """For one run. `seed` draws among equal nodes. A node that has not changed is judged once for each kind of pod."""

    def __init__(self, seed: int, strategy: ScoringStrategy = ScoringStrategy.LEAST_ALLOCATED) -> None:
        self._drawn = random.Random(seed)  # noqa: S311 - a repeatable experiment, not a secret
        self._scores = KubeScores(strategy)
        self._states: dict[str, NodeState] = {}
        self._kept: KeptAnswers[NodeState, NodeRejection | _Fits] = KeptAnswers()

    def choose(self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare) -> NodeChoice:
        given = list(states)
        kept = self._kept.of((pod.shape, needs))
        for state in [state for state in given if state not in kept]:
            self._see(state, most=len(given))
            kept[state] = self._judge(pod, state, needs)
            self._kept.added(1)
        found = [kept[state] for state in given]
        fitting = [each for each in found if isinstance(each, tuple)]

        def refusals() -> dict[str, NodeRejection]:
            pairs = zip(given, found, strict=True)
            return {state.name: each for state, each in pairs if isinstance(each, NodeRejection)}

        if not fitting:
            return NodeChoice(None, None, refusals=refusals)
        most = max(fitting)[0]
        name = self._drawn.choice(sorted([name for score, name in fitting if score == most]))
        return NodeChoice(name, first_fit(pod, self._states[name]), refusals=refusals)

    def _judge(self, pod: PodRequest, state: NodeState, needs: Spare) -> NodeRejection | _Fits:
        score = self._scores.of(state, needs)
        if state.spare is not None and not state.spare.covers(needs):
            return NodeRejection.SPARE
        return NodeRejection.SHARES if first_fit(pod, state) is None else (score, state.name)

    def _see(self, state: NodeState, most: int) -> None:
        before, self._states[state.name] = self._states.get(state.name), state
        if before is not None and before is not state:
            self._kept.drop(before, most)


def first_fit(pod: PodRequest, state: NodeState) -> PodChoice | None:
    """None if a container finds no room beside those before it."""
    restrictions = Restrictions(pod.preferences.gpus, state.cordoned)
    own, allocations = OwnUse(), []
    for container in pod.containers:
        request, index = container.request, container.index
        free = own.free(state.snapshot, role=ContainerRole.UNKNOWN, index=index)
        chosen = survey(request, free, restrictions).candidates.views[: request.gpus]
        if len(chosen) < request.gpus:
            return None
        owner, shares = ContainerRef(pod.pod, container.name), shares_of(request, chosen)
        allocations.append(Allocation(owner, ContainerRole.UNKNOWN, request, shares, index))
        own.add(allocations[-1])
    return PodChoice(tuple(allocations), _REASON * len(allocations))


class OtherPods(StrEnum):
    """kube-scheduler as it is by default, or with the strategy MostAllocated, or our node policy for all pods."""

    STOCK = "stock"
    MOST_ALLOCATED = "most-allocated"
    POLICY = "policy"

    @property
    def strategy(self) -> ScoringStrategy:
        """kube-scheduler's, where it chooses."""
        most = self is OtherPods.MOST_ALLOCATED
        return ScoringStrategy.MOST_ALLOCATED if most else ScoringStrategy.LEAST_ALLOCATED


class Chooser(Protocol):
    """Anything that chooses the node of a pod."""

    def choose(self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare) -> NodeChoice: ...


class _Beside(msgspec.Struct, frozen=True):
    gpu_pods: Chooser
    other_pods: StockScheduler

    def choose(self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare) -> NodeChoice:
        chooser = self.gpu_pods if pod.containers else self.other_pods
        return chooser.choose(pod, states, needs=needs)


def beside_kube_scheduler(gpu_pods: Chooser, other_pods: OtherPods, seed: int) -> Chooser:
    """A chooser that stands for kube-scheduler as a whole is not divided."""
    if other_pods is OtherPods.POLICY or isinstance(gpu_pods, StockScheduler):
        return gpu_pods
    return _Beside(gpu_pods, StockScheduler(seed, other_pods.strategy))
