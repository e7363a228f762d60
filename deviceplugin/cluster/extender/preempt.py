"""preempt: which of kube-scheduler's proposed evictions make room on GPUs, and which further victims are needed.

In: a pod, and for each node the victims that kube-scheduler chose there by its sums alone. Out: the same for the nodes
where the pod then fits, with as few further victims as possible; other nodes are left out. Nothing is changed. Proposed
victims stay: they may be needed for CPU or memory, which this code does not see.

`fewest_victims` is asked for Volcano's evictions too. It tries small sets first, then what is on one GPU after the
other, because victims make room where they are together. One node takes one turn of the loop; nodes that were not
looked at in time are left out, and kube-scheduler chooses among the others.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, combinations, islice
from typing import TypeVar

from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.snapshot import Asking, ClusterSnapshot
from deviceplugin.cluster.extender.turns import Turns
from deviceplugin.cluster.extender.wire import PreemptionArgs, Victims
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import placeable_request
from deviceplugin.placement.budget import Budget

_MOST_SETS = 100
_MOST_SETS_OF_A_GPU = 30
_MOST_CANDIDATES = 256  # kubelet runs 110 pods on a node unless it is told otherwise
_Candidate = TypeVar("_Candidate")


class Preempt:
    """Reads only."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot, self._cache = snapshot, snapshot.cache

    async def victims(self, args: PreemptionArgs, turns: Turns | None = None) -> dict[str, Victims]:
        pod = args.pod
        if not pod.pod.is_gpu:
            return dict(args.victims)
        try:
            asking = Asking(pod, placeable_request(pod.pod, self._snapshot.settings.names))
        except (RequestError, ParseError):
            return {}
        answer: dict[str, Victims] = {}
        async for budget, (node, proposed) in (turns or Turns()).each(pod.pod.ref.namespace, args.victims.items()):
            further = self._extra_victims(asking, node, proposed.pods, budget)
            if further is not None:
                answer[node] = Victims((*proposed.pods, *further), proposed.violations + len(further))
        return answer

    def _extra_victims(
        self, asking: Asking, node: str, proposed: Sequence[PodUid], budget: Budget
    ) -> tuple[PodUid, ...] | None:
        """Further victims; None if evicting every pod of lower priority is not enough."""

        def enough(chosen: Collection[PodHold]) -> bool:
            without = (*proposed, *(held.pod.uid for held in chosen))
            return self._snapshot.refusal(asking, node, budget, without=without) is None

        others = [held for held in self._evictable(asking.pod, node) if held.pod.uid not in proposed]
        found = fewest_victims(others, on=lambda held: held.uuids, enough=enough, budget=budget)
        return None if found is None else tuple(held.pod.uid for held in found)

    def _evictable(self, pod: ClusterPod, node: str) -> list[PodHold]:
        """Bound pods with GPUs and a lower priority: first those that are being deleted, then by priority."""
        node_info = self._cache.nodes.get(node)
        holds = node_info.holds.values() if node_info else ()
        lesser = [held for held in holds if held.is_bound and held.priority < pod.priority]
        return sorted(lesser, key=lambda held: (not held.deleting, held.priority, held.pod.uid))


def fewest_victims(
    candidates: Sequence[_Candidate],
    *,
    on: Callable[[_Candidate], Collection[GpuUuid]],
    enough: Callable[[Collection[_Candidate]], bool],
    budget: Budget,
) -> tuple[_Candidate, ...] | None:
    """The smallest set that was found to be enough; None if all together are not. `on`: the GPUs of one.

    The first candidates are preferred; of more than `_MOST_CANDIDATES`, those on the GPUs that have the fewest. Without
    steps left the best set so far is the answer.
    """
    if enough(()):
        return ()
    if len(candidates) > _MOST_CANDIDATES:
        kept = {id(each) for each in islice(chain.from_iterable(_by_gpu(candidates, on)), _MOST_CANDIDATES)}
        candidates = [each for each in candidates if id(each) in kept]
    if not candidates or not enough(candidates):
        return None
    place = {id(each): at for at, each in enumerate(candidates)}
    groups = _by_gpu(candidates, on)
    best = _better(tuple(candidates), _joined(groups), enough, budget)
    best = _pruned(best, enough, budget)
    best = _better(best, _small_sets(candidates, groups), enough, budget)
    return tuple(sorted(best, key=lambda each: place[id(each)]))


def _better(
    best: tuple[_Candidate, ...],
    sets: Iterable[tuple[_Candidate, ...]],
    enough: Callable[[Collection[_Candidate]], bool],
    budget: Budget,
) -> tuple[_Candidate, ...]:
    for chosen in sets:
        if not budget.left:
            break
        if len(chosen) < len(best) and enough(chosen):
            best = chosen
    return best


def _by_gpu(
    candidates: Sequence[_Candidate], on: Callable[[_Candidate], Collection[GpuUuid]]
) -> list[list[_Candidate]]:
    """What is on each GPU; those with the fewest first."""
    found: dict[GpuUuid, list[_Candidate]] = {}
    for each in candidates:
        for uuid in on(each):
            found.setdefault(uuid, []).append(each)
    return sorted(found.values(), key=len)


def _joined(groups: Sequence[list[_Candidate]]) -> Iterator[tuple[_Candidate, ...]]:
    """All that is on one GPU, on two that follow each other, and so on."""
    for size in range(1, len(groups) + 1):
        for first in range(len(groups) - size + 1):
            chosen = {id(each): each for group in groups[first : first + size] for each in group}
            yield tuple(chosen.values())


def _small_sets(
    candidates: Sequence[_Candidate], groups: Iterable[list[_Candidate]]
) -> Iterator[tuple[_Candidate, ...]]:
    yield from islice(_smallest_first(candidates), _MOST_SETS)
    for group in groups:
        yield from islice(_smallest_first(group), _MOST_SETS_OF_A_GPU)


def _smallest_first(candidates: Sequence[_Candidate]) -> Iterator[tuple[_Candidate, ...]]:
    for size in range(1, len(candidates) + 1):
        yield from combinations(candidates, size)


def _pruned(
    chosen: tuple[_Candidate, ...], enough: Callable[[Collection[_Candidate]], bool], budget: Budget
) -> tuple[_Candidate, ...]:
    """Spares victims, the last first, until no further one can be spared."""
    for each in reversed(chosen):
        rest = tuple(other for other in chosen if other is not each)
        if budget.left and enough(rest):
            chosen = rest
    return chosen
