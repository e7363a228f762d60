"""Which GPUs for a share, for one whole GPU, and for whole GPUs that are spread: all that is chosen one GPU at a time.

A share: binpack takes the fullest that still fit, so that the emptier ones stay whole for as long as possible; order:
free cores, free blocks, processes, minor number, each ascending. Spread takes the emptiest: the first two descending.
Link takes, of a share over several GPUs, the set with the smallest total distance, and for one GPU what binpack takes.
Equally close sets are ordered as single GPUs are. Unlike whole GPUs (`link`) nothing is asked of the branch around: a
GPU in use leaves no hole in it. The search has a fixed allowance of work; where that runs out, the answer is the best
set found, no farther than the greedy one.

One whole GPU comes from the least free part of the tree, so that large free parts stay large: from the root down into
the branch with the fewest free GPUs, until it is a GPU. Order of branches: free GPUs, memory, processes, lowest minor
number, each ascending.

Whole GPUs that are spread come one after the other from the emptiest parts of the tree, so that each has most room
around it: from the root down into the branch with the most free GPUs left, those taken before not counted, for as long
as there are branches. Order: free GPUs descending; then those taken before, processes and the lowest minor number,
ascending.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

import msgspec

from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.model.topology import TopologyNode
from deviceplugin.model.units import memory_text
from deviceplugin.placement.candidates import Candidates, Selection, first_difference
from deviceplugin.placement.describe import gpus_text, level_text
from deviceplugin.placement.link import Search, greedy
from deviceplugin.placement.snapshot import GpuView
from deviceplugin.structs import replace

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
        reason=_share_reason(chosen, ordered, spread),
        against=lambda: {view.gpu.uuid: _behind(view, last, key, spread) for view in ordered[count:]},
    )


_fullest: _Key = attrgetter("free_cores", "free_blocks", "processes", "gpu.minor")


def _emptiest(view: GpuView) -> tuple[int, int, int, int]:
    return (-view.free_cores, -view.free_blocks, view.processes, view.gpu.minor)


def _share_reason(chosen: tuple[GpuView, ...], ordered: Sequence[GpuView], spread: bool) -> str:
    count, superlative = len(ordered), "emptiest" if spread else "fullest"
    if len(chosen) > 1:
        name = gpus_text(view.gpu.minor for view in chosen)
        if count == len(chosen):
            return f"{name}: no other GPU fits"
        return f"{name}: the {superlative} {len(chosen)} of {count} GPUs that fit"
    (view,) = chosen
    free = f"{view.free_cores} cores and {memory_text(view.free_blocks)} free"
    if count == 1:
        return f"GPU {view.gpu.minor} is the only one that fits, with {free}"
    if _fullest(ordered[-1])[:-1] == _fullest(view)[:-1]:  # the last in order is like the first, so all are
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
            here, there = memory_text(view.free_blocks), memory_text(chosen.free_blocks)
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
    # One number for both keys: the distance, and below it the places in the order that is preferred.
    width = (len(pairs) ** 2).bit_length()  # above any sum of places
    weighed = [[distance << width for distance in row] for row in pairs]
    below = (_distance(pairs, seed) << width) + sum(seed)
    search = Search(weighed, range(len(pairs)), size, below=below, effort=_ALLOWANCE)
    return search.run() or seed


def _distance(pairs: Sequence[Sequence[int]], members: Sequence[int]) -> int:
    return sum(pairs[a][b] for at, a in enumerate(members) for b in members[at + 1 :])


def spread(candidates: Candidates) -> Selection:
    left, taken = candidates, set[int]()
    for _ in range(candidates.request.gpus):
        branch = _branch(candidates.topology.tree, left)
        while not branch.node.is_leaf:
            branch = min(_children(branch, left), key=partial(_room_around, taken))
        taken.update(branch.node.minors)
        others_left = tuple(view for view in left.views if view.gpu.minor not in taken)
        left = replace(left, views=others_left, free=left.free - taken)
    chosen = tuple(view for view in candidates.views if view.gpu.minor in taken)
    name = gpus_text(taken)
    if not left.views:
        return Selection(chosen, f"{name}: no other whole GPU fits", dict)
    reason = f"{name}: where the most GPUs around are free, of {len(candidates.views)} that fit"
    others = [view.gpu.uuid for view in left.views]
    behind = f"fits, but more GPUs are free around {name}, or as many with fewer processes or a lower minor number"
    return Selection(chosen, reason, lambda: dict.fromkeys(others, behind))


class _Branch(msgspec.Struct, frozen=True):
    """A node of the tree with the candidates below it; `free` counts whole GPUs, candidates or not."""

    node: TopologyNode
    views: tuple[GpuView, ...]
    free: int

    @property
    def key(self) -> tuple[int, int, int, int]:
        memory = sum(view.free_blocks for view in self.views)
        processes = sum(view.processes for view in self.views)
        return (self.free, memory, processes, self.views[0].gpu.minor)

    @property
    def name(self) -> str:
        return gpus_text(self.node.minors)


def _room_around(taken: set[int], branch: _Branch) -> tuple[int, int, int, int]:
    """The least has most room; of the GPUs taken before, those in the branch count."""
    _, _, processes, minor = branch.key
    return (-branch.free, len(taken.intersection(branch.node.minors)), processes, minor)


def fragment(candidates: Candidates) -> Selection:
    around = branch = _branch(candidates.topology.tree, candidates)
    behind: list[tuple[_Branch, list[_Branch]]] = []
    while not branch.node.is_leaf:
        around = branch
        branch, *others = _children(branch, candidates)
        behind.append((branch, others))

    def against() -> dict[GpuUuid, str]:
        return {
            view.gpu.uuid: _phrase(best, other) for best, others in behind for other in others for view in other.views
        }

    return Selection(branch.views, _whole_reason(candidates, around, branch.name), against)


def _branch(node: TopologyNode, candidates: Candidates) -> _Branch:
    below = set(node.minors)
    views = tuple(view for view in candidates.views if view.gpu.minor in below)
    return _Branch(node, views, len(candidates.free & below))


def _children(branch: _Branch, candidates: Candidates) -> list[_Branch]:
    children = (_branch(node, candidates) for node in branch.node.children)
    return sorted((child for child in children if child.views), key=lambda child: child.key)


def _whole_reason(candidates: Candidates, around: _Branch, name: str) -> str:
    if len(candidates.views) == 1:
        return f"{name}: no other whole GPU fits"
    where = f"{around.free} of {len(around.node.minors)} under {level_text(around.node.level)}"
    return f"{name}: in the branch with the fewest free GPUs ({where}), of {len(candidates.views)} that fit"


def _phrase(best: _Branch, other: _Branch) -> str:
    match first_difference(other.key, best.key):
        case 0:
            return (
                f"fits, but its branch ({other.name}) has {other.free} free GPUs against {best.free} among {best.name}"
            )
        case 1:
            here, there = memory_text(other.key[1]), memory_text(best.key[1])
            return f"fits, but {best.name} has less memory: {there} against {here}"
        case 2:
            return f"fits, but {best.name} runs fewer processes: {best.key[2]} against {other.key[2]}"
        case _:
            return f"fits as well as {best.name}, which has the lower minor number"
