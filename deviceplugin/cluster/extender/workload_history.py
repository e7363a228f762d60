"""What the fragmentation policy plans for: the pods that this cluster has seen, once they are enough.

In: pods as they are first heard of, whether they wait or run already. Out: a workload for the scorer, at the start and
then every so often, prepared in small steps that no question waits for. What was seen is not kept over a restart: the
pods that run then are seen again.
"""

from collections.abc import Callable

from deviceplugin.cluster.extender.cache.compute_usage import needs_of
from deviceplugin.errors import VcudaError
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import pod_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.workload import ObservedWorkload, Workload

EVERY_S = 600.0
_NODES_A_STEP = 100
"""A few milliseconds."""


class Expectation:
    """`renew` is to be called every second or so."""

    def __init__(self, scorer: NodeScorer, *, clock: Callable[[], float], observed: ObservedWorkload) -> None:
        self._scorer = scorer
        self._clock = clock
        self._observed = observed
        self._expected: Workload | None = None
        self._next = clock() + EVERY_S

    def see(self, pod: ClusterPod, names: ResourceNames) -> None:
        """To be called once for each pod; one that asks for nonsense says nothing about what comes."""
        try:
            self._observed.see(pod_request(pod.pod, names), needs_of(pod.needs))
        except VcudaError:
            return

    def settle(self) -> None:
        """Before anybody asks: all at once."""
        self._expect()
        while self._scorer.prepare(_NODES_A_STEP):
            pass

    def renew(self) -> None:
        if self._clock() >= self._next:
            self._next = self._clock() + EVERY_S
            self._expect()
        self._scorer.prepare(_NODES_A_STEP)

    def _expect(self) -> None:
        found = self._observed.workload()
        if found is not None and found != self._expected:
            self._expected = found
            self._scorer.expect_soon(found)
