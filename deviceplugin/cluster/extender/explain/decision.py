"""Why filter chose a node and its GPUs, kept until the Binding, which writes it down.

In: the choice among nodes, with their scores, and the GPUs chosen on the best. Out: a `DecisionRecord` for the pod's
annotation, so that every replica can say why a pod is where it is, also after a restart; and from such a record the
lines of an explanation. Sentences are made at the Binding, not while kube-scheduler waits for filter.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from deviceplugin.cluster.extender.rejection import Rejection
from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import Allocation, PodRef
from deviceplugin.model.decision_annotation import (
    VERSION,
    ContainerRecord,
    DecisionRecord,
    format_decision,
    parse_decision,
)
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.preferences import NodePolicy
from deviceplugin.placement.describe import gpus_text, listed
from deviceplugin.placement.node_score import NodeChoice
from deviceplugin.placement.pod import PodChoice

_MOST_NAMED = 3
_MOST_REASONS = 4
_BEST = {
    NodePolicy.BINPACK: "the fullest",
    NodePolicy.SPREAD: "the emptiest",
    NodePolicy.FRAGMENTATION: "the one that leaves the fewest useless cores",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """`fits` counts the nodes with room, `next` are the best of the others, best first.

    `equal`: the first of these has the same score, and the node was taken by its name. `placed` is None where the pod
    was placed without a choice among nodes.
    """

    node: str
    at: float
    policy: NodePolicy
    fits: int
    next: tuple[str, ...]
    equal: bool
    rejected: tuple[Rejection, ...]
    placed: PodChoice


def decision_of(
    choice: NodeChoice, rejected: Mapping[str, Rejection], *, policy: NodePolicy, at: float
) -> Decision | None:
    """None where no node carries the pod. `rejected`: why each other node was not taken."""
    if choice.node is None or choice.placed is None:
        return None
    ranked = choice.ranked
    if not rejected.keys().isdisjoint(ranked):
        ranked = {name: score for name, score in ranked.items() if name not in rejected}
    best = heapq.nsmallest(_MOST_NAMED + 1, zip(ranked.values(), ranked, strict=True))
    nearest = [each for each in best if each[1] != choice.node][:_MOST_NAMED]
    return Decision(
        node=choice.node,
        at=at,
        policy=policy,
        fits=len(ranked),
        next=tuple(name for _, name in nearest),
        equal=bool(nearest) and nearest[0][0] == choice.ranked[choice.node],
        rejected=tuple(rejected.values()),
        placed=choice.placed,
    )


def record_text(
    decision: Decision | None, pod: PodRef, node: str, allocations: tuple[Allocation, ...], inventory: Inventory | None
) -> str:
    """The annotation's value; empty where nothing is known about the choice of this node."""
    if decision is None or decision.node != node:
        return ""
    chosen = {each.owner.name: each.shares for each in decision.placed.allocations}
    containers = {
        each.owner.name: _container(decision.placed, each.owner.name, _minors(each, inventory))
        for each in allocations
        if chosen.get(each.owner.name) == each.shares
    }
    return format_decision(
        DecisionRecord(
            version=VERSION,
            pod=pod.uid,
            node=node,
            at=round(decision.at),
            reason=_node_reason(decision),
            others=tuple(_node_others(decision)),
            containers=containers,
        )
    )


def _minors(allocation: Allocation, inventory: Inventory | None) -> tuple[int, ...]:
    gpus = inventory.gpus if inventory else ()
    return tuple(sorted(gpu.minor for gpu in gpus if gpu.uuid in allocation.uuids))


def _container(placed: PodChoice, name: str, minors: tuple[int, ...]) -> ContainerRecord:
    reason = next(
        reason for each, reason in zip(placed.allocations, placed.reasons, strict=True) if each.owner.name == name
    )
    choice = placed.choice(name)
    passed = [] if choice is None else sorted((each.reason, each.gpu.minor) for each in choice.passed_over)
    others = [
        f"{gpus_text(minor for _, minor in same)}: {why}" for why, same in groupby(passed, key=lambda each: each[0])
    ]
    return ContainerRecord(minors, reason, tuple(others))


def _node_reason(decision: Decision) -> str:
    node, policy = f"node {decision.node}", f"policy {decision.policy.value}"
    if decision.fits == 1:
        return f"{node} is the only one that fits"
    if decision.equal:
        return f"{node} is the first by name of those that are best by {policy}; {decision.fits} nodes fit"
    return f"{node} is {_BEST[decision.policy]} of {decision.fits} nodes that fit ({policy})"


def _node_others(decision: Decision) -> Iterator[str]:
    if decision.next:
        more = decision.fits - 1 - len(decision.next)
        names = [*decision.next, *([f"{more} more"] if more > 0 else [])]
        yield f"{'next in that order: ' if len(names) > 1 else 'next: '}{listed(names)}"
    counted = Counter(why.text for why in decision.rejected).most_common()
    for text, count in counted[:_MOST_REASONS]:
        yield f"{count} node{'s' * (count != 1)}: {text}"
    if left := sum(count for _, count in counted[_MOST_REASONS:]):
        yield f"{left} node{'s' * (left != 1)}: other reasons"


def summary(written: str) -> str:
    """One sentence from such a value, for an event on the pod; empty where it has none."""
    try:
        record = parse_decision(written)
    except ParseError:
        return ""
    parts = (f"container {name}: {each.reason}" for name, each in record.containers.items())
    return "; ".join((record.reason, *parts))


def why_lines(
    written: str, pod: PodRef, node: str, allocations: tuple[Allocation, ...], inventory: Inventory | None
) -> tuple[str, ...]:
    """Lines for people, from the annotation of a bound pod; empty where it has none that is about this pod and node."""
    if not written:
        return ()
    try:
        record = parse_decision(written)
    except ParseError:
        return ()
    if record.pod != pod.uid or record.node != node:
        return ()
    lines = [record.reason, *(f"  {each}" for each in record.others)]
    for each in allocations:
        found = record.containers.get(each.owner.name)
        if found is None:
            continue
        if found.gpus != _minors(each, inventory):
            lines.append(f"container {each.owner.name}: the node's agent has placed it again since")
            continue
        lines += [f"container {each.owner.name}: {found.reason}", *(f"  {other}" for other in found.others)]
    return tuple(lines)
