"""Whole GPUs from the emptiest parts of the tree, one after the other, so that each has most room around it.

For each GPU it goes down from the root into the branch with the most free GPUs left, those taken before not counted,
for as long as there are branches. Order of branches: free GPUs descending; then those taken before, processes and the
lowest minor number, ascending.
"""

from dataclasses import dataclass, field

from deviceplugin.model.topology import TopologyNode
from deviceplugin.placement.candidates import Candidates, Selection
from deviceplugin.placement.describe import gpus_text
from deviceplugin.placement.snapshot import GpuView


@dataclass(slots=True)
class _Left:
    """What can be taken yet: candidates by minor, and the minors of all free GPUs."""

    views: dict[int, GpuView]
    free: set[int]
    taken: set[int] = field(default_factory=set)

    def takes(self, minor: int) -> GpuView:
        self.free.discard(minor)
        self.taken.add(minor)
        return self.views.pop(minor)

    def emptiest(self, node: TopologyNode) -> TopologyNode:
        """Of the branches below that hold a candidate."""
        return min((child for child in node.children if self._candidates(child)), key=self._key)

    def _candidates(self, node: TopologyNode) -> list[GpuView]:
        return [self.views[minor] for minor in node.minors if minor in self.views]

    def _key(self, node: TopologyNode) -> tuple[int, int, int, int]:
        views = self._candidates(node)
        free = sum(minor in self.free for minor in node.minors)
        taken = len(self.taken.intersection(node.minors))
        return (-free, taken, sum(view.processes for view in views), views[0].gpu.minor)


def spread(candidates: Candidates) -> Selection:
    left = _Left({view.gpu.minor: view for view in candidates.views}, set(candidates.free))
    taken = [_next(candidates, left) for _ in range(candidates.request.gpus)]
    chosen = tuple(sorted(taken, key=lambda view: view.gpu.minor))
    name = gpus_text(view.gpu.minor for view in chosen)
    if not left.views:
        return Selection(chosen, f"{name}: no other whole GPU fits", dict)
    reason = f"{name}: where the most GPUs around are free, of {len(candidates.views)} that fit"
    others = [view.gpu.uuid for view in left.views.values()]
    behind = f"fits, but more GPUs are free around {name}, or as many with fewer processes or a lower minor number"
    return Selection(chosen, reason, lambda: dict.fromkeys(others, behind))


def _next(candidates: Candidates, left: _Left) -> GpuView:
    node = candidates.topology.tree
    while not node.is_leaf:
        node = left.emptiest(node)
    return left.takes(node.minors[0])
