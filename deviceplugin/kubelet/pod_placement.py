"""Which GPUs a container gets, with its whole pod in view.

In: what the pod asks, the node without it, what its containers hold already, and the GPUs that a scheduler chose for
each. Out: one placement of all containers, or the CapacityError of the first one that has no room: a pod is let in
whole or not at all, at its first Allocate. Pure, and nothing is remembered between the containers of a pod: what the
ledger holds of it is fixed, and the rest is placed anew around that. So a crash in between changes nothing; where a GPU
failed or was cordoned in between, another one is taken, and where there is none, the pod is refused with that sentence.

What a scheduler chose is carried out where it still can be had, on cordoned GPUs too, and so is what the pod holds
already: a cordon is for new decisions. Where one of the chosen GPUs is taken, the pod goes elsewhere on this node.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from deviceplugin.errors import CapacityError
from deviceplugin.model.allocation import Allocation, ContainerRef
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.placement.describe import gpus_text
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.occupancy import free_for_next_container
from deviceplugin.placement.place import Choice, place
from deviceplugin.placement.pod import PodChoice, place_pod

Wishes = Mapping[str, frozenset[GpuUuid]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every container of the pod has or gets; `reasons` are of those that are placed anew."""

    allocations: tuple[Allocation, ...]
    reasons: Mapping[str, str]

    def of(self, name: str) -> Allocation:
        return next(each for each in self.allocations if each.owner.name == name)


def plan(
    asked: PodRequest,
    state: NodeState,
    *,
    granted: Sequence[Allocation] = (),
    wishes: Wishes = {},  # noqa: B006 - read only
    prefer: Collection[GpuUuid] = (),
) -> Plan:
    """`state` is without the pod; `wishes` by container; `prefer` counts where nobody wishes anything."""
    held = frozenset(uuid for each in granted for uuid in each.uuids)
    state = replace(state, cordoned=state.cordoned - held)
    wished = frozenset[GpuUuid]().union(*wishes.values())
    kept = _as_wished(asked, state, granted, wishes)
    attempts = [kept] if len(kept) == len(granted) else [kept, granted]
    for fixed in attempts:
        try:
            return _planned(asked, place_pod(asked, state, prefer=wished or prefer, fixed=fixed), fixed)
        except CapacityError as error:
            refusal = error
    raise _said_of_wishes(refusal, wished, state) from None


def _planned(asked: PodRequest, found: PodChoice, fixed: Sequence[Allocation]) -> Plan:
    """What is held but not asked for now (where one container of the pod is looked at alone) counts all the same."""
    known = {each.name for each in asked.containers}
    have = {each.owner.name for each in fixed}
    named = zip(asked.containers, found.reasons, strict=True)
    reasons = {container.name: reason for container, reason in named if container.name not in have}
    return Plan((*found.allocations, *(each for each in fixed if each.owner.name not in known)), reasons)


def choice_for(name: str, planned: Plan, asked: PodRequest, state: NodeState) -> Choice:
    """The plan's part for one container, with what speaks against each other GPU."""
    at = next(number for number, each in enumerate(asked.containers) if each.name == name)
    container, mine = asked.containers[at], planned.of(name)
    others = [each for each in planned.allocations if each is not mine]
    found = place(
        container.request,
        free_for_next_container(state.snapshot, others, role=container.role, index=container.index),
        prefer=mine.uuids,
        policy=asked.preferences.gpu or GpuPolicy.BINPACK,
        wanted=asked.preferences.gpus,
        cordoned=state.cordoned - mine.uuids,
    )
    assert frozenset(gpu.uuid for gpu in found.gpus) == mine.uuids, "a plan names GPUs that fit"
    return replace(found, reason=planned.reasons.get(name, found.reason))


def _as_wished(asked: PodRequest, state: NodeState, granted: Sequence[Allocation], wishes: Wishes) -> list[Allocation]:
    """What is held, and beside it what a scheduler chose and can still be had, in kubelet's order."""
    kept = list(granted)
    have = {each.owner.name for each in granted}
    for container in asked.containers:
        wish = wishes.get(container.name)
        if wish and container.name not in have and (found := _had(asked, state, container, kept, wish)) is not None:
            kept.append(found)
    return kept


def _had(
    asked: PodRequest,
    state: NodeState,
    container: ContainerRequest,
    kept: Sequence[Allocation],
    wish: frozenset[GpuUuid],
) -> Allocation | None:
    view = free_for_next_container(state.snapshot, kept, role=container.role, index=container.index)
    policy, wanted = asked.preferences.gpu or GpuPolicy.BINPACK, asked.preferences.gpus
    try:
        found = place(container.request, view, only=wish, policy=policy, wanted=wanted)
    except CapacityError:
        return None
    owner = ContainerRef(asked.pod, container.name)
    return Allocation(owner, container.role, container.request, found.shares, container.index)


def _said_of_wishes(error: CapacityError, wished: frozenset[GpuUuid], state: NodeState) -> CapacityError:
    minors = sorted(view.gpu.minor for view in state.snapshot.gpus if view.gpu.uuid in wished)
    if not minors:
        return error
    return CapacityError(f"{error.message} ({gpus_text(minors)} had been chosen by its scheduler)")
