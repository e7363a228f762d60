"""One whole GPU from the least free part of the tree, so that large free parts stay large.

From the root it goes down into the branch with the fewest free GPUs, until it comes to a GPU. Order of branches: free
GPUs, memory, processes, lowest minor number, each ascending.
"""

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

    return Selection(branch.views, _reason(candidates, around, branch.name), against)


def _branch(node: TopologyNode, candidates: Candidates) -> _Branch:
    below = set(node.minors)
    views = tuple(view for view in candidates.views if view.gpu.minor in below)
    return _Branch(node, views, len(candidates.free & below))


def _children(branch: _Branch, candidates: Candidates) -> list[_Branch]:
    children = (_branch(node, candidates) for node in branch.node.children)
    return sorted((child for child in children if child.views), key=lambda child: child.key)


def _reason(candidates: Candidates, around: _Branch, name: str) -> str:
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
            here, there = format_blocks(other.key[1]), format_blocks(best.key[1])
            return f"fits, but {best.name} has less memory: {there} against {here}"
        case 2:
            return f"fits, but {best.name} runs fewer processes: {best.key[2]} against {other.key[2]}"
        case _:
            return f"fits as well as {best.name}, which has the lower minor number"
