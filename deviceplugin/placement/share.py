"""Parts of one GPU or of several: which GPUs, by policy.

Binpack takes the fullest that still fit, so that the emptier ones stay whole for as long as possible; order: free
cores, free blocks, processes, minor number, each ascending. Spread takes the emptiest: the first two descending. Link
takes, of a share over several GPUs, the set with the smallest total distance, and for one GPU what binpack takes.

Equally close sets are ordered as single GPUs are. Unlike whole GPUs (`link`) nothing is asked of the branch around: a
GPU in use leaves no hole in it. The search has a fixed allowance of work; where that runs out, the answer is the best
set found, no farther than the greedy one.
"""

from collections.abc import Callable, Sequence

from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.model.units import format_blocks
from deviceplugin.placement.candidates import Candidates, Selection, first_difference
from deviceplugin.placement.describe import gpus_text
from deviceplugin.placement.snapshot import GpuView
from deviceplugin.placement.subset_search import Search, greedy

_Key = Callable[[GpuView], tuple[int, int, int, int]]


def share(candidates: Candidates, policy: GpuPolicy) -> Selection:
    count, spread = candidates.request.gpus, policy.takes_emptiest
    key = _emptiest if spread else _fullest
    ordered = sorted(candidates.views, key=key)
    if policy.takes_closest and count > 1:
        return closest_share(candidates, ordered, "emptier" if spread else "fuller")
    chosen = tuple(sorted(ordered[:count], key=lambda view: view.gpu.minor))
    last = ordered[count - 1]
    return Selection(
        chosen=chosen,
        reason=_reason(chosen, ordered, spread),
        against=lambda: {view.gpu.uuid: _behind(view, last, key, spread) for view in ordered[count:]},
    )


def _fullest(view: GpuView) -> tuple[int, int, int, int]:
    return (view.free_cores, view.free_blocks, view.processes, view.gpu.minor)


def _emptiest(view: GpuView) -> tuple[int, int, int, int]:
    return (-view.free_cores, -view.free_blocks, view.processes, view.gpu.minor)


def _reason(chosen: tuple[GpuView, ...], ordered: Sequence[GpuView], spread: bool) -> str:
    count, superlative = len(ordered), "emptiest" if spread else "fullest"
    if len(chosen) > 1:
        name = gpus_text(view.gpu.minor for view in chosen)
        if count == len(chosen):
            return f"{name}: no other GPU fits"
        return f"{name}: the {superlative} {len(chosen)} of {count} GPUs that fit"
    (view,) = chosen
    free = f"{view.free_cores} cores and {format_blocks(view.free_blocks)} free"
    if count == 1:
        return f"GPU {view.gpu.minor} is the only one that fits, with {free}"
    equal = sum(_fullest(each)[:-1] == _fullest(view)[:-1] for each in ordered)
    if equal == count:
        return f"GPU {view.gpu.minor} is the first of {count} GPUs that fit and are alike, with {free}"
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


_ALLOWANCE = 20_000  # links looked at


def closest_share(candidates: Candidates, ordered: Sequence[GpuView], preferred: str) -> Selection:
    """`ordered`: all candidates, at least as many as are asked; `preferred` says what the first ones are."""
    size = candidates.request.gpus
    minors = [view.gpu.minor for view in ordered]
    pairs = [[candidates.topology.distance(a, b) for b in minors] for a in minors]
    members = _closest(pairs, size)
    chosen = tuple(sorted((ordered[at] for at in members), key=lambda view: view.gpu.minor))
    name, distance = gpus_text(view.gpu.minor for view in chosen), _distance(pairs, members)
    if size == len(ordered):
        reason = f"{name}: no other GPU fits (total distance {distance})"
    else:
        reason = f"{name}: the closest {size} of {len(ordered)} GPUs that fit (total distance {distance})"
    others = [view.gpu.uuid for at, view in enumerate(ordered) if at not in members]
    phrase = f"fits, but {name} are closer or as close and {preferred}"
    return Selection(chosen, reason, lambda: dict.fromkeys(others, phrase))


def _closest(pairs: Sequence[Sequence[int]], size: int) -> tuple[int, ...]:
    seed = greedy(pairs, size)
    if size == len(pairs):
        return seed
    width = (len(pairs) ** 2).bit_length()  # above any sum of places
    weighed = [[distance << width for distance in row] for row in pairs]
    below = (_distance(pairs, seed) << width) + sum(seed)
    search = Search(weighed, range(len(pairs)), size, below=below, effort=_ALLOWANCE)
    return search.run() or seed


def _distance(pairs: Sequence[Sequence[int]], members: Sequence[int]) -> int:
    return sum(pairs[a][b] for at, a in enumerate(members) for b in members[at + 1 :])
