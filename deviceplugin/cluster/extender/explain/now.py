"""What a pod would find if kube-scheduler asked about it now, on every node in the books.

In: the books and a pod that waits. Out: for each node whether its GPUs have room, by the same code as filter's, and
where they have, what else is known against the node. Nothing is reserved and nothing recorded. The loop is given to
others in between, so the nodes are not all judged at one moment.
"""

from dataclasses import dataclass, field

from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.explain.pace import Pace
from deviceplugin.cluster.extender.explain.sums import Sums
from deviceplugin.cluster.extender.refusal import MAYBE_ROOM, ROOM, Refusal, refusal_by, refusal_of
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.snapshot import View
from deviceplugin.errors import CapacityError
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.placement.pod import place_pod
from deviceplugin.placement.prefilter import Prefilter

_MOST_TRIED = 20


@dataclass(slots=True)
class Judged:
    """`verdicts` has every node; `changes` those of which more is known than what their GPUs lack.

    `untried`: how many nodes may carry the pod's several containers together, and may not; only so many are tried.
    `alone`: the pod has one container, of which the gate is certain.
    `enough`: nodes where kube-scheduler's sums leave enough, whatever single GPUs have.
    """

    alone: bool = True
    verdicts: dict[str, Refusal] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    barred: int = 0
    untried: int = 0
    enough: int = 0


async def judge_now(books: Books, view: View, settings: Settings, pod: ClusterPod, asked: PodRequest) -> Judged:
    found, gate, sums, pace = Judged(alone=len(asked.containers) == 1), Prefilter(asked), Sums(books, pod), Pace()
    for name in [name for name, book in books.nodes.items() if book.node is not None]:
        await pace.step()
        against = _by_gate(view, pod, gate, name)
        found.enough += sums.suffice(name)
        if against is not None:
            found.verdicts[name] = against
        else:
            _look_elsewhere(found, sums, settings, name)
    if not found.alone:
        await _try_together(found, view, settings, pod, asked)
    return found


def _by_gate(view: View, pod: ClusterPod, gate: Prefilter, name: str) -> Refusal | None:
    state = view.node(pod, name)
    if isinstance(state, Refusal):
        return state
    reason = gate(state)
    return None if reason is None else refusal_of(reason)


def _look_elsewhere(found: Judged, sums: Sums, settings: Settings, name: str) -> None:
    barred = sums.against(name, settings.names)
    if barred is None:
        found.verdicts[name] = ROOM
        found.open.append(name)
    else:
        found.verdicts[name], found.changes[name] = barred
        found.barred += 1


def _free_cores(view: View, pod: ClusterPod, name: str) -> int:
    state = view.node(pod, name)
    return 0 if isinstance(state, Refusal) else state.open_gpus.summary.free.cores


async def _try_together(found: Judged, view: View, settings: Settings, pod: ClusterPod, asked: PodRequest) -> None:
    """The emptiest first, until one carries all containers: it alone is known to, so the others are not counted."""
    maybe, found.open = sorted(found.open, key=lambda name: (-_free_cores(view, pod, name), name)), []
    found.verdicts |= dict.fromkeys(maybe, MAYBE_ROOM)
    pace = Pace()
    for at, name in enumerate(maybe[:_MOST_TRIED], start=1):
        state = view.node(pod, name)
        try:
            if isinstance(state, Refusal):
                found.verdicts[name] = state
                continue
            place_pod(asked, state, policy=settings.gpu_policy)
        except CapacityError as error:
            found.verdicts[name] = refusal_by(error)
        else:
            found.open, found.untried = [name], len(maybe) - at
            found.verdicts[name] = ROOM
            return
        await pace.rest()
    found.untried = max(0, len(maybe) - _MOST_TRIED)
