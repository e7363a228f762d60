"""Why a node does not carry a pod, as kube-scheduler shows it.

Texts are short and the same for every node: kube-scheduler groups nodes by text in the pod's event. Unresolvable: no
eviction on this node would help, so kube-scheduler does not look for victims there.
"""

from dataclasses import dataclass

from deviceplugin.placement.gate import Reason
from deviceplugin.placement.node_choice import Aside, Verdict


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason; equal texts are equal reasons."""

    text: str
    resolvable: bool = True


UNKNOWN_NODE = Refusal("node is not known to the GPU scheduler yet", resolvable=False)
NO_INVENTORY = Refusal("node has no GPU inventory of vcuda", resolvable=False)
FOREIGN_INVENTORY = Refusal("node has a GPU inventory that this vcuda cannot read", resolvable=False)
AGENT_AWAY = Refusal("node offers no GPU resources, its vcuda agent is away", resolvable=False)
NOMINATED = Refusal("GPUs are kept for a pod of higher priority")
PREFERRED = Refusal("another node was preferred")
TOGETHER = Refusal("the pod's containers do not fit together")
GAVE_WAY = Refusal("other members of its gang gave way to pods that could start")
GONE = Refusal("pod is bound to another node or gone", resolvable=False)


def refusal_of(verdict: Verdict | None) -> Refusal:
    """What placement says against a node; None: its containers do not fit together."""
    return TOGETHER if verdict is None else _MEANINGS[verdict]


_MEANINGS: dict[Verdict, Refusal] = {
    **{reason: Refusal(reason.value, reason.resolvable) for reason in Reason},
    Aside.PREFERRED: PREFERRED,
    Aside.SPARE: Refusal(Aside.SPARE.value),
    Aside.TOGETHER: TOGETHER,
}
