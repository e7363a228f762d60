"""The nodes as one pod sees them: without what it holds itself, and with what is kept for pods that go before it.

In: the books and the pod. Out: states of the nodes that can be used, reasons for the others. A nominated pod is one
for which kube-scheduler evicts others: what it will need is used already, for every pod of no higher priority. Where it
does not fit yet, its victims are still there, and nobody below it gets what they leave.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.refusal import NOMINATED, UNKNOWN_NODE, Refusal
from deviceplugin.errors import VcudaError
from deviceplugin.model.allocation import Allocation, PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import pod_request
from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.model.units import NOTHING, ResourceNames
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.pod import place_pod


@dataclass(slots=True)
class Nodes:
    """Every name that was asked about, once."""

    states: list[NodeState] = field(default_factory=list)
    refused: dict[str, Refusal] = field(default_factory=dict)


class View:
    """Reads only; nothing of it outlives the question."""

    def __init__(self, books: Books, *, policy: GpuPolicy, names: ResourceNames) -> None:
        self._books = books
        self._policy = policy
        self._names = names

    def nodes(self, pod: ClusterPod, names: Iterable[str]) -> Nodes:
        """Written for speed: there are hundreds of names, and nearly all nodes are as they stand in the books."""
        found = Nodes()
        own = {held.node for held in self._books.holdings(pod.uid)}
        books, states, nominated = self._books.nodes, found.states, self._books.nominated_nodes
        for name in names:
            book = books.get(name)
            if book is None:
                found.refused[name] = UNKNOWN_NODE
            elif book.problem is not None:
                found.refused[name] = book.problem
            elif name in own or name in nominated:
                judged = self.node(pod, name)
                if isinstance(judged, Refusal):
                    found.refused[name] = judged
                else:
                    states.append(judged)
            else:
                states.append(book.known or book.state)
        return found

    def node(self, pod: ClusterPod, name: str, *, without: Iterable[PodUid] = ()) -> NodeState | Refusal:
        """One node; `without` are further pods to imagine away."""
        if (problem := self._books.problem(name)) is not None:
            return problem
        book = self._books.nodes[name]
        absent = {pod.uid, *without}
        kept: list[Allocation] = []
        needs = NOTHING
        for other in self._books.nominated(name):
            if other.uid in absent or other.priority < pod.priority or any(self._books.holdings(other.uid)):
                continue
            taken = self._taken_by(other, book.state_without(absent, beside=kept))
            if taken is None:
                return NOMINATED
            kept += taken
            needs += other.needs or NOTHING
        return book.state_without(absent, beside=kept, needs=needs)

    def _taken_by(self, pod: ClusterPod, state: NodeState) -> tuple[Allocation, ...] | None:
        try:
            return place_pod(pod_request(pod.pod, self._names), state, policy=self._policy).allocations
        except VcudaError:
            return None
