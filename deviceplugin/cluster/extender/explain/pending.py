"""How many pods wait, by the main reason: the gauge by which an operator sees what a cluster lacks.

In: the cache, and filter's last verdicts. Out: counts by reason. The set of reasons is bounded: constant texts, those
of `rejection` and those of `State`; a wrong request is one reason, whatever it says. A pod that nodes refused for
several reasons counts to the one that most nodes gave, of those that may go away when pods end if there are any. Of a
pod whose verdict is not known, because this replica leads only since then or many pods wait, kube-scheduler's message
has the reasons.
"""

import enum
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain.verdicts import LastVerdict, Verdicts
from deviceplugin.cluster.extender.rejection import label_of, main_of
from deviceplugin.model.pod import ClusterPod


class State(enum.Enum):
    """Why a pod waits that no node refused last."""

    GATED = "it has scheduling gates"
    DELETING = "it is being deleted"
    NOT_ASKED = "kube-scheduler has not asked about it"
    PLACED = "a node is chosen, and kube-scheduler has not bound it yet"
    OTHER = "kube-scheduler refused it for a reason outside the extender"
    NO_NODE = "kube-scheduler asked about no node"


def pending(cache: SchedulerCache, verdicts: Verdicts) -> Mapping[str, int]:
    """Every `State` has a count, also 0; reasons of nodes only where a pod waits for them."""
    counts = Counter({each.value: 0 for each in State})
    for pod in cache.waiting.values():
        counts[_reason(pod, verdicts.of(pod.uid), is_held=any(cache.holds(pod.uid)))] += 1
    return counts


def _reason(pod: ClusterPod, verdict: LastVerdict | None, *, is_held: bool) -> str:
    if pod.pod.deleting:
        return State.DELETING.value
    if is_held:
        return State.PLACED.value
    if pod.gates:
        return State.GATED.value
    if verdict is None:
        return State.NOT_ASKED.value if not pod.is_refused or pod.condition is None else _told(pod.condition.message)
    if verdict.is_superseded_by(pod):
        return State.OTHER.value
    if verdict.fits:
        return State.PLACED.value
    against = verdict.distinct
    main = next((each for each in against if each.resolvable), next(iter(against), None))
    return State.NO_NODE.value if main is None else label_of(main.text)


@lru_cache(maxsize=1024)
def _told(message: str) -> str:
    return main_of(message) or State.OTHER.value
