"""A part of one GPU: the fullest GPU that still fits, so that the emptier ones stay whole for as long as possible.

Order: free cores, free blocks, processes, minor number, each ascending.
"""

from deviceplugin.model.units import format_blocks
from deviceplugin.placement.candidates import Candidates
from deviceplugin.placement.selection import Selection, first_difference
from deviceplugin.placement.snapshot import GpuView


def share(candidates: Candidates) -> Selection | None:
    if not candidates.views:
        return None
    chosen, *others = sorted(candidates.views, key=_key)
    return Selection(
        chosen=(chosen,),
        reason=_reason(chosen, len(candidates.views)),
        against={view.gpu.uuid: _behind(view, chosen) for view in others},
    )


def _key(view: GpuView) -> tuple[int, int, int, int]:
    return (view.free_cores, view.free_blocks, view.processes, view.gpu.minor)


def _reason(chosen: GpuView, count: int) -> str:
    free = f"{chosen.free_cores} cores and {format_blocks(chosen.free_blocks)} free"
    if count == 1:
        return f"GPU {chosen.gpu.minor} is the only one that fits, with {free}"
    return f"GPU {chosen.gpu.minor} is the fullest of {count} GPUs that fit, with {free}"


def _behind(view: GpuView, chosen: GpuView) -> str:
    name = f"GPU {chosen.gpu.minor}"
    match first_difference(_key(view), _key(chosen)):
        case 0:
            return f"fits, but {name} is fuller: {chosen.free_cores} cores free against {view.free_cores}"
        case 1:
            here, there = format_blocks(view.free_blocks), format_blocks(chosen.free_blocks)
            return f"fits, but {name} has as many cores and less memory free: {there} against {here}"
        case 2:
            return f"fits, but {name} is as full and runs fewer processes: {chosen.processes} against {view.processes}"
        case _:
            return f"fits as well as {name}, which has the lower minor number"
