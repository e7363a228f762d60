"""Links, distances, and the tree of common ancestors for all the ways in which GPUs can be joined."""

import pickle
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.topology import NO_LINK, UNKNOWN_DISTANCE, Level, Link, Topology, TopologyNode
from deviceplugin.structs import replace

LINKS = [*(Link(level) for level in Level), Link(None), Link(Level.SYS, nvlinks=2), Link(None, nvlinks=12)]


def drawn(node: TopologyNode) -> str:
    """`PHB(PIX(0 1) 2)`; a node without a level is `-`."""
    if node.is_leaf:
        return " ".join(map(str, node.minors))
    level = "-" if node.level is None else node.level.name
    return f"{level}({' '.join(drawn(child) for child in node.children)})"


def tree(links: dict[tuple[int, int], Link | Level], *minors: int) -> str:
    full = {pair: link if isinstance(link, Link) else Link(link) for pair, link in links.items()}
    return drawn(Topology(minors, full).tree)


def all_pairs(level: Level, *minors: int) -> dict[tuple[int, int], Link | Level]:
    return dict.fromkeys(combinations(minors, 2), level)


def test_the_tree_joins_the_nearest_first() -> None:
    """The properties below compare its branches; here are its levels too."""
    pix_square, bridges = all_pairs(Level.PIX, 0, 1, 2, 3), [(0, 2), (1, 3)]
    t6 = {
        **all_pairs(Level.NODE, *range(6)),
        **all_pairs(Level.PHB, *range(4)),
        **dict.fromkeys([(0, 1), (2, 3), (4, 5)], Level.PIX),
    }
    grown = {
        "one GPU: a root and its leaf": tree({}, 0),
        "two that share no level": tree({}, 0, 1),
        "two, with gaps, in any order": tree({(7, 3): Level.PIX}, 7, 3),
        "the worked cases' T6": tree(t6, *range(6)),
        "two islands": tree(dict.fromkeys(bridges, Level.PIX), 0, 1, 2, 3),
        "a board of two": tree({**all_pairs(Level.PIX, 0, 1, 2), (0, 1): Level.INTERNAL}, 0, 1, 2),
        "NVLink is nearest": tree({**pix_square, **dict.fromkeys(bridges, Link(Level.PIX, 4))}, 0, 1, 2, 3),
        "a chain is one branch": tree(dict.fromkeys([(0, 1), (1, 2)], Link(None, 1)), 0, 1, 2),
    }
    assert grown == {
        "one GPU: a root and its leaf": "-(0)",
        "two that share no level": "-(0 1)",
        "two, with gaps, in any order": "PIX(3 7)",
        "the worked cases' T6": "NODE(PHB(PIX(0 1) PIX(2 3)) PIX(4 5))",
        "two islands": "-(PIX(0 2) PIX(1 3))",
        "a board of two": "PIX(INTERNAL(0 1) 2)",
        "NVLink is nearest": "PIX(NVLINK(0 2) NVLINK(1 3))",
        "a chain is one branch": "NVLINK(0 1 2)",
    }


def test_a_node_without_gpus_has_a_tree_without_leaves() -> None:
    root = Topology(()).tree
    assert (root.minors, root.children) == ((), ())


def test_a_link_to_a_gpu_that_is_not_here_joins_nothing() -> None:
    assert tree({(0, 9): Level.PIX, (9, 1): Level.PIX}, 0, 1) == "-(0 1)"


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    minors = tuple(draw(st.sets(st.integers(0, 40), min_size=1, max_size=9)))
    pairs = draw(st.sets(st.sampled_from(list(combinations(minors, 2))))) if len(minors) > 1 else set()
    return Topology(minors, {pair: draw(st.sampled_from(LINKS)) for pair in pairs})


def joined(topology: Topology, minor: int, level: Level) -> frozenset[int]:
    """All GPUs that are reached from here over links of that level or nearer."""
    reached, frontier = {minor}, [minor]
    while frontier:
        here = frontier.pop()
        for there in set(topology.minors) - reached:
            nearest = topology.link(here, there).nearest
            if nearest is not None and nearest <= level:
                reached.add(there)
                frontier.append(there)
    return frozenset(reached)


@given(topology=topologies())
def test_a_branch_is_whatever_is_reached_without_going_farther(topology: Topology) -> None:
    by_reach = {joined(topology, minor, level) for minor in topology.minors for level in Level}
    branches = {frozenset(node.minors) for node in topology.tree.walk() if node.level is not None}
    assert branches == {group for group in by_reach if len(group) > 1}


@given(topology=topologies())
def test_the_tree_is_a_tree(topology: Topology) -> None:
    root = topology.tree
    leaves = [node for node in root.walk() if node.is_leaf]
    assert sorted(leaf.minors for leaf in leaves) == sorted((minor,) for minor in topology.minors)
    for node in root.walk():
        assert list(node.minors) == sorted(node.minors)
        assert node.is_leaf or sorted(minor for child in node.children for minor in child.minors) == list(node.minors)
        assert list(node.children) == sorted(node.children, key=lambda child: child.minors)
        levels = [child.level for child in node.children if child.level is not None]
        assert node.level is None or all(level < node.level for level in levels)
        assert node is root or node.is_leaf or len(node.children) > 1


@given(topology=topologies())
def test_pairs_may_be_given_in_either_order(topology: Topology) -> None:
    turned = Topology(topology.minors, {(b, a): link for (a, b), link in topology.links.items()})
    assert turned == topology
    assert turned.tree == topology.tree
    for a, b in combinations(topology.minors, 2):
        assert turned.link(a, b) == topology.link(b, a)
        assert turned.distance(a, b) == topology.distance(b, a)


def test_a_topology_is_copied_whole() -> None:
    topology = Topology((0, 1), {(1, 0): Link(Level.PIX)})
    for copy in (pickle.loads(pickle.dumps(topology)), replace(topology)):
        assert copy == topology
        assert copy.tree == topology.tree
    assert replace(topology, minors=(0, 1, 2)).tree.minors == (0, 1, 2)


def test_the_tree_of_64_gpus_is_grown_once() -> None:
    pairs = {pair: LINKS[sum(pair) % len(LINKS)] for pair in combinations(range(64), 2)}
    topology = Topology(tuple(range(64)), pairs)
    assert topology.tree is topology.tree
    assert topology.tree.minors == tuple(range(64))


def test_nvlink_is_nearer_than_any_level_and_none_is_farther_than_all() -> None:
    expected = {
        Link(Level.PIX): (Level.PIX, 10),
        Link(Level.SYS): (Level.SYS, 50),
        Link(Level.SYS, nvlinks=1): (Level.NVLINK, 5),
        Link(None, nvlinks=18): (Level.NVLINK, 5),
        NO_LINK: (None, UNKNOWN_DISTANCE),
    }
    assert {link: (link.nearest, link.distance) for link in expected} == expected


def test_levels_rank_as_nvml_ranks_them() -> None:
    assert list(Level) == sorted(Level)
    assert max(Level) < UNKNOWN_DISTANCE
    assert Topology((0,)).distance(0, 0) == 0
