"""Why a pod waits: for each node and GPU what speaks against it, and what would have to change.

In: the last verdict of filter, and the books as they are now. Out: values for `/explain` and `vcuda explain`. Reasons
of nodes are those of the verdict; GPUs are looked at afresh, so an answer may say that the pod fits by now. The nodes
that lack least come first, and of a large cluster only those in full.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from deviceplugin.cluster.extender.books import Books
from deviceplugin.cluster.extender.holding import Hold, Holding
from deviceplugin.cluster.extender.missing import Missing, missing_on, what_to_change
from deviceplugin.cluster.extender.refusal import Refusal
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.verdicts import LastVerdict, Verdicts
from deviceplugin.cluster.extender.view import View
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.cluster_pod import ClusterPod
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.model.units import format_blocks
from deviceplugin.placement.describe import request_text

_MOST_NODES = 20


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """`against` is empty where this GPU would do; `holders` are pods with what they have of it."""

    uuid: GpuUuid
    minor: int
    model: str
    against: str
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """`change`: what would have to become different for the pod to fit here."""

    node: str
    reason: str
    change: str
    gpus: tuple[GpuVerdict, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """`at` is when filter was last asked, in Unix seconds. `reasons` counts the nodes by reason, `left_out` those
    without detail."""

    pod: str
    sentence: str
    at: float
    node: str | None
    asked: tuple[str, ...]
    reasons: Mapping[str, int]
    nodes: tuple[NodeVerdict, ...]
    left_out: int


class Explain:
    """Reads only."""

    def __init__(self, books: Books, verdicts: Verdicts, *, settings: Settings) -> None:
        self._books = books
        self._verdicts = verdicts
        self._settings = settings
        self._view = View(books, policy=settings.gpu_policy, names=settings.names)

    def explain(self, namespace: str, name: str, *, most: int = _MOST_NODES) -> Explanation | None:
        """None where filter was never asked about a waiting pod of that name."""
        verdict = self._verdicts.find(namespace, name)
        if verdict is None:
            return None
        try:
            asked = pod_request(verdict.pod.pod, self._settings.names)
        except (RequestError, ParseError):
            asked = PodRequest(verdict.pod.pod.ref, ())
        nodes = self._nodes(verdict, asked, most)
        return Explanation(
            pod=f"{namespace}/{name}",
            sentence=self._sentence(verdict),
            at=verdict.at,
            node=verdict.node,
            asked=(
                *(f"container {each.name}: {request_text(each.request)}" for each in asked.containers),
                *(line for held in self._books.holdings(verdict.pod.uid) for line in held_lines(held)),
            ),
            reasons=dict(Counter(why.text for why in verdict.refused.values()).most_common()),
            nodes=nodes,
            left_out=len(verdict.names) - len(nodes),
        )

    def _nodes(self, verdict: LastVerdict, asked: PodRequest, most: int) -> tuple[NodeVerdict, ...]:
        if not asked.containers:
            return ()
        judged = [(self._missing(verdict.pod, asked, node), node, why) for node, why in verdict.refused.items()]
        judged.sort(key=lambda one: (not one[2].resolvable, one[0].order, one[1]))
        return tuple(self._node(verdict.pod, missing, node, why) for missing, node, why in judged[:most])

    def _missing(self, pod: ClusterPod, asked: PodRequest, node: str) -> Missing:
        state = self._view.node(pod, node)
        return Missing() if isinstance(state, Refusal) else missing_on(asked, state, self._settings.gpu_policy)

    def _node(self, pod: ClusterPod, missing: Missing, node: str, why: Refusal) -> NodeVerdict:
        book = self._books.nodes.get(node)
        gpus = tuple(
            GpuVerdict(gpu.uuid, gpu.minor, gpu.model, against, self._holders(pod, node, gpu.uuid))
            for gpu, against in missing.gpus
        )
        sentence = f"{book.sentence}; " if book and book.sentence else ""
        return NodeVerdict(node, why.text, sentence + what_to_change(why, missing), gpus)

    def _holders(self, pod: ClusterPod, node: str, uuid: GpuUuid) -> tuple[str, ...]:
        """Pods whose place on the node nobody has told us yet are named for each GPU."""
        lines: list[str] = []
        for held in self._books.nodes[node].holdings.values():
            if held.pod.uid == pod.uid:
                continue
            parts = [share for one in held.allocations for share in one.shares if share.uuid == uuid]
            if parts:
                cores, blocks = sum(part.cores for part in parts), sum(part.blocks for part in parts)
                lines.append(f"{held.pod}: {cores} cores, {blocks} blocks ({held.hold.value})")
            elif held.somewhere:
                lines.append(f"{held.pod}: somewhere on this node, not known where yet")
        return tuple(lines)

    def _sentence(self, verdict: LastVerdict) -> str:
        held = next(iter(self._books.holdings(verdict.pod.uid)), None)
        if held is not None:
            return f"node {held.node} was chosen; {_MEANING[held.hold]}"
        if verdict.node is not None:
            return (
                f"node {verdict.node} was chosen, but kube-scheduler has not bound the pod in time and its GPUs are "
                "not reserved any more; they are when it asks again"
            )
        if verdict.fits:
            return "some nodes carry the pod; kube-scheduler has not bound it yet"
        asked = len(verdict.names)
        if asked == 1:
            return "the one node that kube-scheduler asked about does not carry the pod"
        return f"none of the {asked} nodes that kube-scheduler asked about carries the pod"


def held_lines(held: Holding) -> tuple[str, ...]:
    """What a pod holds or is to hold, container by container."""
    exact = (
        f"container {one.owner.name}: {share.cores} cores and {format_blocks(share.blocks)} of {share.uuid}"
        for one in held.allocations
        for share in one.shares
    )
    unknown = (f"container {each.name}: where its agent put it, which is not known yet" for each in held.somewhere)
    return (*exact, *unknown)


_MEANING = {
    Hold.RESERVED: "its GPUs are reserved, and kube-scheduler has not bound the pod yet",
    Hold.COMMITTED: "the pod is being bound",
    Hold.DOUBTFUL: "its Binding got no answer and may still be carried out; until that is known its GPUs are kept",
    Hold.BOUND: "the pod is bound",
}
