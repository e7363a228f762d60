"""What a pod or an operator prefers of nodes without requiring it, and the sentences that say it does not count.

In: names of such rules. Out: text for people. kube-scheduler weighs these rules among the nodes that an extender
leaves. Where the extender chooses the node, it leaves one, so none of them counts. Why it leaves one: only on a node
that was chosen can GPUs be reserved. kube-scheduler says its own choice with the Binding, after it has asked about the
next pods, and they would be promised the same GPUs.
"""

from collections.abc import Sequence

NODE_AFFINITY, POD_AFFINITY, POD_ANTI_AFFINITY = AFFINITIES = (
    "preferred node affinity",
    "preferred pod affinity",
    "preferred pod anti-affinity",
)
SPREAD = "topology spread with ScheduleAnyway"
SCHEDULE_ANYWAY = "ScheduleAnyway"
_CHOOSES = "vcuda's extender chooses the node"


def soft_warning(rules: Sequence[str]) -> str:
    """For the author of a pod."""
    return (
        f"{_listed(rules)} not count, because {_CHOOSES} of a pod with GPUs; require it, or set --node-choice=scheduler"
    )


def soft_line(rules: Sequence[str], discouraged: str = "") -> str:
    """For an explanation; empty where there is none. `discouraged`: the pod's node, if it has such a taint."""
    taint = [f"the taint of node {discouraged} with PreferNoSchedule"] if discouraged else []
    found = [*rules, *taint]
    return f"{_listed(found)} not count: {_CHOOSES} (--node-choice=extender)" if found else ""


def _listed(rules: Sequence[str]) -> str:
    *before, last = rules
    return f"{', '.join(before)} and {last} do" if before else f"{last} does"
