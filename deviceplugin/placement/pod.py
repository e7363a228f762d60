"""Chooses the GPUs for all containers of a pod on one node, or for one container alone (`place`).

In: what the pod asks, and the node with everything that other pods hold taken away. Out: an allocation for each
container, in kubelet's order, or a CapacityError or RequestError whose sentence names the container. Init containers
and sidecars count as `snapshot` says. Each container prefers the GPUs that the pod has already, because kubelet hands
the IDs of an init container on to the next ones. Containers are placed one after the other; where that leaves one
without room, all are placed at once (`assign`). What some of them have already is `fixed`: a node's agent asks again
for each container and moves none. The same arguments give the same choice, in every process.

Invariant: a pod is refused only if there is no room for it. Of pods with very many containers not every combination can
be tried; then it is a SearchLimitError, whose sentence says so.

Of one container a `Choice` accounts for every GPU of the snapshot. GPUs to `prefer` are tried first on their own; the
pod's filter and the operator's cordon are hard. Not here: who holds what (`snapshot`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

import msgspec

from deviceplugin.errors import CapacityError, RequestError, SearchLimitError
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare
from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import ANY_GPU, GpuFilter, GpuPolicy
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.placement.assign import Unassigned, assign
from deviceplugin.placement.budget import ON_ONE_NODE, Budget
from deviceplugin.placement.candidates import Candidates, Restrictions, Selection, Survey, survey
from deviceplugin.placement.describe import gpus_text, no_room, rejection_text, request_text
from deviceplugin.placement.fit import demand_of
from deviceplugin.placement.link import link
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.one_gpu import fragment, share, spread
from deviceplugin.placement.prefilter import prefilter
from deviceplugin.placement.snapshot import GpuView, OwnUse, Snapshot, free_for_next_container
from deviceplugin.structs import replace

Tiers = Iterable[Collection[GpuUuid]]


class PassedOver(msgspec.Struct, frozen=True):
    """A GPU that was not chosen, and a phrase that says why."""

    gpu: Gpu
    reason: str


class Choice(msgspec.Struct, frozen=True):
    """GPUs in minor order with what is taken of each; `reason` is one sentence for people and logs."""

    evaluator: RequestKind
    gpus: tuple[Gpu, ...]
    shares: tuple[GpuShare, ...]
    reason: str
    passed_over: tuple[PassedOver, ...] = ()


def place(
    request: Request,
    snapshot: Snapshot,
    *,
    prefer: Collection[GpuUuid] = (),
    policy: GpuPolicy = GpuPolicy.BINPACK,
    wanted: GpuFilter = ANY_GPU,
    cordoned: Collection[GpuUuid] = (),
) -> Choice:
    found = survey(request, snapshot, Restrictions(wanted, cordoned))
    selection, preferred = select(found, policy, one_numa=wanted.one_numa, tiers=(prefer,))
    if selection is None:
        raise CapacityError(no_room(request, found, one_numa=wanted.one_numa))
    choice = choice_of(request, found, selection)
    return replace(choice, reason=f"{choice.reason}, among the preferred GPUs") if preferred else choice


def choice_of(request: Request, found: Survey, selection: Selection) -> Choice:
    """The selection, with what speaks against every other GPU of the survey."""
    return Choice(
        evaluator=request.kind,
        gpus=tuple(view.gpu for view in selection.chosen),
        shares=shares_of(request, selection.chosen),
        reason=selection.reason,
        passed_over=_passed_over(found, selection),
    )


def select(found: Survey, policy: GpuPolicy, *, one_numa: bool, tiers: Tiers = ()) -> tuple[Selection | None, bool]:
    """From the first tier whose GPUs suffice on their own, else from all; whether a tier sufficed.

    An empty tier is none.
    """
    every = found.candidates
    for tier in tiers:
        among = every.among(tier) if tier else None
        if among is not None and (selection := _evaluate(among, policy, one_numa)) is not None:
            return selection, True
    return _evaluate(every, policy, one_numa), False


def shares_of(request: Request, chosen: Iterable[GpuView]) -> tuple[GpuShare, ...]:
    demand = demand_of(request)
    return tuple(GpuShare(view.gpu.uuid, *demand.takes(view.gpu.blocks)) for view in chosen)


def _evaluate(candidates: Candidates, policy: GpuPolicy, one_numa: bool) -> Selection | None:
    if len(candidates.views) < candidates.request.gpus:
        return None
    if one_numa and candidates.request.gpus > 1:
        return _on_one_numa(candidates, policy)
    return _by_kind(candidates, policy)


def _by_kind(candidates: Candidates, policy: GpuPolicy) -> Selection:
    """Of as many candidates as are asked, or more."""
    match candidates.request.kind:
        case RequestKind.SHARE:
            return share(candidates, policy)
        case _ if policy.takes_emptiest:
            return spread(candidates)
        case RequestKind.WHOLE:
            return fragment(candidates)
        case RequestKind.LINKED:
            return link(candidates)


def _on_one_numa(candidates: Candidates, policy: GpuPolicy) -> Selection | None:
    """The NUMA node whose best set is closest; then the one with the fewest GPUs that fit, or the most to spread.

    GPUs whose NUMA node is not known count as one node.
    """
    nodes: dict[int, list[GpuView]] = {}
    for view in candidates.views:
        nodes.setdefault(-1 if view.gpu.numa is None else view.gpu.numa, []).append(view)
    sign = -1 if policy.takes_emptiest else 1
    found: list[tuple[tuple[int, int, int], Selection]] = []
    for numa, views in nodes.items():
        if len(views) >= candidates.request.gpus:
            here = replace(candidates, views=tuple(views))
            selection = _by_kind(here, policy)
            found.append(((_distance(here, selection, policy), sign * len(views), numa), selection))
    return min(found, key=lambda each: each[0])[1] if found else None


def _distance(candidates: Candidates, selection: Selection, policy: GpuPolicy) -> int:
    """0 if distance is no aim."""
    if policy.takes_emptiest or (candidates.request.is_share and not policy.takes_closest):
        return 0
    minors = [view.gpu.minor for view in selection.chosen]
    return sum(candidates.topology.distance(a, b) for a in minors for b in minors) // 2


def _passed_over(found: Survey, selection: Selection) -> tuple[PassedOver, ...]:
    """Every GPU that was not chosen, in minor order."""
    chosen, against = {view.gpu.uuid for view in selection.chosen}, selection.against()
    left = [view.gpu for view in found.candidates.views if view.gpu.uuid not in chosen]
    passed = [PassedOver(gpu, against.get(gpu.uuid, "fits, but others are preferred")) for gpu in left]
    passed += [PassedOver(view.gpu, rejection_text(rejection, view)) for view, rejection in found.rejected]
    return tuple(sorted(passed, key=attrgetter("gpu.minor", "gpu.uuid")))


_FIXED = "allocated already"
_SURVEYED, _LINKED = 20, 8  # steps for each GPU, and for each pair of GPUs; measured in the step of `assign`


@dataclass(frozen=True, slots=True)
class PodChoice:
    """One allocation and one sentence for each GPU container, in kubelet's order."""

    allocations: tuple[Allocation, ...]
    reasons: tuple[str, ...]
    _explain: Mapping[str, Callable[[], Choice]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def uuids(self) -> frozenset[GpuUuid]:
        return frozenset(uuid for allocation in self.allocations for uuid in allocation.uuids)

    def choice(self, container: str) -> Choice | None:
        """With what speaks against each other GPU, which is put into words only here; None of a fixed container."""
        explain = self._explain.get(container)
        return None if explain is None else explain()


def place_pod(
    pod: PodRequest,
    state: NodeState,
    *,
    policy: GpuPolicy = GpuPolicy.BINPACK,
    prefer: Collection[GpuUuid] = (),
    fixed: Collection[Allocation] = (),
    budget: Budget | None = None,
) -> PodChoice:
    """`policy` is for a pod that names none; `prefer`: GPUs to keep where they still serve.

    `fixed` is what containers of the pod hold; the state is without it, and whether it is right is not asked.
    `budget` is for this node; where it is spent, not every combination was tried.
    """
    _check_share_mode(pod, state)
    budget = budget or Budget(ON_ONE_NODE)
    found = _one_by_one(pod, state, pod.preferences.gpu or policy, prefer, fixed, budget)
    if isinstance(found, PodChoice):
        return found
    if len(pod.containers) == 1:
        raise CapacityError(no_room(found.container.request, found.survey, one_numa=pod.preferences.gpus.one_numa))
    assigned = assign(pod, state, fixed=fixed, budget=budget)
    if isinstance(assigned, Unassigned):
        error = SearchLimitError if assigned is Unassigned.GIVEN_UP else CapacityError
        raise error(_refusal(pod, state, found, assigned))
    return _together(pod, state, assigned, fixed)


class _Stuck(msgspec.Struct, frozen=True):
    """The container that found no room beside those of its pod before it, and what it saw."""

    container: ContainerRequest
    survey: Survey


def _check_share_mode(pod: PodRequest, state: NodeState) -> None:
    """Raises RequestError if the node gives whole GPUs only and the pod asks for less."""
    if state.share_mode:
        return
    share = next((each for each in pod.containers if each.request.is_share), None)
    if share is not None:
        raise RequestError(
            f"container {share.name}: {request_text(share.request)} asked, but node {state.name} allocates whole GPUs "
            "only; ask for whole GPUs or on another node"
        )


def _one_by_one(
    pod: PodRequest,
    state: NodeState,
    policy: GpuPolicy,
    prefer: Collection[GpuUuid],
    fixed: Collection[Allocation],
    budget: Budget,
) -> PodChoice | _Stuck:
    wanted, preferred = pod.preferences.gpus, frozenset(prefer)
    restrictions = Restrictions(wanted, state.cordoned)
    own, use = list(fixed), OwnUse(fixed)
    held = {each.owner.name for each in fixed}
    reasons: dict[str, str] = {}
    explain: dict[str, Callable[[], Choice]] = {}
    for container in pod.containers:
        if container.name in held:
            continue
        view = use.free(state.snapshot, role=container.role, index=container.index)
        found = survey(container.request, view, restrictions)
        if not budget.may(_steps(container.request, len(view.gpus))):
            return _Stuck(container, found)
        # Best are GPUs that are both; an empty set is passed over.
        before = held_before(own, policy)
        tiers = (preferred & before, preferred, before)
        selection, _ = select(found, policy, one_numa=wanted.one_numa, tiers=tiers)
        if selection is None:
            return _Stuck(container, found)
        own.append(_allocation(pod, container, selection.chosen))
        use.add(own[-1])
        reasons[container.name] = selection.reason
        explain[container.name] = partial(choice_of, container.request, found, selection)
    return _choice(pod, own, reasons, explain)


def _steps(request: Request, gpus: int) -> int:
    """Of choosing GPUs for one container alone."""
    return _SURVEYED * gpus + (_LINKED * gpus * gpus if request.kind is RequestKind.LINKED else 0)


def _choice(
    pod: PodRequest,
    own: Collection[Allocation],
    reasons: Mapping[str, str],
    explain: Mapping[str, Callable[[], Choice]],
) -> PodChoice:
    by_name = {each.owner.name: each for each in own}
    allocations = tuple(by_name[each.name] for each in pod.containers)
    return PodChoice(allocations, tuple(reasons.get(each.name, _FIXED) for each in pod.containers), explain)


def held_before(own: Collection[Allocation], policy: GpuPolicy) -> frozenset[GpuUuid]:
    """GPUs of the pod that its next container prefers; to spread, only those of init containers, once."""
    held = frozenset(uuid for each in own for uuid in each.uuids)
    if not policy.takes_emptiest:
        return held
    return held.difference(*(each.uuids for each in own if each.role is not ContainerRole.INIT))


def _together(
    pod: PodRequest, state: NodeState, found: Mapping[str, tuple[GpuView, ...]], fixed: Collection[Allocation]
) -> PodChoice:
    own, reasons = list(fixed), {}
    explain: dict[str, Callable[[], Choice]] = {}
    for container in pod.containers:
        if (chosen := found.get(container.name)) is not None:
            own.append(_allocation(pod, container, chosen))
            on = gpus_text(view.gpu.minor for view in chosen)
            reasons[container.name] = f"{on}: so that each container finds room"
            selection = Selection(chosen, reasons[container.name], dict)
            explain[container.name] = partial(_beside_the_others, pod, state, own, container, selection)
    return _choice(pod, own, reasons, explain)


def _beside_the_others(
    pod: PodRequest, state: NodeState, own: Collection[Allocation], container: ContainerRequest, selection: Selection
) -> Choice:
    others = [each for each in own if each.owner.name != container.name]
    view = free_for_next_container(state.snapshot, others, role=container.role, index=container.index)
    found = survey(container.request, view, Restrictions(pod.preferences.gpus, state.cordoned))
    return choice_of(container.request, found, selection)


def _allocation(pod: PodRequest, container: ContainerRequest, chosen: tuple[GpuView, ...]) -> Allocation:
    return Allocation(
        ContainerRef(pod.pod, container.name),
        container.role,
        container.request,
        shares_of(container.request, chosen),
        container.index,
    )


def _refusal(pod: PodRequest, state: NodeState, stuck: _Stuck, why: Unassigned) -> str:
    """Of a pod of several containers; to wait is advised only if the empty node might do."""
    reason = prefilter(pod, state)
    hopeless = reason is not None and not reason.resolvable
    one_numa = pod.preferences.gpus.one_numa
    sentence = no_room(stuck.container.request, stuck.survey, one_numa=one_numa, hopeless=hopeless)
    tried = (
        "" if why is Unassigned.NONE_EXISTS else ", or put less into one pod, because not every combination was tried"
    )
    return f"container {stuck.container.name}, beside the others of its pod: {sentence}{tried}"
