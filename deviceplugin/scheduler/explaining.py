"""What can be said of a pod of which filter has said nothing: where it is, or why nobody has asked about it.

In: the books. Out: an `Explanation` like that of a pod that was refused, or none.
"""

from collections.abc import Iterable

from deviceplugin.cluster.extender.books import Books
from deviceplugin.cluster.extender.explain import Explanation, held_lines
from deviceplugin.errors import VcudaError
from deviceplugin.model.cluster_pod import ClusterPod
from deviceplugin.model.pod_request import pod_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.describe import request_text


def bound_pod(books: Books, namespace: str, name: str) -> Explanation | None:
    """Looks through all pods: people ask seldom."""
    for book in books.nodes.values():
        for held in book.holdings.values():
            if held.is_bound and (held.pod.namespace, held.pod.name) == (namespace, name):
                sentence = f"it is bound to node {book.name}"
                problem = f"; {held.problem}" if held.problem else ""
                return _explanation(namespace, name, sentence + problem, held_lines(held), node=book.name)
    return None


def unasked_pod(books: Books, namespace: str, name: str, names: ResourceNames) -> Explanation | None:
    """It waits, and that is not for our GPUs' sake."""
    for waiting in books.waiting.values():
        ref = waiting.pod.ref
        if (ref.namespace, ref.name) == (namespace, name):
            return _explanation(namespace, name, _why_unasked(waiting), _wishes(waiting, names))
    return None


def _why_unasked(waiting: ClusterPod) -> str:
    reason = waiting.condition.reason if waiting.condition is not None else ""
    if reason == "SchedulingGated":
        return "it waits for its scheduling gates to be removed; nobody chooses a node before"
    scheduler = waiting.scheduler or "default-scheduler"
    return (
        f"no kube-scheduler has asked about it yet; its schedulerName is {scheduler}, which must run and have this "
        "extender, or an earlier check of it (CPU, memory, taints, volumes) leaves no node: see the pod's events"
    )


def _wishes(waiting: ClusterPod, names: ResourceNames) -> tuple[str, ...]:
    try:
        asked = pod_request(waiting.pod, names)
    except VcudaError as error:
        return (error.message,)
    return tuple(f"container {each.name}: {request_text(each.request)}" for each in asked.containers)


def _explanation(namespace: str, name: str, sentence: str, lines: Iterable[str], *, node: str = "") -> Explanation:
    return Explanation(
        pod=f"{namespace}/{name}",
        sentence=sentence,
        at=0.0,
        node=node or None,
        asked=tuple(lines),
        reasons={},
        nodes=(),
        left_out=0,
    )
