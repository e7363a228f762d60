"""Chooses the GPUs for one container.

In: a request, a snapshot of the node, the policy, and restrictions: `prefer` names GPUs that are tried first on their
own (the scheduler's choice, the pod's other containers); the filter and the cordon are hard. Out: a choice that
accounts for every GPU of the snapshot, or a CapacityError. Not here: who holds what (`snapshot`),
and whole pods (`pod`). The same arguments give the same choice, in every process.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from deviceplugin.errors import CapacityError
from deviceplugin.model.allocation import GpuShare
from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.preferences import ANY_GPU, GpuFilter, GpuPolicy
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.placement.candidates import Candidates, Restrictions, Selection, Survey, survey
from deviceplugin.placement.describe import no_room, rejection_text
from deviceplugin.placement.fit import demand_of
from deviceplugin.placement.link import link
from deviceplugin.placement.one_gpu import fragment, share, spread
from deviceplugin.placement.snapshot import GpuView, Snapshot

Tiers = Iterable[Collection[GpuUuid]]


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A GPU that was not chosen, and a phrase that says why."""

    gpu: Gpu
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
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
