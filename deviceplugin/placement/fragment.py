"""Whole GPUs from the least free part of the tree, so that large free parts stay large.

From the root it goes down into the branch with the fewest free GPUs that still holds enough, as long as there is one,
and takes the GPUs it needs there. Order of branches and of GPUs: free GPUs, memory, processes, lowest minor number,
each ascending.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.topology import TopologyNode
from deviceplugin.model.units import format_blocks
from deviceplugin.placement.candidates import Candidates, Selection, first_difference
from deviceplugin.placement.describe import gpus_text, level_text
from deviceplugin.placement.snapshot import GpuView


@dataclass(frozen=True, slots=True)
class _Branch:
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


def fragment(candidates: Candidates, *, count: int = 1) -> Selection | None:
    """`count` is above one only where GPUs need no links among them."""
    if len(candidates.views) < count:
        return None
    branch = _branch(candidates.topology.tree(), candidates)
    against: dict[GpuUuid, str] = {}
    while ranked := _children(branch, candidates):
        fitting = [child for child in ranked if len(child.views) >= count]
        if not fitting:
            break
        best, around = fitting[0], branch
        against |= _behind(best, [child for child in ranked if child is not best], count)
        branch = best
        if branch.node.is_leaf:
            return _selection(candidates, around, branch.views, against)
    views = sorted(branch.views, key=_gpu_key)
    against |= {view.gpu.uuid: "fits, but enough GPUs of its branch come before it" for view in views[count:]}
    return _selection(candidates, branch, tuple(views[:count]), against)


def _gpu_key(view: GpuView) -> tuple[int, int, int]:
    return (view.free_blocks, view.processes, view.gpu.minor)


def _branch(node: TopologyNode, candidates: Candidates) -> _Branch:
    below = set(node.minors)
    views = tuple(view for view in candidates.views if view.gpu.minor in below)
    return _Branch(node, views, len(candidates.free & below))


def _children(branch: _Branch, candidates: Candidates) -> list[_Branch]:
    children = (_branch(node, candidates) for node in branch.node.children)
    return sorted((child for child in children if child.views), key=lambda child: child.key)


def _selection(
    candidates: Candidates, branch: _Branch, chosen: tuple[GpuView, ...], against: Mapping[GpuUuid, str]
) -> Selection:
    chosen = tuple(sorted(chosen, key=lambda view: view.gpu.minor))
    name = gpus_text(view.gpu.minor for view in chosen)
    if len(candidates.views) == len(chosen):
        reason = f"{name}: no other whole GPU fits"
    else:
        where = f"{branch.free} of {len(branch.node.minors)} under {level_text(branch.node.level)}"
        reason = f"{name}: in the branch with the fewest free GPUs ({where}), of {len(candidates.views)} that fit"
    return Selection(chosen, reason, against)


def _behind(best: _Branch, others: list[_Branch], count: int) -> dict[GpuUuid, str]:
    return {view.gpu.uuid: _phrase(best, other, count) for other in others for view in other.views}


def _phrase(best: _Branch, other: _Branch, count: int) -> str:
    if len(other.views) < count:
        return f"fits, but its branch ({other.name}) holds only {len(other.views)} of {count}"
    match first_difference(other.key, best.key):
        case 0:
            return (
                f"fits, but its branch ({other.name}) has {other.free} free GPUs against {best.free} among {best.name}"
            )
        case 1:
            here, there = format_blocks(other.key[1]), format_blocks(best.key[1])
            return f"fits, but {best.name} has less memory: {there} against {here}"
        case 2:
            return f"fits, but {best.name} runs fewer processes: {best.key[2]} against {other.key[2]}"
        case _:
            return f"fits as well as {best.name}, which has the lower minor number"
