"""Why a pod waits, in one sentence and in one of few words.

In: a waiting pod, and filter's last verdict on it. Out: `Reason`. Its `kind` is one of a bounded set of constant texts,
so that pods can be counted by it; `/explain` has the whole answer.
"""

from collections import Counter
from dataclasses import dataclass

from deviceplugin.cluster.extender.explain.verdicts import LastVerdict
from deviceplugin.cluster.extender.explain.wording import is_gated
from deviceplugin.model.pod import ClusterPod

DELETED = "being deleted"
GATED = "scheduling gates"
NOT_ASKED = "kube-scheduler has not asked yet"
REFUSED = "refused by kube-scheduler for a reason outside vcuda"
BINDING = "chosen and not bound yet"
_MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class Reason:
    """`kind` groups pods, `sentence` is for one pod."""

    kind: str
    sentence: str


def reason_of(pod: ClusterPod, verdict: LastVerdict | None) -> Reason:
    if pod.pod.deleting:
        return Reason(DELETED, "the pod is being deleted")
    if is_gated(pod):
        return Reason(GATED, "the pod waits for its scheduling gates to be removed")
    if verdict is not None and not verdict.is_superseded_by(pod):
        return _judged(verdict)
    condition = pod.condition
    if condition is None or condition.is_true:
        return Reason(NOT_ASKED, NOT_ASKED)
    return Reason(REFUSED, " ".join(condition.message.split()) or REFUSED)


def _judged(verdict: LastVerdict) -> Reason:
    if verdict.fits:
        where = f"node {verdict.node}" if verdict.node else "a node"
        return Reason(BINDING, f"{where} was chosen; kube-scheduler has not bound the pod yet")
    counted = Counter(verdict.reasons).most_common(_MOST_REASONS)
    if not counted:
        return Reason(NOT_ASKED, "kube-scheduler asked about no node")
    named = ", ".join(f"{why.text} ({count})" for why, count in counted)
    return Reason(counted[0][0].text, f"it fits on none of {len(verdict.names)} nodes: {named}")
