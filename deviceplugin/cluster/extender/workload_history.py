"""The workload that the fragmentation policy plans for: the pods that this cluster has had, once they are enough.

In: every pod when it is first seen, waiting or running. Out: a workload for the scorer, at the start and then every
10 minutes. The history is not stored: after a restart the pods that run then are seen again.
"""

from collections.abc import Callable

from deviceplugin.cluster.extender.cache.node_info import needs_of
from deviceplugin.errors import VcudaError
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import pod_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.workload import ObservedWorkload, Workload

EVERY_S = 600.0


class WorkloadHistory:
    """The caller runs `refresh` about once a second."""

    def __init__(self, scorer: NodeScorer, *, clock: Callable[[], float], observed: ObservedWorkload) -> None:
        self._scorer = scorer
        self._clock = clock
        self._observed = observed
        self._current: Workload | None = None
        self._next = clock() + EVERY_S

    def record(self, pod: ClusterPod, names: ResourceNames) -> None:
        """Called once for each pod; a pod with a wrong request does not count."""
        try:
            self._observed.see(pod_request(pod.pod, names), needs_of(pod.needs))
        except VcudaError:
            return

    def refresh(self) -> None:
        if self._clock() >= self._next:
            self.renew()

    def renew(self) -> None:
        """Plans for what was seen so far."""
        self._next = self._clock() + EVERY_S
        found = self._observed.workload()
        if found is not None and found != self._current:
            self._current = found
            self._scorer.expect(found)
