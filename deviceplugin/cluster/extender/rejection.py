"""Why a node cannot serve a pod, in the words that kube-scheduler shows to users.

Texts are short and the same for every node, because kube-scheduler groups nodes by text in the pod's event. A rejection
that is not resolvable goes into FailedAndUnresolvableNodes: no eviction on that node helps, so kube-scheduler looks for
no victims there.
"""

import re
from collections.abc import Mapping

import msgspec

from deviceplugin.model.node import MOST_GPUS
from deviceplugin.placement.fit import NodeRejection


class Rejection(msgspec.Struct, frozen=True):
    """One reason; equal texts are equal reasons."""

    text: str
    resolvable: bool = True


UNKNOWN_NODE = Rejection("node is not in the GPU scheduler's cache yet", resolvable=False)
NO_INVENTORY = Rejection("node has no vcuda GPU inventory", resolvable=False)
UNREADABLE_INVENTORY = Rejection("node has a GPU inventory that this vcuda cannot read", resolvable=False)
TOO_MANY_GPUS = Rejection(f"node has more than the {MOST_GPUS} GPUs that vcuda supports", resolvable=False)
AGENT_DOWN = Rejection("vcuda agent is down", resolvable=False)
NOT_PLACED_YET = Rejection("not compared in this attempt, because pods that are nominated there were not placed yet")
NOMINATED = Rejection("GPUs are reserved for a nominated pod of the same or a higher priority")
CROWDED = Rejection("node has more GPU containers on unknown GPUs than vcuda counts", resolvable=False)
PREFERRED = Rejection("another node was preferred")
TOGETHER = Rejection(NodeRejection.TOGETHER.value)
NOT_LOOKED_AT = Rejection(NodeRejection.NOT_LOOKED_AT.value)
SEARCH_EXHAUSTED = Rejection(NodeRejection.SEARCH_EXHAUSTED.value)
GANG_YIELDED = Rejection("other members of its gang yielded their reservations to pods that can start")
BOUND_ELSEWHERE = Rejection("pod is bound to another node, has ended or was deleted", resolvable=False)

WRONG_REQUEST = "the pod's request is wrong"
"""Stands in metrics for every sentence about a request that no node can serve."""

# Only in explanations.
ROOM = Rejection("its GPUs have room for the pod")
ROOM_FOR_CLAIMS = Rejection("its GPUs have room for the claims")
MAYBE_ROOM = Rejection("its GPUs have room for each container, but the containers were not placed together")
FITS_NOW = Rejection("the pod fits now")
UNSCHEDULABLE = Rejection("node is unschedulable")
NOT_READY = Rejection("node is not ready")
RESOURCE_FIT = Rejection("insufficient GPU resources by kube-scheduler's own sums, though single GPUs have room")


def never_asked_text(asked: int, others: int) -> str:
    """Follows a reason in kube-scheduler's sentence, which counts the nodes that it asked about alone."""
    if not others:
        return ""
    were = "1 node" if asked == 1 else f"{asked} nodes"
    return f" (kube-scheduler asked about {were} and not about {others} more with GPUs)"


def summary_of(counted: Mapping[Rejection, int], *, most: int) -> str:
    """`REASON (7 of 8 nodes), REASON (1)`: the main reason first, then those of most nodes."""
    main, nodes = main_rejection(counted), sum(counted.values())
    others = sorted((why for why in counted if why != main), key=lambda why: -counted[why])[: most - 1]
    first = f"{main.text} ({counted[main]} of {nodes} node{'s' * (nodes != 1)})"
    return ", ".join((first, *(f"{why.text} ({counted[why]})" for why in others)))


def main_rejection(counted: Mapping[Rejection, int]) -> Rejection:
    """Of those that may go away, else of all, that of most nodes."""
    return max(counted, key=lambda each: (each.resolvable, counted[each]))


def label_of(text: str) -> str:
    """The text of a rejection as a label: one of a bounded set, whatever the pod has asked."""
    return text if text in KNOWN else WRONG_REQUEST


def main_of(message: str) -> str | None:
    """Of the rejections in kube-scheduler's message the main one: one that may go away, else that of most nodes."""
    counted = {KNOWN[text]: int(count) for count, text in _COUNTED.findall(message)}
    return main_rejection(counted).text if counted else None


def rejection_of(verdict: NodeRejection) -> Rejection:
    """The verdict of placement on a node."""
    return _MEANINGS[verdict]


_MEANINGS = {each: Rejection(each.value, each.resolvable) for each in NodeRejection}
_BY_NODE = (
    UNKNOWN_NODE,
    NO_INVENTORY,
    UNREADABLE_INVENTORY,
    TOO_MANY_GPUS,
    AGENT_DOWN,
    CROWDED,
    NOMINATED,
    NOT_PLACED_YET,
)
_BY_POD = (GANG_YIELDED, BOUND_ELSEWHERE)
KNOWN = {each.text: each for each in (*_MEANINGS.values(), *_BY_NODE, *_BY_POD)}
"""All that filter gives, by their texts, but for wrong requests."""
# The longest first: one text may begin like another.
_COUNTED = re.compile(
    r"(\d{1,6}) ("
    + "|".join(map(re.escape, sorted(KNOWN, key=len, reverse=True)))
    + r")(?=[,.]| \(kube-scheduler asked|$)"
)
