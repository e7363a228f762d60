"""Chooses with what the scheduler's extender knows, which is a little less than the files say.

In: what every chooser is asked. Out: a `NodeChoice`. kube-scheduler leaves out the nodes with too little CPU or memory,
and the extender knows how much the others have left. The mix of pods that it plans for is the one that it has seen come
until then, learnt anew now and then; while too few have come, one that is assumed.
"""

from collections.abc import Iterable
from dataclasses import replace

from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.placement.node_score import NodeChoice
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.rejection import NodeRejection
from deviceplugin.placement.workload import ENOUGH, ObservedWorkload

LEARNT_EVERY = ENOUGH
"""Tasks; the scheduler goes by the clock, which a simulation has not."""


class SchedulerView:
    """Begins as a scheduler in a cluster in which no pod has run yet."""

    def __init__(self) -> None:
        self._scorer = NodeScorer(leaves_out=False)
        self._observed = ObservedWorkload()
        self._came = 0

    def choose(
        self,
        pod: PodRequest,
        states: Iterable[NodeState],
        *,
        node_policy: NodePolicy,
        gpu_policy: GpuPolicy,
        needs: Spare,
    ) -> NodeChoice:
        self._see(pod, needs)
        shown: list[NodeState] = []
        short: list[NodeState] = []
        for state in states:
            fits = state.spare is None or state.spare.covers(needs)
            (shown if fits else short).append(state)
        choice = self._scorer.choose(pod, shown, node_policy=node_policy, gpu_policy=gpu_policy, needs=needs)
        return replace(choice, refused={**choice.refused, **{state.name: NodeRejection.SPARE for state in short}})

    def _see(self, pod: PodRequest, needs: Spare) -> None:
        if not pod.containers:
            return  # the scheduler is told of pods with GPUs, and of no other what it asks
        self._observed.see(pod, needs)
        self._came += 1
        if self._came % LEARNT_EVERY == 0 and (typical := self._observed.workload()) is not None:
            self._scorer.expect(typical)
