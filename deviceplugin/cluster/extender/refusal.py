"""Why a node does not carry a pod, as kube-scheduler shows it.

Texts are short and the same for every node: kube-scheduler groups nodes by text in the pod's event. Unresolvable: no
eviction on this node would help, so kube-scheduler does not look for victims there.
"""

from dataclasses import dataclass

from deviceplugin.errors import CapacityError, GivenUpError
from deviceplugin.placement.node_choice import Aside, Verdict
from deviceplugin.placement.prefilter import Reason


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
GIVEN_UP = Refusal("no room found for the pod's containers together, though not every combination was tried")
GAVE_WAY = Refusal("other members of its gang gave way to pods that could start")
ROOM = Refusal("its GPUs have room for the pod")
MAYBE_ROOM = Refusal("its GPUs have room for each container, which were not all tried together")
GONE = Refusal("pod is bound to another node or gone", resolvable=False)


def refusal_of(verdict: Verdict) -> Refusal:
    """What placement says against a node."""
    return _MEANINGS[verdict]


def refusal_by(error: CapacityError) -> Refusal:
    """What `place_pod` says against a node to which the gate had no objection."""
    return GIVEN_UP if isinstance(error, GivenUpError) else TOGETHER


_MEANINGS: dict[Verdict, Refusal] = {
    **{reason: Refusal(reason.value, reason.resolvable) for reason in Reason},
    Aside.PREFERRED: PREFERRED,
    Aside.SPARE: Refusal(Aside.SPARE.value),
    Aside.TOGETHER: TOGETHER,
    Aside.GIVEN_UP: GIVEN_UP,
}
