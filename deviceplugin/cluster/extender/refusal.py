"""Why a node does not carry a pod, as kube-scheduler shows it.

Texts are short and the same for every node: kube-scheduler groups nodes by text in the pod's event. Unresolvable: no
eviction on this node would help, so kube-scheduler does not look for victims there.
"""

from dataclasses import dataclass

from deviceplugin.errors import CapacityError, GivenUpError
from deviceplugin.placement.rejection import NodeRejection


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
PREFERRED = Refusal(NodeRejection.PREFERRED.value)
TOGETHER = Refusal(NodeRejection.TOGETHER.value)
GIVEN_UP = Refusal(NodeRejection.SEARCH_EXHAUSTED.value)
GAVE_WAY = Refusal("other members of its gang gave way to pods that could start")
ROOM = Refusal("its GPUs have room for the pod")
MAYBE_ROOM = Refusal("its GPUs have room for each container, which were not all tried together")
GONE = Refusal("pod is bound to another node or gone", resolvable=False)


def refusal_of(verdict: NodeRejection) -> Refusal:
    """What placement says against a node."""
    return _MEANINGS[verdict]


def refusal_by(error: CapacityError) -> Refusal:
    """What `place_pod` says against a node that the prefilter did not reject."""
    return GIVEN_UP if isinstance(error, GivenUpError) else TOGETHER


_MEANINGS = {each: Refusal(each.value, each.resolvable) for each in NodeRejection}
