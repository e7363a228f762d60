"""Why a pod waits: for each node and GPU what speaks against it, and what would have to change; or where the pod is.

In: the books as they are now, and the last verdict of filter. Out: an `Explanation`. Where filter was asked, reasons of
nodes are those of its verdict; where it was not, or kube-scheduler has decided since without asking, every node is
judged now, and the answer says so. Nodes that lack least come first, and of a large cluster only those in full.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from deviceplugin.cluster.extender.cache.pod_hold import Hold, Holding
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.explain.explanation import Explanation
from deviceplugin.cluster.extender.explain.node_verdicts import NodeVerdicts
from deviceplugin.cluster.extender.explain.now import judge_now
from deviceplugin.cluster.extender.explain.unasked import (
    decided_since,
    is_unexplained,
    what_happened,
    what_is_known_now,
)
from deviceplugin.cluster.extender.explain.verdicts import LastVerdict, Verdicts
from deviceplugin.cluster.extender.refusal import Refusal
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.snapshot import View
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.model.units import format_blocks
from deviceplugin.placement.describe import request_text

_MOST_NODES = 20


class Explain:
    """Reads only."""

    def __init__(self, books: Books, verdicts: Verdicts, *, settings: Settings) -> None:
        self._books = books
        self._verdicts = verdicts
        self._settings = settings
        self._view = View(books, policy=settings.gpu_policy, names=settings.names)
        self._nodes = NodeVerdicts(books, self._view, settings)

    async def explain(self, namespace: str, name: str, *, most: int = _MOST_NODES) -> Explanation | None:
        """None where no pod of that name waits or is bound."""
        waiting = self._books.waiting_pod(namespace, name)
        verdict = self._verdicts.find(namespace, name) if waiting is None else self._verdicts.of(waiting.uid)
        if verdict is not None and not self._is_superseded(verdict, waiting):
            return await self._as_judged(verdict, waiting, most)
        if waiting is not None:
            return await self._as_it_is_now(waiting, verdict, most)
        return self.bound(namespace, name)

    def bound(self, namespace: str, name: str) -> Explanation | None:
        """None where no pod of that name is bound; looks through all pods, as people ask seldom."""
        for book in self._books.nodes.values():
            for held in book.holdings.values():
                if held.is_bound and (held.pod.namespace, held.pod.name) == (namespace, name):
                    problem = f"; {held.problem}" if held.problem else ""
                    said = f"it is bound to node {book.name}{problem}"
                    return Explanation(f"{namespace}/{name}", said, node=book.name, asked=held_lines(held))
        return None

    def _is_superseded(self, verdict: LastVerdict, waiting: ClusterPod | None) -> bool:
        if waiting is None or any(self._books.holdings(waiting.uid)):
            return False
        return decided_since(verdict, waiting)

    async def _as_judged(self, verdict: LastVerdict, waiting: ClusterPod | None, most: int) -> Explanation:
        pod, asked = verdict.pod, PodRequest(verdict.pod.pod.ref, ())
        wishes: tuple[str, ...] = ()
        try:
            asked = pod_request(pod.pod, self._settings.names)
            wishes = wish_lines(asked)
        except (RequestError, ParseError):
            pass  # the reason of each node says it
        held = tuple(self._books.holdings(pod.uid))
        refused = verdict.refused
        nodes = await self._nodes.nearest(pod, asked, refused, most=most)
        return Explanation(
            pod=str(pod.pod.ref),
            sentence=_as_asked(verdict, next(iter(held), None)),
            at=verdict.at,
            node=verdict.node,
            asked=(*wishes, *(line for each in held for line in held_lines(each))),
            reasons=_counted(refused.values()),
            nodes=nodes,
            left_out=len(refused) - len(nodes),
            condition="" if held or waiting is None else _said(waiting),
        )

    async def _as_it_is_now(self, pod: ClusterPod, verdict: LastVerdict | None, most: int) -> Explanation:
        name, at = str(pod.pod.ref), 0.0 if verdict is None else verdict.at
        happened = what_happened(pod, verdict, usual=self._settings.scheduler)
        try:
            asked = pod_request(pod.pod, self._settings.names)
        except (RequestError, ParseError) as error:
            said = f"{happened}; no node can carry it as it is"
            return Explanation(name, said, at, asked=(error.message,), now=True, condition=_said(pod))
        found = await judge_now(self._books, self._view, self._settings, pod, asked)
        nodes = await self._nodes.nearest(pod, asked, found.verdicts, most=most, changes=found.changes)
        return Explanation(
            pod=name,
            sentence=f"{happened}; by what is known now {what_is_known_now(found, unexplained=is_unexplained(pod))}",
            at=at,
            asked=wish_lines(asked),
            reasons=_counted(found.verdicts.values()),
            nodes=nodes,
            left_out=len(found.verdicts) - len(nodes),
            now=True,
            condition=_said(pod),
        )


def wish_lines(asked: PodRequest) -> tuple[str, ...]:
    return tuple(f"container {each.name}: {request_text(each.request)}" for each in asked.containers)


def held_lines(held: Holding) -> tuple[str, ...]:
    """What a pod holds or is to hold, container by container."""
    exact = (
        f"container {one.owner.name}: {share.cores} cores and {format_blocks(share.blocks)} of {share.uuid}"
        for one in held.allocations
        for share in one.shares
    )
    unknown = (f"container {each.name}: where its agent put it, which is not known yet" for each in held.somewhere)
    return (*exact, *unknown)


def _counted(reasons: Iterable[Refusal]) -> Mapping[str, int]:
    return dict(Counter(why.text for why in reasons).most_common())


def _said(pod: ClusterPod) -> str:
    return "" if pod.condition is None else " ".join(pod.condition.message.split())


def _as_asked(verdict: LastVerdict, held: Holding | None) -> str:
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


_MEANING = {
    Hold.RESERVED: "its GPUs are reserved, and kube-scheduler has not bound the pod yet",
    Hold.COMMITTED: "the pod is being bound",
    Hold.DOUBTFUL: "its Binding got no answer and may still be carried out; until that is known its GPUs are kept",
    Hold.BOUND: "the pod is bound",
}
