"""filter: which of these nodes carries the pod, and what it will have there.

In: a pod and names of nodes. Out: one node, chosen by policy and reserved in memory for the pod's UID; or all that fit,
with nothing reserved, where kube-scheduler is to choose. Nothing is written anywhere, and nothing awaits. A pod that is
filtered again gets the node and GPUs it has already, where they are still offered and still serve.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from deviceplugin.cluster.extender.cache.compute_usage import needs_of
from deviceplugin.cluster.extender.cache.pod_hold import Hold, Holding
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.explain.verdicts import Verdicts
from deviceplugin.cluster.extender.gangs import Gangs
from deviceplugin.cluster.extender.refusal import GAVE_WAY, GONE, Refusal, refusal_by, refusal_of
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.snapshot import Nodes, View
from deviceplugin.cluster.extender.wire import Filtered, Question
from deviceplugin.errors import CapacityError, ParseError, RequestError
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.placement.node_score import NodeChoice
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.pod import PodChoice, place_pod


class Filter:
    """Remembers nothing beside the books and the last verdicts."""

    def __init__(
        self,
        books: Books,
        verdicts: Verdicts,
        scorer: NodeScorer,
        *,
        gangs: Gangs,
        settings: Settings,
        clock: Callable[[], float],
    ) -> None:
        self._books = books
        self._verdicts = verdicts
        self._scorer = scorer
        self._gangs = gangs
        self._settings = settings
        self._clock = clock
        self._view = View(books, policy=settings.gpu_policy, names=settings.names)

    def filter(self, question: Question) -> Filtered:
        pod = question.pod
        if not pod.pod.is_gpu:
            return Filtered(question.names)
        self._books.lapse()
        self._gangs.lapse()
        if (bound := self._books.bound_to(pod.uid)) is not None or self._books.is_over(pod.uid):
            return _only(question, bound)
        try:
            asked = pod_request(pod.pod, self._settings.names)
        except (RequestError, ParseError) as error:
            return self._refuse_all(question, Refusal(error.message, resolvable=False))
        if self._settings.one_node:
            return self._one(pod, asked, question.names)
        return self._all(pod, asked, self._view.nodes(pod, question.names))

    def _refuse_all(self, question: Question, why: Refusal) -> Filtered:
        self._verdicts.record(question.pod, None, dict.fromkeys(question.names, why))
        return Filtered(unresolvable=dict.fromkeys(question.names, why.text))

    def _one(self, pod: ClusterPod, asked: PodRequest, names: tuple[str, ...]) -> Filtered:
        if not self._gangs.ask(pod):
            return self._answer(pod, (), dict.fromkeys(names, GAVE_WAY))
        nodes = self._view.nodes(pod, names)
        if (kept := self._again(pod, asked, nodes)) is not None:
            return self._answer(pod, (kept,), nodes.refused, aside=[state.name for state in nodes.states])
        choice = self._choose(pod, asked, nodes)
        if choice.node is None and self._gangs.give_way(pod):
            nodes = self._view.nodes(pod, names)
            choice = self._choose(pod, asked, nodes)
        refused = nodes.refused | {name: refusal_of(verdict) for name, verdict in choice.refused.items()}
        if choice.node is None or choice.placed is None:
            return self._answer(pod, (), refused)
        self._reserve(pod, asked, choice.node, choice.placed)
        return self._answer(pod, (choice.node,), refused, aside=choice.ranked)

    def _choose(self, pod: ClusterPod, asked: PodRequest, nodes: Nodes) -> NodeChoice:
        policies = self._settings
        return self._scorer.choose(
            asked,
            nodes.states,
            node_policy=policies.node_policy,
            gpu_policy=policies.gpu_policy,
            needs=needs_of(pod.needs),
        )

    def _all(self, pod: ClusterPod, asked: PodRequest, nodes: Nodes) -> Filtered:
        fitting, refused = fitting_nodes(self._scorer, self._settings, asked, nodes)
        return self._answer(pod, fitting, refused)

    def _again(self, pod: ClusterPod, asked: PodRequest, nodes: Nodes) -> str | None:
        """The node that the pod has already, where it is offered and still serves."""
        for held in tuple(self._books.holdings(pod.uid)):
            state = next((state for state in nodes.states if state.name == held.node), None)
            if state is None:
                continue
            if held.hold is not Hold.RESERVED:
                # A Binding with these GPUs is under way: no other choice on this node could be kept apart from it.
                if held.lapses:
                    until, version = max(held.expires, self._until(pod)), pod.pod.resource_version
                    self._books.hold(replace(held, expires=until, version=version, condition=pod.condition))
                return held.node
            placed = _placed(asked, state, self._settings, held)
            if placed is not None:
                self._reserve(pod, asked, held.node, placed)
                return held.node
        return None

    def _reserve(self, pod: ClusterPod, asked: PodRequest, node: str, placed: PodChoice) -> None:
        self._books.hold(
            Holding(
                pod=pod.pod.api_ref,
                node=node,
                hold=Hold.RESERVED,
                allocations=placed.allocations,
                priority=pod.priority,
                expires=self._until(pod),
                version=pod.pod.resource_version,
                condition=pod.condition,
                request=asked,
                needs=pod.needs,
            )
        )

    def _until(self, pod: ClusterPod) -> float:
        return self._clock() + self._settings.patience.of(pod)

    def _answer(
        self, pod: ClusterPod, names: tuple[str, ...], refused: Mapping[str, Refusal], *, aside: Iterable[str] = ()
    ) -> Filtered:
        """`aside`: nodes that would do as well, the chosen one maybe among them."""
        self._gangs.answered(pod, fits=bool(names))
        chosen = names[0] if len(names) == 1 else None
        self._verdicts.record(pod, chosen, refused, aside=aside, fits=bool(names))
        return filtered(names, refused)


def fitting_nodes(
    scorer: NodeScorer, settings: Settings, asked: PodRequest, nodes: Nodes
) -> tuple[tuple[str, ...], dict[str, Refusal]]:
    """All nodes that carry the pod; what the gate cannot know of several containers is tried out."""
    choice = scorer.choose(asked, nodes.states, node_policy=settings.node_policy, gpu_policy=settings.gpu_policy)
    refused = nodes.refused | {name: refusal_of(verdict) for name, verdict in choice.refused.items()}
    fitting = [state for state in nodes.states if state.name not in refused]
    if len(asked.containers) > 1:
        for state in tuple(fitting):
            try:
                place_pod(asked, state, policy=settings.gpu_policy)
            except CapacityError as error:
                fitting.remove(state)
                refused[state.name] = refusal_by(error)
    return tuple(state.name for state in fitting), refused


def filtered(names: tuple[str, ...], refused: Mapping[str, Refusal]) -> Filtered:
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name, why in refused.items():
        (failed if why.resolvable else unresolvable)[name] = why.text
    return Filtered(names, failed, unresolvable)


def _only(question: Question, bound: str | None) -> Filtered:
    """A pod that is bound or gone; kube-scheduler has not heard of it yet."""
    names = tuple(name for name in question.names if name == bound)
    return filtered(names, {name: GONE for name in question.names if name != bound})


def _placed(asked: PodRequest, state: NodeState, settings: Settings, held: Holding) -> PodChoice | None:
    uuids = {uuid for each in held.allocations for uuid in each.uuids}
    try:
        return place_pod(asked, state, policy=settings.gpu_policy, prefer=uuids)
    except (CapacityError, RequestError):
        return None
