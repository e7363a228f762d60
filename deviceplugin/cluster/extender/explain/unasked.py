"""What is said of a pod about which kube-scheduler has not asked us, or has decided since without asking.

In: the pod, what kube-scheduler wrote into its condition, and what the nodes are by now. Out: one sentence: first what
has happened, then what is known now, and where neither explains that it waits, that the reason lies elsewhere.
"""

from deviceplugin.cluster.extender.cache.pod_hold import is_later
from deviceplugin.cluster.extender.explain.now import Judged
from deviceplugin.cluster.extender.explain.verdicts import LastVerdict
from deviceplugin.model.pod import ClusterPod

_ELSEWHERE = (
    "CPU, memory, taints, affinity, volumes or another check of kube-scheduler's comes before its question to us"
)


def decided_since(verdict: LastVerdict, waiting: ClusterPod) -> bool:
    """kube-scheduler has refused the pod after the verdict, and that not for the verdict's sake.

    What it writes after our refusal names our reasons, for nobody else uses these words. A refusal that stood already
    when it asked is none that came after.
    """
    condition, asked = waiting.condition, verdict.pod
    if condition is None or not waiting.is_refused or not condition.message:
        return False
    if not is_later(waiting.pod.resource_version, asked.pod.resource_version):
        return False
    if verdict.fits:
        return condition != asked.condition
    return not any(why.text in condition.message for why in set(verdict.reasons))


def what_happened(pod: ClusterPod, verdict: LastVerdict | None, *, usual: str) -> str:
    """`usual`: the schedulerName that the webhook gives pods for GPUs, empty where it gives none."""
    if pod.pod.deleting:
        return "it is being deleted"
    if _is_gated(pod):
        return "it waits for its scheduling gates to be removed; nobody chooses a node before"
    if verdict is not None:
        if not verdict.fits:
            return "kube-scheduler has asked about it, and has since refused it without naming any reason of ours"
        found = f"node {verdict.node} was chosen" if verdict.node else "some nodes carried it"
        return f"{found} when kube-scheduler last asked, but it has since refused the pod"
    name = pod.scheduler or "default-scheduler"
    if usual and name != usual:
        return (
            f"nobody has asked about it; its schedulerName is {name}, while the webhook gives pods for GPUs {usual}, "
            f"and {name} asks only if it has this extender"
        )
    if pod.condition is None:
        return (
            "kube-scheduler has neither asked about it nor said anything of it; one that serves the schedulerName "
            f"{name} must run and have this extender"
        )
    return "kube-scheduler has not asked about it"


def is_unexplained(pod: ClusterPod) -> bool:
    """kube-scheduler has refused the pod, and why is still to be found."""
    return pod.is_refused and not _is_gated(pod) and not pod.pod.deleting


def _is_gated(pod: ClusterPod) -> bool:
    return pod.condition is not None and pod.condition.reason == "SchedulingGated"


def what_is_known_now(found: Judged, *, unexplained: bool) -> str:
    nodes = len(found.verdicts)
    if not nodes:
        return "no node is known"
    if found.open:
        why = f", so what keeps it waiting lies elsewhere: {_ELSEWHERE}" if unexplained else ""
        return f"{_with_room(found)}{why}"
    if found.barred:
        have = "have" if found.alone else "may have"
        return (
            f"on {_of(found.barred, nodes)} GPUs {have} room, but kube-scheduler takes none of them, as is said below"
        )
    tried = ", as far as its containers were tried together" if found.untried else ""
    return f"{_none(nodes)}{tried}{_by_sums(found) if unexplained else ''}"


def _with_room(found: Judged) -> str:
    nodes, count = len(found.verdicts), len(found.open)
    if count == 1:
        return f"node {found.open[0]} has room on its GPUs"
    return f"{_of(count, nodes)} have room on their GPUs"


def _by_sums(found: Judged) -> str:
    """kube-scheduler does not ask about nodes that its own sums rule out."""
    if not found.enough:
        return "; kube-scheduler's own sums of cores and memory say so too, so it need not ask"
    where = _of(found.enough, len(found.verdicts))
    return f"; by kube-scheduler's own sums {where} would do, so it refuses the pod for something else"


def _none(nodes: int) -> str:
    return "the one node does not carry it" if nodes == 1 else f"none of the {nodes} nodes carries it"


def _of(count: int, nodes: int) -> str:
    if nodes == 1:
        return "the one node"
    return f"all {nodes} nodes" if count == nodes else f"{count} of {nodes} nodes"
