"""filter and prioritize: which of these nodes can serve the pod, on which GPUs, and how good each of them is.

In: a pod, node names, and a budget of steps. Nothing is written, and nothing awaits.

Out of filter: one node, chosen by policy and reserved in memory for the pod's UID; or all nodes that fit, with nothing
reserved, where kube-scheduler chooses. A pod that is filtered again gets the same node and GPUs, where they are still
offered and still fit. Invariant: where the budget goes on, nothing stays but what placement has cached, and the end of
a reservation that fits no more; the answer is none.

Out of prioritize, for nodes that kube-scheduler may still choose: a score from 0 to 10 for each, in the order of the
node policy: 10 for the best, 0 for the worst, equal scores for equally good nodes. kube-scheduler multiplies it by the
extender's weight and adds it to the scores of its own plugins.
"""

from collections.abc import Callable, Iterable, Mapping

from deviceplugin.cluster.extender.cache.node_info import needs_of
from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold, is_later, reserved_hold
from deviceplugin.cluster.extender.explain.verdicts import Decision, Verdicts, decision_of
from deviceplugin.cluster.extender.gangs import GangTracker
from deviceplugin.cluster.extender.rejection import (
    BOUND_ELSEWHERE,
    GANG_YIELDED,
    NOT_PLACED_YET,
    Rejection,
    never_asked_text,
    rejection_of,
)
from deviceplugin.cluster.extender.snapshot import ClusterSnapshot, NodeCandidates
from deviceplugin.cluster.extender.wire import ExtenderArgs, FilterResult
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.errors import CapacityError, ParseError, RequestError
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, placeable_request, pod_request
from deviceplugin.placement.budget import AT_ONCE, ON_ONE_NODE, Budget
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.nodes import NodeChoice
from deviceplugin.placement.pod import PodChoice, place_pod
from deviceplugin.structs import replace

_LATE_REFUSAL_S = 10.0  # kube-scheduler sends 50 requests a second (its client's default): 500 refusals of a gang


class Filter:
    """Keeps nothing but the cache and the last verdicts."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        verdicts: Verdicts,
        gangs: GangTracker,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._snapshot, self._cache, self._settings = snapshot, snapshot.cache, snapshot.settings
        self._verdicts = verdicts
        self._gangs = gangs
        self._one_node = snapshot.settings.one_node
        self._clock = clock
        self._wall = wall

    def filter(self, args: ExtenderArgs, budget: Budget | None = None) -> FilterResult:
        pod, budget = self._as_last_seen(args.pod), budget or Budget()
        if not pod.pod.is_gpu:
            return FilterResult(args.names)
        self._cache.expire()
        self._gangs.expire()
        if (bound := self._cache.bound_to(pod.uid)) is not None or self._cache.is_over(pod.uid):
            return _bound_node_only(args, bound)
        try:
            asked = placeable_request(pod.pod, self._settings.names)
        except (RequestError, ParseError) as error:
            return self._reject_all(args, Rejection(error.message, resolvable=False))
        if self._one_node:
            return self._choose_one(pod, asked, args.names, budget)
        return self._all_that_fit(pod, asked, args.names, budget)

    def _as_last_seen(self, pod: ClusterPod) -> ClusterPod:
        """kube-scheduler may ask with an older version than the watch has brought."""
        seen = self._cache.waiting.get(pod.uid)
        if seen is None or not is_later(seen.pod.resource_version, pod.pod.resource_version):
            return pod
        version = seen.pod.resource_version
        return replace(pod, condition=seen.condition, pod=replace(pod.pod, resource_version=version))

    def _reject_all(self, args: ExtenderArgs, why: Rejection) -> FilterResult:
        self._verdicts.record(args.pod, None, dict.fromkeys(args.names, why))
        self._cache.release_reservations(args.pod.uid)  # of what it asked before
        return FilterResult(unresolvable=dict.fromkeys(args.names, why.text))

    def _choose_one(self, pod: ClusterPod, asked: PodRequest, names: tuple[str, ...], budget: Budget) -> FilterResult:
        if not self._gangs.may_place(pod):
            return self._answer(pod, (), dict.fromkeys(names, GANG_YIELDED))
        nodes, holds = self._snapshot.nodes(pod, names, budget), tuple(self._cache.holds(pod.uid))
        if _is_open(holds, nodes, budget):
            return FilterResult()
        if (kept := self._keep_node(pod, asked, holds, nodes, budget)) is not None:
            budget.is_complete = True
            fitting = [state.name for state in nodes.states]
            earlier = self._verdicts.decision(pod.uid)
            return self._answer(pod, (kept,), nodes.rejected, fitting=fitting, decision=earlier)
        nodes, choice = self._chosen(pod, asked, nodes, budget)
        if budget.goes_on:
            return FilterResult()
        rejected = nodes.rejected | {name: rejection_of(verdict) for name, verdict in choice.refused.items()}
        if choice.node is None or choice.placed is None:
            return self._answer(pod, (), rejected)
        self._reserve(pod, asked, choice.node, choice.placed)
        policy = asked.preferences.node or self._settings.node_policy
        decision = decision_of(choice, rejected, policy=policy, at=self._wall())
        return self._answer(
            pod, (choice.node,), rejected, fitting=[name for _, name in choice.fitting], decision=decision
        )

    def _chosen(
        self, pod: ClusterPod, asked: PodRequest, nodes: NodeCandidates, budget: Budget
    ) -> tuple[NodeCandidates, NodeChoice]:
        """Where nothing fits, once more after other gangs have yielded what they reserved."""
        needs = needs_of(pod.needs)
        choice = self._snapshot.scorer.choose(asked, nodes.states, needs=needs, budget=budget)
        if choice.node is None and nodes.is_unfinished:
            budget.put_off()
        if choice.node is not None or choice.unfinished or budget.goes_on or not self._gangs.yield_reservations(pod):
            return nodes, choice
        after = Budget(AT_ONCE, is_last=False)
        names = (*(state.name for state in nodes.states), *nodes.rejected)
        nodes = self._snapshot.nodes(pod, names, after)
        choice = self._snapshot.scorer.choose(asked, nodes.states, needs=needs, budget=after)
        budget.may(after.spent)
        budget.is_complete = True  # reservations were given away for this attempt, so it is not put off
        return nodes, choice

    def _all_that_fit(self, pod: ClusterPod, asked: PodRequest, names: tuple[str, ...], budget: Budget) -> FilterResult:
        nodes = self._snapshot.nodes(pod, names, budget)
        choice = self._snapshot.scorer.all_that_fit(asked, nodes.states, needs=needs_of(pod.needs), budget=budget)
        rejected = nodes.rejected | {name: rejection_of(verdict) for name, verdict in choice.refused.items()}
        if nodes.is_unfinished and len(rejected) >= len(names):
            budget.put_off()
        if budget.goes_on:
            return FilterResult()
        return self._answer(pod, tuple(state.name for state in nodes.states if state.name not in rejected), rejected)

    def _keep_node(
        self, pod: ClusterPod, asked: PodRequest, holds: Iterable[PodHold], nodes: NodeCandidates, budget: Budget
    ) -> str | None:
        """The node that the pod has already, where it is offered and still fits."""
        for held in holds:
            state = next((state for state in nodes.states if state.name == held.node), None)
            if state is None:
                continue
            if held.state is not HoldState.RESERVED:
                # A Binding with these GPUs may still arrive, and the node would then have two sets for the pod.
                if held.has_deadline:
                    until = max(held.expires, self._deadline(pod))
                    self._cache.put_hold(self._in_this_attempt(pod, replace(held, expires=until)))
                return held.node
            placed = _place_again(asked, state, self._settings, held, budget)
            if placed is not None:
                self._reserve(pod, asked, held.node, placed)
                return held.node
            self._cache.release(pod.uid, held.node)  # else each turn would try it again
        return None

    def _reserve(self, pod: ClusterPod, asked: PodRequest, node: str, placed: PodChoice) -> None:
        hold = reserved_hold(pod, node, placed.allocations, asked, expires=self._deadline(pod))
        self._cache.put_hold(self._in_this_attempt(pod, hold))

    def _in_this_attempt(self, pod: ClusterPod, hold: PodHold) -> PodHold:
        """What kube-scheduler has not written yet of attempts before this one says nothing about it."""
        before = next(iter(self._cache.holds(pod.uid)), None)
        late = int(self._verdicts.is_unanswered(pod)) if before is None else before.late + 1
        version, until = pod.pod.resource_version, self._clock() + _LATE_REFUSAL_S
        return replace(hold, version=version, condition=pod.condition, late=late, late_until=until)

    def _deadline(self, pod: ClusterPod) -> float:
        settings, waits = self._settings, pod.gang is not None and pod.gang.waits
        return self._clock() + (settings.gang_reservation_time if waits else settings.reservation_time)

    def _answer(
        self,
        pod: ClusterPod,
        names: tuple[str, ...],
        rejected: Mapping[str, Rejection],
        *,
        fitting: Iterable[str] = (),
        decision: Decision | None = None,
    ) -> FilterResult:
        """`fitting`: nodes on which the pod fits too, perhaps with the chosen one."""
        self._gangs.record(pod, fits=bool(names))
        chosen = names[0] if len(names) == 1 else None
        self._verdicts.record(pod, chosen, rejected, fitting=fitting, fits=bool(names), decision=decision)
        if names:
            return _result(names, rejected)
        self._cache.release_reservations(pod.uid)  # of an attempt that is over
        return replace(_result(names, rejected), remark=self._never_asked(rejected))

    def _never_asked(self, rejected: Mapping[str, Rejection]) -> str:
        """kube-scheduler asks about nodes that pass its own checks, and about a part of them if it is so configured."""
        return never_asked_text(len(rejected), len(self._snapshot.usable_but(rejected)))


def _is_open(holds: Iterable[PodHold], nodes: NodeCandidates, budget: Budget) -> bool:
    """Whether it is not known yet if the pod fits on the node that it has."""
    if any(nodes.rejected.get(held.node) is NOT_PLACED_YET for held in holds):
        budget.put_off()
    return budget.goes_on


def _result(names: tuple[str, ...], rejected: Mapping[str, Rejection]) -> FilterResult:
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name, why in rejected.items():
        (failed if why.resolvable else unresolvable)[name] = why.text
    return FilterResult(names, failed, unresolvable)


def _bound_node_only(args: ExtenderArgs, bound: str | None) -> FilterResult:
    """For a pod that is bound or gone, before kube-scheduler has heard of it."""
    names = tuple(name for name in args.names if name == bound)
    return _result(names, {name: BOUND_ELSEWHERE for name in args.names if name != bound})


def _place_again(
    asked: PodRequest, state: NodeState, settings: PlacementSettings, held: PodHold, budget: Budget
) -> PodChoice | None:
    here = Budget(ON_ONE_NODE)
    try:
        return place_pod(asked, state, policy=settings.gpu_policy, prefer=held.uuids, budget=here)
    except (CapacityError, RequestError):
        return None
    finally:
        budget.may(here.spent)


BEST = 10


def prioritize(
    snapshot: ClusterSnapshot, args: ExtenderArgs, budget: Budget | None = None
) -> tuple[tuple[str, int], ...]:
    """Reads only."""
    ranked = _ranked(snapshot, args, budget or Budget()) if args.pod.pod.is_gpu else {}
    return tuple(zip(args.names, scaled([ranked.get(name) for name in args.names]), strict=True))


def _ranked(snapshot: ClusterSnapshot, args: ExtenderArgs, budget: Budget) -> Mapping[str, tuple[int, ...]]:
    try:
        asked = pod_request(args.pod.pod, snapshot.settings.names)
    except (RequestError, ParseError):
        return {}
    states = snapshot.nodes(args.pod, args.names, budget).states
    return snapshot.scorer.ranked(asked, states, needs=needs_of(args.pod.needs), budget=budget)


def scaled(ranks: list[tuple[int, ...] | None]) -> list[int]:
    """The lowest rank is the best; a node without a rank scores like the worst."""
    order = sorted({rank for rank in ranks if rank is not None})
    if not order:
        return [0] * len(ranks)
    last = max(1, len(order) - 1)
    scores = {rank: BEST - at * BEST // last for at, rank in enumerate(order)}
    return [0 if rank is None else scores[rank] for rank in ranks]
