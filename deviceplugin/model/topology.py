"""How far apart the GPUs of a node are: the link between each pair, and the tree of common ancestors.

In: one `Link` for each pair, by minor number. Out: distances for the link evaluator and a tree for the fragment
evaluator and the pictures. The levels are those of nvmlGpuTopologyLevel_t and of `nvidia-smi topo -m`; NVLink ranks
closest, because traffic over it never reaches PCIe.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


class Level(enum.IntEnum):
    """The nearest common ancestor of two GPUs; the value is the distance that evaluators add up."""

    NVLINK = 5
    INTERNAL = 8  # two GPUs on one board
    PIX = 10  # one PCIe switch (NVML: SINGLE)
    PXB = 20  # several PCIe switches (NVML: MULTIPLE)
    PHB = 30  # a PCIe host bridge (NVML: HOSTBRIDGE)
    NODE = 40  # one NUMA node, several host bridges (older drivers: SOC, NVML: NODE or CPU)
    SYS = 50  # the interconnect between sockets (NVML: SYSTEM)


UNKNOWN_DISTANCE = 60  # no level is known: farther than any that is


@dataclass(frozen=True, slots=True)
class Link:
    """The connection of one pair: the PCIe level (None where unknown) and how many NVLinks are up between them."""

    level: Level | None
    nvlinks: int = 0

    @property
    def nearest(self) -> Level | None:
        return Level.NVLINK if self.nvlinks else self.level

    @property
    def distance(self) -> int:
        nearest = self.nearest
        return UNKNOWN_DISTANCE if nearest is None else int(nearest)


NO_LINK = Link(level=None)


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """A leaf (one minor, no children) or a common ancestor; `level` is None at the root where nothing joins all."""

    level: Level | None
    minors: tuple[int, ...]
    children: tuple["TopologyNode", ...] = ()

    @property
    def is_leaf(self) -> bool:
        return not self.children

    def walk(self) -> Iterator["TopologyNode"]:
        """This node and all below it, parents before children."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Topology:
    """All pairs by minor number. `links` needs each pair once, in either order; a missing pair shares no level."""

    minors: tuple[int, ...]
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)

    def link(self, a: int, b: int) -> Link:
        found = self.links.get((a, b)) or self.links.get((b, a))
        return found or NO_LINK

    def distance(self, a: int, b: int) -> int:
        return 0 if a == b else self.link(a, b).distance

    def tree(self) -> TopologyNode:
        """Joins from the nearest level outwards: two branches meet where any pair across them does."""
        branches = [TopologyNode(level=None, minors=(minor,)) for minor in sorted(self.minors)]
        for level in Level:
            branches = _join_at(self, level, branches)
        if len(branches) == 1 and branches[0].children:
            return branches[0]
        return TopologyNode(level=None, minors=tuple(sorted(self.minors)), children=tuple(branches))


def _join_at(topology: Topology, level: Level, branches: list[TopologyNode]) -> list[TopologyNode]:
    groups: list[list[TopologyNode]] = []
    for branch in branches:
        touching = [group for group in groups if any(_meet(topology, level, branch, other) for other in group)]
        for group in touching:
            groups.remove(group)
        groups.append([*(node for group in touching for node in group), branch])
    joined = (group[0] if len(group) == 1 else _ancestor(level, group) for group in groups)
    return sorted(joined, key=lambda node: node.minors)


def _meet(topology: Topology, level: Level, one: TopologyNode, other: TopologyNode) -> bool:
    nearest = (topology.link(a, b).nearest for a in one.minors for b in other.minors)
    return any(found is not None and found <= level for found in nearest)


def _ancestor(level: Level, group: list[TopologyNode]) -> TopologyNode:
    children = tuple(sorted(group, key=lambda node: node.minors))
    minors = tuple(sorted(minor for child in children for minor in child.minors))
    return TopologyNode(level=level, minors=minors, children=children)
