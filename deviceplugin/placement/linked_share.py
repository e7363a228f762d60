"""A share over several GPUs that shall be close to each other: the set with the smallest total distance.

Equally close sets are ordered by how full they are: the sum of the places that their GPUs have in the order that comes
in. Unlike whole GPUs (`link`) nothing is asked of the branch around: a GPU in use leaves no hole in it. The search has
a fixed allowance of work; where that runs out, the answer is the best set found, no farther than the greedy one.
"""

from collections.abc import Sequence

from deviceplugin.placement.candidates import Candidates
from deviceplugin.placement.describe import gpus_text
from deviceplugin.placement.selection import Selection
from deviceplugin.placement.snapshot import GpuView
from deviceplugin.placement.subset_search import Search, greedy

_ALLOWANCE = 20_000  # links looked at


def close(candidates: Candidates, ordered: Sequence[GpuView]) -> Selection:
    """`ordered`: all candidates, at least as many as are asked, the preferred ones first."""
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
    others = (view.gpu.uuid for at, view in enumerate(ordered) if at not in members)
    return Selection(chosen, reason, dict.fromkeys(others, f"fits, but {name} are closer or as close and fuller"))


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
