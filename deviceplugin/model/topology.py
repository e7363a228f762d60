"""The distances between the GPUs of a node: the link of each pair, and the tree of common ancestors.

In: one `Link` for each pair, by minor number. Out: distances for the link evaluator, and a tree for the fragment
evaluator and the pictures. The levels are those of nvmlGpuTopologyLevel_t and `nvidia-smi topo -m`. NVLink is the
closest, because its traffic never uses PCIe.
"""

import enum
from collections.abc import Iterator, Mapping
from functools import cached_property

import msgspec
from msgspec.structs import force_setattr


class Level(enum.IntEnum):
    """The nearest common ancestor of two GPUs; the value is the distance that evaluators add."""

    NVLINK = 5
    INTERNAL = 8  # two GPUs on one board
    PIX = 10  # one PCIe switch (NVML: SINGLE)
    PXB = 20  # several PCIe switches (NVML: MULTIPLE)
    PHB = 30  # a PCIe host bridge (NVML: HOSTBRIDGE)
    NODE = 40  # one NUMA node, several host bridges (older drivers: SOC, NVML: NODE or CPU)
    SYS = 50  # the interconnect between sockets (NVML: SYSTEM)


UNKNOWN_DISTANCE = 60  # unknown level: farther than every known one


class Link(msgspec.Struct, frozen=True):
    """The connection of one pair: the PCIe level (None: unknown) and the number of active NVLinks."""

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


class TopologyNode(msgspec.Struct, frozen=True):
    """A leaf (one minor, no children) or a common ancestor; `level` is None at the root if nothing joins all."""

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


class Topology(msgspec.Struct, frozen=True, dict=True):
    """All pairs by minor number. `links` has each pair once, in either order; a missing pair has no common level.

    Pairs are stored with the lower minor first, so that equal topologies compare equal.
    """

    minors: tuple[int, ...]
    links: Mapping[tuple[int, int], Link] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        links = {(min(pair), max(pair)): link for pair, link in self.links.items()}
        force_setattr(self, "links", links)

    def link(self, a: int, b: int) -> Link:
        return self.links.get((a, b) if a < b else (b, a), NO_LINK)

    def distance(self, a: int, b: int) -> int:
        return 0 if a == b else self.link(a, b).distance

    @cached_property
    def tree(self) -> TopologyNode:
        """Built from the nearest level outwards: two branches join at the level of their nearest pair."""
        return _grow(self.minors, self.links)


def _grow(minors: tuple[int, ...], links: Mapping[tuple[int, int], Link]) -> TopologyNode:
    """As Kruskal: take the pairs from the nearest level outwards and join their branches."""
    branch = {minor: TopologyNode(level=None, minors=(minor,)) for minor in sorted(minors)}
    for level in Level:
        touching = [pair for pair, link in links.items() if link.nearest is level and branch.keys() >= set(pair)]
        for group in _groups(branch, touching):
            below = tuple(sorted(minor for child in group for minor in child.minors))
            branch.update(dict.fromkeys(below, TopologyNode(level, below, tuple(group))))
    tops = {node.minors: node for node in branch.values()}
    if len(tops) == 1 and (only := next(iter(tops.values()))).children:
        return only
    return TopologyNode(level=None, minors=tuple(branch), children=tuple(tops.values()))


def _groups(branch: Mapping[int, TopologyNode], pairs: list[tuple[int, int]]) -> list[list[TopologyNode]]:
    """Branches that these pairs join, directly or indirectly; a branch is named by its lowest minor."""
    group = {branch[minor].minors[0]: {branch[minor].minors[0]} for pair in pairs for minor in pair}
    for a, b in pairs:
        one, other = group[branch[a].minors[0]], group[branch[b].minors[0]]
        if one is not other:
            one |= other
            group.update(dict.fromkeys(other, one))
    distinct = {min(members): members for members in group.values() if len(members) > 1}
    return [[branch[minor] for minor in sorted(members)] for members in distinct.values()]
