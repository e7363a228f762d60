"""Which linked GPUs a request gets: against every set there is, and on shapes that exist."""

import random
from collections.abc import Iterator
from itertools import combinations, product

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Link, Topology, TopologyNode
from deviceplugin.placement.link import greedy
from deviceplugin.placement.pod import place
from deviceplugin.placement.snapshot import GpuView, Snapshot
from sandbox.gpu_links import (
    ALL_LINKS,
    APART,
    NODE,
    NVLINK,
    PHB,
    PIX,
    SYS,
    cube_mesh,
    nvswitch,
    pcie_tree,
    t6,
    two_halves,
)
from tests.examples import examples
from tests.placement.nodes import gpu, snapshot, snapshots

SHAPES = [nvswitch, two_halves, pcie_tree, cube_mesh]


def chosen(count: int, on: Snapshot, *, blocks: int = 0) -> tuple[int, ...]:
    return tuple(card.minor for card in place(Request(count * 100, blocks), on).gpus)


def total(topology: Topology, minors: tuple[int, ...]) -> int:
    return sum(topology.distance(a, b) for a, b in combinations(minors, 2))


def usable(view: GpuView) -> bool:
    closed = view.gpu.mig_enabled or view.gpu.compute_mode is ComputeMode.PROHIBITED
    return view.capacity.is_whole and view.health.healthy and not closed


def ancestors(node: TopologyNode, minors: set[int]) -> Iterator[TopologyNode]:
    """The branches that hold all of them, the smallest first."""
    for child in node.children:
        if minors <= set(child.minors):
            yield from ancestors(child, minors)
    yield node


def rank(node: Snapshot, minors: tuple[int, ...]) -> tuple[object, ...]:
    """The order of sets, from its definition and by counting everything."""
    views = {view.gpu.minor: view for view in node.gpus}
    free = {minor for minor, view in views.items() if usable(view)}
    branches = [set(branch.minors) & free for branch in ancestors(node.topology.tree, set(minors))]
    return (
        total(node.topology, minors),
        tuple(len(branch) for branch in branches),
        total(node.topology, tuple(branches[0] - set(minors))),
        sum(views[minor].free_blocks for minor in minors),
        sum(views[minor].processes for minor in minors),
        minors,
    )


@examples(200)
@given(node=snapshots(at_least=2, at_most=8), size=st.integers(2, 6), blocks=st.sampled_from([0, 64, 65]))
def test_no_set_ranks_before_the_chosen_one(node: Snapshot, size: int, blocks: int) -> None:
    fitting = sorted(view.gpu.minor for view in node.gpus if usable(view) and view.gpu.blocks >= blocks)
    assume(len(fitting) >= size)
    best = min(combinations(fitting, size), key=lambda minors: rank(node, minors))
    assert chosen(size, node, blocks=blocks * size) == best


def test_the_total_distance_is_the_smallest_there_is_on_16_gpus() -> None:
    least, found = {}, {}
    for shape, size in product(SHAPES, (2, 5, 8, 11, 15)):
        node = snapshot(16, shape, used={3: (10, 1)} if size < 15 else None)
        free = [minor for minor in range(16) if minor != 3 or size == 15]
        least[shape, size] = min(total(node.topology, minors) for minors in combinations(free, size))
        found[shape, size] = total(node.topology, chosen(size, node))
    assert found == least


@examples(12)
@given(seed=st.integers(0, 1 << 32), values=st.lists(st.sampled_from(ALL_LINKS), min_size=2, max_size=8))
@example(seed=1, values=list(ALL_LINKS))
def test_eight_of_16_are_the_closest_whatever_the_links(seed: int, values: list[Link]) -> None:
    drawn = random.Random(seed)
    links = {pair: drawn.choice(values) for pair in combinations(range(16), 2)}
    node = snapshot(16, lambda a, b: links[a, b])
    distance = {pair: link.distance for pair, link in links.items()}
    least = min(sum(distance[pair] for pair in combinations(minors, 2)) for minors in combinations(range(16), 8))
    assert total(node.topology, chosen(8, node)) == least


def test_linked_gpus_are_close_and_break_little() -> None:
    cases = {
        "NVSwitch: all alike, the lowest minors": (snapshot(8, nvswitch), 2, (0, 1)),
        "NVSwitch: the lowest that are free": (snapshot(8, nvswitch, used={0: (1, 1)}), 4, (1, 2, 3, 4)),
        "only one half is whole": (snapshot(16, two_halves, used={1: (1, 1)}), 8, tuple(range(8, 16))),
        "two from the half that is broken": (snapshot(16, two_halves, used={1: (1, 1)}), 2, (0, 2)),
        "DGX-1: a quad in which NVLink joins every pair": (snapshot(8, cube_mesh), 4, (0, 1, 2, 3)),
        "DGX-1: the quad that is whole": (snapshot(8, cube_mesh, used={2: (1, 1)}), 4, (4, 5, 6, 7)),
        "a pair beside one that is broken": (snapshot(8, pcie_tree, used={6: (1, 1)}), 2, (4, 5)),
        "three that leave no single": (snapshot(8, pcie_tree, used={1: (1, 1)}), 3, (0, 2, 3)),
        "as close, the lowest minors": (snapshot(5, t6), 3, (0, 1, 2)),
        "the least memory": (snapshot(4, nvswitch, gpus={3: gpu(3, blocks=64)}), 2, (0, 3)),
        "the fewest processes": (snapshot(4, nvswitch, processes={0: 1}), 2, (1, 2)),
        "never ill": (snapshot(4, nvswitch, ill={0: "XID 79"}), 2, (1, 2)),
        "NVLink before PCIe": (snapshot(4, lambda a, b: NVLINK if b - a == 2 else PIX), 2, (0, 2)),
    }
    found = {name: chosen(size, node) for name, (node, size, _) in cases.items()}
    assert found == {name: expected for name, (*_, expected) in cases.items()}


PAIRS_AND_A_SINGLE = snapshot(6, lambda a, b: PIX if a // 2 == b // 2 else SYS, used={4: (1, 1)})


def test_what_is_left_over_stays_close() -> None:
    """0, 1 and 2, 3 are pairs, 5 has lost its partner: three are a pair and the single one, not a pair and a half."""
    assert chosen(3, PAIRS_AND_A_SINGLE) == (0, 1, 5)


def test_each_gpu_must_have_its_even_part_of_the_memory() -> None:
    node = snapshot(6, t6, gpus={minor: gpu(minor, blocks=64) for minor in (0, 4)})
    assert chosen(2, node, blocks=2 * 64) == (0, 1)
    assert chosen(2, node, blocks=2 * 64 + 1) == (2, 3)


def adversary(count: int, seed: int) -> Snapshot:
    drawn = random.Random(seed)
    links = {pair: drawn.choice([NVLINK, PIX, SYS, SYS]) for pair in combinations(range(count), 2)}
    return snapshot(count, lambda a, b: links[a, b])


@pytest.mark.parametrize("size", [8, 32, 56])
def test_64_gpus_without_any_order_get_a_set_no_worse_than_greedy_and_none_better_by_one_exchange(size: int) -> None:
    node = adversary(64, seed=size)
    pairs = [[node.topology.distance(a, b) for b in range(64)] for a in range(64)]
    choice = place(Request(size * 100, 0), node)
    minors = tuple(card.minor for card in choice.gpus)
    assert total(node.topology, minors) <= total(node.topology, greedy(pairs, size))
    assert len(choice.passed_over) == 64 - size
    assert ("the closest found" in choice.reason) == (size < 56), "the reason admits that the search was cut short"
    inner = [sum(pairs[one][other] for other in minors) for one in range(64)]
    for newcomer in set(range(64)) - set(minors):
        assert min(inner[newcomer] - pairs[newcomer][leaver] - inner[leaver] for leaver in minors) >= 0, newcomer


def test_64_gpus_of_a_shape_that_exists_are_searched_to_the_end() -> None:
    choices = {shape: place(Request(800, 0), snapshot(64, shape)) for shape in SHAPES}
    assert [shape for shape, each in choices.items() if "the closest 8 of 64 GPUs" not in each.reason] == []
    chosen_gpus = {shape: [card.minor for card in each.gpus] for shape, each in choices.items()}
    assert chosen_gpus == {shape: list(range(8)) for shape in SHAPES}


def phrase(node: Snapshot, size: int, minor: int) -> str:
    passed_over = place(Request(size * 100, 0), node).passed_over
    return next(passed.reason for passed in passed_over if passed.gpu.minor == minor)


def test_the_phrase_says_why_a_gpu_was_passed_over() -> None:
    small = {minor: gpu(minor, blocks=8) for minor in range(3)}
    cases = [
        (snapshot(6, t6), 3, 4, "fits, but in the place of GPU 2 the total distance is 90 instead of 70"),
        (snapshot(6, t6), 3, 3, "fits as close as GPU 0, which has the lower minor number"),
        (snapshot(4, nvswitch, processes={3: 1}), 3, 3, "fits as close as GPU 0, which runs fewer processes"),
        (snapshot(4, nvswitch, gpus=small), 3, 3, "fits as close as GPU 0, which has less memory"),
        (snapshot(3, t6, used={1: (5, 5)}), 2, 1, "partly allocated: 5 of 100 cores, 1.25 of 80 GiB"),
        (PAIRS_AND_A_SINGLE, 3, 2, "fits as close as GPU 5, which leaves the remaining GPUs closer together"),
    ]
    assert [phrase(node, size, minor) for node, size, minor, _ in cases] == [said for *_, said in cases]


def test_the_phrase_says_that_the_branch_is_fuller() -> None:
    """0, 1 and 2 are a chain of PIX links; 3 is no nearer to any of them than PHB, and as near to 0 and 1 as 2 is."""
    links = {(0, 1): PIX, (1, 2): PIX, (0, 2): APART, (0, 3): PHB, (1, 3): NODE, (2, 3): APART}
    node = snapshot(4, lambda a, b: links[a, b])
    assert phrase(node, 3, 3) == "fits as close as GPU 2, which is in a branch with fewer free GPUs"


def test_the_reason_names_distance_and_common_ancestor() -> None:
    cases = [
        (snapshot(6, t6), "GPUs 0-2: the closest 3 of 6 GPUs that fit (total distance 70, all under PHB)"),
        (snapshot(3, nvswitch), "GPUs 0-2: no other whole GPU fits (total distance 15, all under NVLink)"),
    ]
    assert [place(Request(300, 0), node).reason for node, _ in cases] == [reason for _, reason in cases]
