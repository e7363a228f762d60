"""preempt: which of the evictions that kube-scheduler proposes would make room on GPUs, and who else must go.

In: a pod, and for each node the pods that kube-scheduler would evict there, which it chose by counts alone. Out: the
same for the nodes where the pod then fits, with as few further victims as possible; a node where it still does not fit
is left out. Nothing is changed. What was proposed stays proposed: it may be needed for CPU or memory, which we do not
see.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations, islice

from deviceplugin.cluster.extender.cache.pod_hold import Holding
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.refusal import Refusal
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.snapshot import View
from deviceplugin.cluster.extender.wire import PreemptQuestion, Victims
from deviceplugin.errors import CapacityError, ParseError, RequestError
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.placement.pod import place_pod
from deviceplugin.placement.prefilter import Prefilter

_MOST_SETS = 300


class Preempt:
    """Reads only."""

    def __init__(self, books: Books, *, settings: Settings) -> None:
        self._books = books
        self._settings = settings
        self._view = View(books, policy=settings.gpu_policy, names=settings.names)

    def victims(self, question: PreemptQuestion) -> dict[str, Victims]:
        pod = question.pod
        if not pod.pod.is_gpu:
            return dict(question.victims)
        try:
            asked = pod_request(pod.pod, self._settings.names)
        except (RequestError, ParseError):
            return {}
        fits = _Fit(asked, pod, self._view, self._settings)
        answer: dict[str, Victims] = {}
        for node, proposed in question.victims.items():
            further = self._further(pod, node, proposed.pods, fits)
            if further is not None:
                answer[node] = Victims((*proposed.pods, *further), proposed.violations + len(further))
        return answer

    def _further(
        self, pod: ClusterPod, node: str, proposed: Sequence[PodUid], fits: "_Fit"
    ) -> tuple[PodUid, ...] | None:
        """Who must go besides; None where not even all whom the pod may evict are enough."""
        if fits(node, proposed):
            return ()
        others = [held.pod.uid for held in self._lesser(pod, node) if held.pod.uid not in proposed]
        if not others or not fits(node, (*proposed, *others)):
            return None
        for chosen in islice(_smallest_first(others), _MOST_SETS):
            if fits(node, (*proposed, *chosen)):
                return chosen
        return _pruned(others, lambda left: fits(node, (*proposed, *left)))

    def _lesser(self, pod: ClusterPod, node: str) -> list[Holding]:
        """Bound pods with GPUs that the pod may evict: those that go anyway first, then by priority."""
        book = self._books.nodes.get(node)
        holdings = book.holdings.values() if book else ()
        lesser = [held for held in holdings if held.is_bound and held.priority < pod.priority]
        return sorted(lesser, key=lambda held: (not held.deleting, held.priority, held.pod.uid))


class _Fit:
    """Whether one pod fits on a node without some others."""

    def __init__(self, asked: PodRequest, pod: ClusterPod, view: View, settings: Settings) -> None:
        self._asked = asked
        self._pod = pod
        self._view = view
        self._settings = settings
        self._gate = Prefilter(asked)

    def __call__(self, node: str, without: Collection[PodUid]) -> bool:
        state = self._view.node(self._pod, node, without=without)
        if isinstance(state, Refusal) or self._gate(state) is not None:
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
    """Spares whom it can, the most important first; nobody of those left can be spared."""
    left = list(pods)
    for pod in reversed(pods):
        rest = [other for other in left if other != pod]
        if enough(rest):
            left = rest
    return tuple(left)
