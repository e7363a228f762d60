"""Which GPUs a container gets, with its whole pod in view.

In: the asking container and the node. Out: its allocation and the reason, or the CapacityError of the first container
of the pod that has no room: kubelet admits a pod completely or not at all, at its first Allocate. Nothing is recorded
here and nothing is kept between the containers of a pod: what the ledger holds of the pod is fixed, the rest is placed
again around it. So a crash between two containers changes nothing, and the same call twice gives the same GPUs. If a
GPU failed or was cordoned between two containers, another one is used; if there is none, the pod is refused.

The GPUs that a scheduler chose are used if they are still free, cordoned or not, and so is what the pod holds already:
a cordon is for new decisions. If one of the chosen GPUs is taken, the container gets other GPUs of this node.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence

import msgspec

from deviceplugin.errors import CapacityError
from deviceplugin.kubelet.allocate_context import AllocateContext
from deviceplugin.kubelet.identity import IdentifiedContainer
from deviceplugin.model.allocation import Allocation, ContainerRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest, container_request, pod_request, require_short
from deviceplugin.model.preferences import GpuFilter, GpuPolicy
from deviceplugin.model.request import Request
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.describe import gpus_text
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.pod import Choice, PodChoice, place, place_pod
from deviceplugin.placement.snapshot import free_for_next_container, snapshot_for
from deviceplugin.structs import replace

ScheduledGpus = Mapping[str, frozenset[GpuUuid]]


class PodPlan(msgspec.Struct, frozen=True):
    """What every container of the pod has or gets.

    `scheduled`: the choices that follow a scheduler. `placed`: the choices for the other containers.
    """

    allocations: tuple[Allocation, ...]
    scheduled: Mapping[str, Choice]
    placed: PodChoice

    def allocation(self, name: str) -> Allocation:
        return next(each for each in self.allocations if each.owner.name == name)

    def choice(self, name: str) -> Choice:
        """Of a container that holds nothing yet."""
        found = self.scheduled.get(name) or self.placed.choice(name)
        assert found is not None, "what a container holds already was chosen in an earlier call"
        return found


def place_container(
    context: AllocateContext, asking: IdentifiedContainer, near: frozenset[GpuUuid], *, whole: bool
) -> PodPlan:
    """With `whole`, a plan for the whole pod. Without, only the container: a guess must refuse no other container.

    `near`: GPUs beside the processors that kubelet has chosen; a preference like the others, and the last of them.
    """
    container, uid = asking.container, asking.pod.ref.uid
    pod = asking.pod if whole else replace(asking.pod, containers=(container,))
    asked = pod_request(pod, context.layout.names)
    if not context.share_mode:  # raises for a share; its sentence names the flag --share-mode
        container_request(pod, container, share_mode=False, names=context.layout.names)
    gpu_containers = [each for each in pod.containers if each.is_gpu]
    scheduled = {each.ref.name: gpus for each in gpu_containers if (gpus := context.hints.scheduled_gpus(pod, each))}
    granted = [grant.allocation for grant in context.ledger.of_pod(uid)]
    if not scheduled and pod.unread_bytes:
        require_short(pod.unread_bytes)  # what it prefers is not known
    state = _without_pod(context, uid)
    chosen = scheduled.get(container.ref.name, frozenset())
    roomy = _roomy(asking, asked, state, granted, chosen)
    if roomy and not roomy <= chosen:  # the call may be for another container, which does not fit there
        scheduled = {}
    return plan(asked, state, granted=granted, scheduled=scheduled, prefer=roomy or near)


def _without_pod(context: AllocateContext, uid: PodUid) -> NodeState:
    inventory, gpus = context.feed.catalog.inventory, context.gpus
    others = (each for each in context.ledger.allocations() if each.owner.pod.uid != uid)
    snapshot = snapshot_for(inventory, others, processes=gpus.processes())
    return NodeState("", snapshot, share_mode=context.share_mode, cordoned=gpus.cordoned())


def _roomy(
    asking: IdentifiedContainer,
    asked: PodRequest,
    state: NodeState,
    granted: Sequence[Allocation],
    chosen: frozenset[GpuUuid],
) -> frozenset[GpuUuid]:
    """For a guess, a GPU that fits every container that may be meant, if possible one of the chosen GPUs.

    The GPU cannot be changed afterwards.
    """
    shares = [each for _, each in asking.others if 0 < each.cores < CORES_PER_GPU and each.blocks]
    if not shares or asking.is_partial:
        return frozenset()
    own = asked.container(asking.container.ref.name)
    if not own.request.is_share or own.request.parts > 1:
        return frozenset()
    largest = Request(
        max(own.request.cores, *(each.cores for each in shares)),
        max(own.request.blocks, *(each.blocks for each in shares)),
    )
    view = free_for_next_container(state.snapshot, granted, role=own.role, index=own.index)
    for wanted in (GpuFilter(uuids=chosen), asked.preferences.gpus) if chosen else (asked.preferences.gpus,):
        with contextlib.suppress(CapacityError):
            found = place(largest, view, wanted=wanted, cordoned=state.cordoned - chosen)
            return frozenset(share.uuid for share in found.shares)
    return frozenset()


def plan(
    asked: PodRequest,
    state: NodeState,
    *,
    granted: Sequence[Allocation] = (),
    scheduled: ScheduledGpus = {},  # noqa: B006 - read only
    prefer: Collection[GpuUuid] = (),
) -> PodPlan:
    """`state` is without the pod; `scheduled` by container name; `prefer` counts only without `scheduled`."""
    held = frozenset(uuid for each in granted for uuid in each.uuids)
    state = replace(state, cordoned=state.cordoned - held)
    chosen = frozenset[GpuUuid]().union(*scheduled.values())
    choices = _as_scheduled(asked, state, granted, scheduled)
    attempts = [choices, {}] if choices else [choices]
    for attempt in attempts:
        fixed = [*granted, *(_allocation(asked, name, choice) for name, choice in attempt.items())]
        try:
            found = place_pod(asked, state, prefer=chosen or prefer, fixed=fixed)
        except CapacityError as error:
            refusal = error
        else:
            # What the pod holds counts too if it is not asked for now (when one container is placed alone).
            known = {each.name for each in asked.containers}
            others = (each for each in fixed if each.owner.name not in known)
            return PodPlan((*found.allocations, *others), attempt, found)
    raise _name_scheduled(refusal, chosen, state) from None


def _as_scheduled(
    asked: PodRequest, state: NodeState, granted: Sequence[Allocation], scheduled: ScheduledGpus
) -> dict[str, Choice]:
    """By container name: what a scheduler chose and is still free, in kubelet's order."""
    kept = list(granted)
    have = {each.owner.name for each in granted}
    found: dict[str, Choice] = {}
    for container in asked.containers:
        gpus = scheduled.get(container.name)
        if gpus and container.name not in have and (choice := _only_on(gpus, asked, state, container, kept)):
            found[container.name] = choice
            kept.append(_allocation(asked, container.name, choice))
    return found


def _only_on(
    gpus: frozenset[GpuUuid],
    asked: PodRequest,
    state: NodeState,
    container: ContainerRequest,
    kept: Sequence[Allocation],
) -> Choice | None:
    """The pod's own filter was obeyed when its scheduler chose; what its owner writes afterwards moves nothing."""
    view = free_for_next_container(state.snapshot, kept, role=container.role, index=container.index)
    policy, cordoned = asked.preferences.gpu or GpuPolicy.BINPACK, state.cordoned - gpus
    try:
        return place(container.request, view, policy=policy, wanted=GpuFilter(uuids=gpus), cordoned=cordoned)
    except CapacityError:
        return None


def _allocation(asked: PodRequest, name: str, choice: Choice) -> Allocation:
    container = asked.container(name)
    return Allocation(ContainerRef(asked.pod, name), container.role, container.request, choice.shares, container.index)


def _name_scheduled(error: CapacityError, chosen: frozenset[GpuUuid], state: NodeState) -> CapacityError:
    minors = sorted(view.gpu.minor for view in state.snapshot.gpus if view.gpu.uuid in chosen)
    if not minors:
        return error
    return CapacityError(f"{error.message} ({gpus_text(minors)} had been chosen by its scheduler)")
