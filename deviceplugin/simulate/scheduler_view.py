"""Chooses with what the scheduler's extender knows, which is less than the files say.

In: what every chooser is asked. Out: a `NodeChoice`. kube-scheduler leaves out the nodes with too little CPU or memory
and tells the extender only which are left, so a policy cannot plan with either; and it plans for a mix of pods that is
assumed, or for one that it is told, never for what the file holds.
"""

from collections.abc import Iterable
from dataclasses import replace

from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.placement.node_choice import Aside, NodeChoice
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.workload import ASSUMED, Workload


class SchedulerView:
    """Keeps the nodes as they are shown, so that what has not changed stays the same object."""

    def __init__(self, typical: Workload = ASSUMED) -> None:
        self._scorer = NodeScorer(typical)
        self._shown: dict[str, tuple[NodeState, NodeState]] = {}

    def choose(
        self,
        pod: PodRequest,
        states: Iterable[NodeState],
        *,
        node_policy: NodePolicy,
        gpu_policy: GpuPolicy,
        needs: Spare,
    ) -> NodeChoice:
        shown: list[NodeState] = []
        short: list[NodeState] = []
        for state in states:
            fits = state.spare is None or state.spare.covers(needs)
            (shown if fits else short).append(state)
        choice = self._scorer.choose(pod, map(self._show, shown), node_policy=node_policy, gpu_policy=gpu_policy)
        return replace(choice, refused={**choice.refused, **{state.name: Aside.SPARE for state in short}})

    def _show(self, state: NodeState) -> NodeState:
        known = self._shown.get(state.name)
        if known is None or known[0] is not state:
            known = self._shown[state.name] = (state, replace(state, spare=None))
        return known[1]
