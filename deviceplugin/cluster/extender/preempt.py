"""preempt: which of kube-scheduler's proposed evictions make room on GPUs, and which further victims are needed.

In: a pod, and for each node the victims that kube-scheduler chose there by its sums alone. Out: the same for the nodes
where the pod then fits, with as few further victims as possible; other nodes are left out. Nothing is changed. Proposed
victims stay: they may be needed for CPU or memory, which this code does not see.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations, islice
from typing import TypeVar

from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.rejection import Rejection
from deviceplugin.cluster.extender.snapshot import ClusterSnapshot
from deviceplugin.cluster.extender.wire import PreemptionArgs, Victims
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, placeable_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.prefilter import Prefilter

FitCheck = Callable[[str, Collection[PodUid]], bool]
"""Whether a pod fits on a node without some other pods."""
MOST_SETS = 300
_Candidate = TypeVar("_Candidate")


class Preempt:
    """Reads only."""

    def __init__(self, cache: SchedulerCache, snapshot: ClusterSnapshot, *, names: ResourceNames) -> None:
        self._cache = cache
        self._snapshot = snapshot
        self._names = names

    def victims(self, args: PreemptionArgs) -> dict[str, Victims]:
        pod = args.pod
        if not pod.pod.is_gpu:
            return dict(args.victims)
        try:
            asked = placeable_request(pod.pod, self._names)
        except (RequestError, ParseError):
            return {}
        fits = self._fit_check(pod, asked)
        answer: dict[str, Victims] = {}
        for node, proposed in args.victims.items():
            further = self._extra_victims(pod, node, proposed.pods, fits)
            if further is not None:
                answer[node] = Victims((*proposed.pods, *further), proposed.violations + len(further))
        return answer

    def _extra_victims(
        self, pod: ClusterPod, node: str, proposed: Sequence[PodUid], fits: FitCheck
    ) -> tuple[PodUid, ...] | None:
        """Further victims; None where evicting every pod of lower priority is not enough."""
        if fits(node, proposed):
            return ()
        others = [held.pod.uid for held in self._evictable(pod, node) if held.pod.uid not in proposed]
        if not others or not fits(node, (*proposed, *others)):
            return None
        for chosen in islice(smallest_first(others), MOST_SETS):
            if fits(node, (*proposed, *chosen)):
                return chosen
        return _pruned(others, lambda left: fits(node, (*proposed, *left)))

    def _fit_check(self, pod: ClusterPod, asked: PodRequest) -> FitCheck:
        prefilter = Prefilter(asked)

        def fits(node: str, without: Collection[PodUid]) -> bool:
            state = self._snapshot.node(pod, node, without=without)
            if isinstance(state, Rejection) or prefilter(state) is not None:
                return False
            return len(asked.containers) == 1 or self._snapshot.rejection_together(asked, state) is None

        return fits

    def _evictable(self, pod: ClusterPod, node: str) -> list[PodHold]:
        """Bound pods with GPUs and a lower priority: first those that are being deleted, then by priority."""
        node_info = self._cache.nodes.get(node)
        holds = node_info.holds.values() if node_info else ()
        lesser = [held for held in holds if held.is_bound and held.priority < pod.priority]
        return sorted(lesser, key=lambda held: (not held.deleting, held.priority, held.pod.uid))


def smallest_first(candidates: Sequence[_Candidate]) -> Iterator[tuple[_Candidate, ...]]:
    """Every set of them, those with the fewest first; take at most `MOST_SETS`."""
    for size in range(1, len(candidates) + 1):
        yield from combinations(candidates, size)


def _pruned(pods: Sequence[PodUid], enough: Callable[[Collection[PodUid]], bool]) -> tuple[PodUid, ...]:
    """Spares victims, those of the highest priority first, until no further one can be spared."""
    left = list(pods)
    for pod in reversed(pods):
        rest = [other for other in left if other != pod]
        if enough(rest):
            left = rest
    return tuple(left)
