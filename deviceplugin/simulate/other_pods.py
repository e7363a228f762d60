"""Who places pods without GPUs while a policy of ours places the others.

In: a chooser of ours, and what the plan says of the other pods. Out: a chooser for all pods. In a cluster the extender
is not asked about a pod without GPUs (`managedResources`): kube-scheduler places it by its own scores, and takes CPU
and memory away beside the GPUs. Of a pod with GPUs filter answers one node, so there kube-scheduler's scores do not
count. Invariant: the same seed gives the same choices, whatever the order of the nodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from deviceplugin.model.pod_request import PodRequest
from deviceplugin.placement.node_score import NodeChoice
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.simulate.kube_scores import ScoringStrategy
from deviceplugin.simulate.stock_scheduler import StockScheduler


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


@dataclass(frozen=True, slots=True)
class _Beside:
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
