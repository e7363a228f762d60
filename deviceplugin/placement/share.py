"""Parts of one GPU or of several: which GPUs, by policy.

Binpack takes the fullest that still fit, so that the emptier ones stay whole for as long as possible; order: free
cores, free blocks, processes, minor number, each ascending. Spread takes the emptiest: the first two descending. Link
takes, of a share over several GPUs, the closest ones (`close`), and for one GPU what binpack takes.
"""

from collections.abc import Callable

from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.model.units import format_blocks
from deviceplugin.placement.candidates import Candidates
from deviceplugin.placement.describe import gpus_text
from deviceplugin.placement.linked_share import close
from deviceplugin.placement.selection import Selection, first_difference
from deviceplugin.placement.snapshot import GpuView

_Key = Callable[[GpuView], tuple[int, int, int, int]]


def share(candidates: Candidates, policy: GpuPolicy = GpuPolicy.BINPACK) -> Selection | None:
    count = candidates.request.gpus
    if len(candidates.views) < count:
        return None
    spread = policy is GpuPolicy.SPREAD
    key = _emptiest if spread else _fullest
    ordered = sorted(candidates.views, key=key)
    if policy is GpuPolicy.LINK and count > 1:
        return close(candidates, ordered)
    chosen = tuple(sorted(ordered[:count], key=lambda view: view.gpu.minor))
    last = ordered[count - 1]
    return Selection(
        chosen=chosen,
        reason=_reason(chosen, len(ordered), spread),
        against={view.gpu.uuid: _behind(view, last, key, spread) for view in ordered[count:]},
    )


def _fullest(view: GpuView) -> tuple[int, int, int, int]:
    return (view.free_cores, view.free_blocks, view.processes, view.gpu.minor)


def _emptiest(view: GpuView) -> tuple[int, int, int, int]:
    return (-view.free_cores, -view.free_blocks, view.processes, view.gpu.minor)


def _reason(chosen: tuple[GpuView, ...], count: int, spread: bool) -> str:
    superlative = "emptiest" if spread else "fullest"
    if len(chosen) > 1:
        name = gpus_text(view.gpu.minor for view in chosen)
        if count == len(chosen):
            return f"{name}: no other GPU fits"
        return f"{name}: the {superlative} {len(chosen)} of {count} GPUs that fit"
    (view,) = chosen
    free = f"{view.free_cores} cores and {format_blocks(view.free_blocks)} free"
    if count == 1:
        return f"GPU {view.gpu.minor} is the only one that fits, with {free}"
    return f"GPU {view.gpu.minor} is the {superlative} of {count} GPUs that fit, with {free}"


def _behind(view: GpuView, chosen: GpuView, key: _Key, spread: bool) -> str:
    name = f"GPU {chosen.gpu.minor}"
    match first_difference(key(view), key(chosen)):
        case 0:
            how = "emptier" if spread else "fuller"
            return f"fits, but {name} is {how}: {chosen.free_cores} cores free against {view.free_cores}"
        case 1:
            how = "more" if spread else "less"
            here, there = format_blocks(view.free_blocks), format_blocks(chosen.free_blocks)
            return f"fits, but {name} has as many cores and {how} memory free: {there} against {here}"
        case 2:
            return f"fits, but {name} is as full and runs fewer processes: {chosen.processes} against {view.processes}"
        case _:
            return f"fits as well as {name}, which has the lower minor number"
