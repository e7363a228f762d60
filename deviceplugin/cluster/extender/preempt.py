"""preempt: which of kube-scheduler's proposed evictions make room on GPUs, and which further victims are needed.

In: a pod, and for each node the victims that kube-scheduler chose there by its sums alone. Out: the same for the nodes
where the pod then fits, with as few further victims as possible; other nodes are left out. Nothing is changed. Proposed
victims stay: they may be needed for CPU or memory, which this code does not see.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations, islice

from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.rejection import Rejection
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.snapshot import ClusterSnapshot
from deviceplugin.cluster.extender.wire import PreemptionArgs, Victims
from deviceplugin.errors import CapacityError, ParseError, RequestError
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.placement.pod import place_pod
from deviceplugin.placement.prefilter import Prefilter

_MOST_SETS = 300


class Preempt:
    """Reads only."""

    def __init__(self, cache: SchedulerCache, *, settings: Settings) -> None:
        self._cache = cache
        self._settings = settings
        self._snapshot = ClusterSnapshot(cache, policy=settings.gpu_policy, names=settings.names)

    def victims(self, args: PreemptionArgs) -> dict[str, Victims]:
        pod = args.pod
        if not pod.pod.is_gpu:
            return dict(args.victims)
        try:
            asked = pod_request(pod.pod, self._settings.names)
        except (RequestError, ParseError):
            return {}
        fits = _FitCheck(asked, pod, self._snapshot, self._settings)
        answer: dict[str, Victims] = {}
        for node, proposed in args.victims.items():
            further = self._extra_victims(pod, node, proposed.pods, fits)
            if further is not None:
                answer[node] = Victims((*proposed.pods, *further), proposed.violations + len(further))
        return answer

    def _extra_victims(
        self, pod: ClusterPod, node: str, proposed: Sequence[PodUid], fits: "_FitCheck"
    ) -> tuple[PodUid, ...] | None:
        """Further victims; None where evicting every pod of lower priority is not enough."""
        if fits(node, proposed):
            return ()
        others = [held.pod.uid for held in self._evictable(pod, node) if held.pod.uid not in proposed]
        if not others or not fits(node, (*proposed, *others)):
            return None
        for chosen in islice(_smallest_first(others), _MOST_SETS):
            if fits(node, (*proposed, *chosen)):
                return chosen
        return _pruned(others, lambda left: fits(node, (*proposed, *left)))

    def _evictable(self, pod: ClusterPod, node: str) -> list[PodHold]:
        """Bound pods with GPUs and a lower priority: first those that are being deleted, then by priority."""
        node_info = self._cache.nodes.get(node)
        holds = node_info.holds.values() if node_info else ()
        lesser = [held for held in holds if held.is_bound and held.priority < pod.priority]
        return sorted(lesser, key=lambda held: (not held.deleting, held.priority, held.pod.uid))


class _FitCheck:
    """Whether one pod fits on a node without some other pods."""

    def __init__(self, asked: PodRequest, pod: ClusterPod, snapshot: ClusterSnapshot, settings: Settings) -> None:
        self._asked = asked
        self._pod = pod
        self._snapshot = snapshot
        self._settings = settings
        self._gate = Prefilter(asked)

    def __call__(self, node: str, without: Collection[PodUid]) -> bool:
        state = self._snapshot.node(self._pod, node, without=without)
        if isinstance(state, Rejection) or self._gate(state) is not None:
            return False
        if len(self._asked.containers) == 1:
            return True
        try:
            place_pod(self._asked, state, policy=self._settings.gpu_policy)
        except CapacityError:
            return False
        return True


def _smallest_first(pods: Sequence[PodUid]) -> Iterator[tuple[PodUid, ...]]:
    for size in range(1, len(pods) + 1):
        yield from combinations(pods, size)


def _pruned(pods: Sequence[PodUid], enough: Callable[[Collection[PodUid]], bool]) -> tuple[PodUid, ...]:
    """Spares victims, those of the highest priority first, until no further one can be spared."""
    left = list(pods)
    for pod in reversed(pods):
        rest = [other for other in left if other != pod]
        if enough(rest):
            left = rest
    return tuple(left)
