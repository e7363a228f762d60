"""Chooses the GPUs for one container.

In: a request, a snapshot of the node, and two restrictions: `prefer` names GPUs that are tried first on their own (the
scheduler's choice, the pod's other containers), `only` GPUs beside which nothing may be used. Out: a choice that
accounts for every GPU of the snapshot, or a CapacityError. Not here: who holds what (`occupancy` makes the snapshot).
The same arguments give the same choice, in every process.
"""

from collections.abc import Collection

from deviceplugin.errors import CapacityError
from deviceplugin.model.allocation import GpuShare
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.candidates import Candidates, Survey, survey
from deviceplugin.placement.choice import Choice, PassedOver
from deviceplugin.placement.describe import no_room, obstacle_text
from deviceplugin.placement.fragment import fragment
from deviceplugin.placement.link import link
from deviceplugin.placement.selection import Selection
from deviceplugin.placement.share import share
from deviceplugin.placement.snapshot import GpuView, Snapshot


def place(
    request: Request,
    snapshot: Snapshot,
    *,
    prefer: Collection[GpuUuid] = (),
    only: Collection[GpuUuid] | None = None,
) -> Choice:
    found = survey(request, snapshot, only)
    among_preferred = _evaluate(found.candidates.among(prefer)) if prefer else None
    selection = among_preferred or _evaluate(found.candidates)
    if selection is None:
        raise CapacityError(no_room(request, found))
    return Choice(
        evaluator=request.kind,
        gpus=tuple(view.gpu for view in selection.chosen),
        shares=tuple(_part(request, view) for view in selection.chosen),
        reason=selection.reason if among_preferred is None else f"{selection.reason}, among the preferred GPUs",
        passed_over=_passed_over(found, selection),
    )


def _evaluate(candidates: Candidates) -> Selection | None:
    match candidates.request.kind:
        case RequestKind.SHARE:
            return share(candidates)
        case RequestKind.WHOLE:
            return fragment(candidates)
        case RequestKind.LINKED:
            return link(candidates)


def _part(request: Request, view: GpuView) -> GpuShare:
    if request.kind is RequestKind.SHARE:
        return GpuShare(view.gpu.uuid, request.cores, request.blocks)
    return GpuShare(view.gpu.uuid, CORES_PER_GPU, view.gpu.blocks)


def _passed_over(found: Survey, selection: Selection) -> tuple[PassedOver, ...]:
    """Every GPU that was not chosen, in minor order."""
    chosen = {view.gpu.uuid for view in selection.chosen}
    reasons = {
        view.gpu.uuid: selection.against.get(view.gpu.uuid, "fits, but others are preferred")
        for view in found.candidates.views
        if view.gpu.uuid not in chosen
    }
    reasons |= {view.gpu.uuid: obstacle_text(obstacle, view) for view, obstacle in found.obstacles}
    views = [*found.candidates.views, *(view for view, _ in found.obstacles)]
    left = (view.gpu for view in views if view.gpu.uuid in reasons)
    return tuple(PassedOver(gpu, reasons[gpu.uuid]) for gpu in sorted(left, key=lambda gpu: (gpu.minor, gpu.uuid)))
