"""Chooses the GPUs for all containers of a pod on one node.

In: what the pod asks, and the node with everything that other pods hold taken away. Out: an allocation for each
container, in kubelet's order, or a CapacityError or RequestError whose sentence names the container. Init containers
and sidecars count as `snapshot` says. Each container prefers the GPUs that the pod has already, because kubelet hands
the IDs of an init container on to the next ones. Containers are placed one after the other; where that leaves one
without room, all are placed at once (`assign`). What some of them have already is `fixed`: a node's agent asks again
for each container and moves none. The same arguments give the same choice, in every process.

Invariant: a pod is refused only if there is no room for it. Of pods with very many containers not every combination can
be tried; then it is a SearchLimitError, whose sentence says so.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from deviceplugin.errors import CapacityError, RequestError, SearchLimitError
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.placement.assign import Unassigned, assign
from deviceplugin.placement.budget import ON_ONE_NODE, Budget
from deviceplugin.placement.candidates import Restrictions, Selection, Survey, survey
from deviceplugin.placement.describe import gpus_text, no_room, request_text
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.place import Choice, choice_of, select, shares_of
from deviceplugin.placement.prefilter import prefilter
from deviceplugin.placement.snapshot import GpuView, OwnUse, free_for_next_container

_FIXED = "held already"
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


@dataclass(frozen=True, slots=True)
class _Stuck:
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
            f"container {share.name}: {request_text(share.request)} asked, but node {state.name} gives whole GPUs "
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
