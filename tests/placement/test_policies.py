"""GPU policies for every kind of request, shares over several GPUs, NUMA nodes, models, UUIDs and cordons."""

from collections.abc import Iterable
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import CapacityError
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.preferences import ANY_GPU, GpuFilter, GpuPolicy
from deviceplugin.model.request import Request
from deviceplugin.placement.candidates import survey
from deviceplugin.placement.pod import place
from deviceplugin.placement.snapshot import Snapshot
from sandbox.gpu_links import nvswitch, pcie_tree, t6
from tests.placement.drawn_pods import PARTED, REQUESTS
from tests.placement.nodes import gpu, snapshot, snapshots, view_of

BINPACK, SPREAD, LINK = GpuPolicy.BINPACK, GpuPolicy.SPREAD, GpuPolicy.LINK
PART = Request(60, 16, parts=2)
USED = {1: (30, 8), 2: (10, 8), 4: (60, 8), 6: (90, 8), 7: (90, 8)}


def minors(request: Request, node: Snapshot, policy: GpuPolicy, wanted: GpuFilter = ANY_GPU) -> list[int]:
    return [card.minor for card in place(request, node, policy=policy, wanted=wanted).gpus]


ASKED = (Request(30, 8), PART, Request(100, 0), Request(200, 0))
TAKEN = {
    BINPACK: ([4], [1, 4], [5], [0, 3]),
    SPREAD: ([0], [0, 3], [0], [0, 5]),
    LINK: ([4], [0, 1], [5], [0, 3]),  # of the pairs under one switch the fullest
}
"""By policy, the GPUs for each kind of request: a share, one over two GPUs, one whole GPU, two."""


def test_each_policy_has_its_choice_for_each_kind_of_request() -> None:
    node = snapshot(8, pcie_tree, used=USED)
    assert {policy: tuple(minors(each, node, policy) for each in ASKED) for policy in GpuPolicy} == TAKEN
    assert len(set(map(repr, TAKEN.values()))) == len(GpuPolicy), "ask for what shows how the new policy differs"


def test_a_share_over_four_gpus_stays_in_one_half_of_the_tree_with_link() -> None:
    assert minors(Request(120, 48, parts=4), snapshot(8, pcie_tree, used=USED), LINK) == [0, 1, 2, 3]


def test_spread_whole_gpus_take_turns_among_the_branches() -> None:
    assert minors(Request(400, 0), snapshot(16, pcie_tree), SPREAD) == [0, 4, 8, 12]
    assert minors(Request(400, 0), snapshot(8, nvswitch), SPREAD) == [0, 1, 2, 3]


@given(node=snapshots(), request_=REQUESTS, policy=st.sampled_from(GpuPolicy))
def test_the_policy_decides_where_and_never_whether(node: Snapshot, request_: Request, policy: GpuPolicy) -> None:
    def fits(by: GpuPolicy) -> bool:
        try:
            place(request_, node, policy=by)
        except CapacityError:
            return False
        return True

    assert fits(policy) == fits(BINPACK)


@given(node=snapshots(), request_=PARTED, policy=st.sampled_from(GpuPolicy))
def test_the_parts_of_a_share_are_equal_and_on_different_gpus(
    node: Snapshot, request_: Request, policy: GpuPolicy
) -> None:
    try:
        choice = place(request_, node, policy=policy)
    except CapacityError:
        return
    assert len({share.uuid for share in choice.shares}) == len(choice.shares) == request_.parts
    assert {(share.cores, share.blocks) for share in choice.shares} == {
        (request_.cores // request_.parts, request_.blocks // request_.parts)
    }
    for share in choice.shares:
        view = view_of(node, share.uuid)
        assert share.cores <= view.free_cores
        assert share.blocks <= view.free_blocks


@given(node=snapshots(at_least=2), parts=st.integers(2, 4))
def test_linked_parts_are_as_close_as_any_others_that_fit(node: Snapshot, parts: int) -> None:
    request = Request(10 * parts, parts, parts)
    fitting = [view.gpu.minor for view in survey(request, node).candidates.views]
    if len(fitting) < parts:
        return

    def distance(some: Iterable[int]) -> int:
        return sum(node.topology.distance(a, b) for a, b in combinations(some, 2))

    assert distance(minors(request, node, LINK)) == min(map(distance, combinations(fitting, parts)))


TWO_NODES = {minor: gpu(minor, numa=minor // 4) for minor in range(8)}


def test_all_gpus_of_a_container_are_on_one_numa_node_where_that_is_asked() -> None:
    node = snapshot(8, nvswitch, gpus=TWO_NODES, used={0: (90, 8), 1: (90, 8)})
    expected = {
        (Request(200, 0), BINPACK): [2, 3],  # of nodes with equally close pairs the one with fewer GPUs that fit
        (Request(200, 0), SPREAD): [4, 5],
        (Request(300, 0), BINPACK): [4, 5, 6],
        (PART, BINPACK): [2, 3],
        (PART, LINK): [2, 3],
    }
    wanted = GpuFilter(one_numa=True)
    assert {each: minors(each[0], node, each[1], wanted) for each in expected} == expected


def test_gpus_without_a_numa_node_count_as_one_node() -> None:
    assert minors(Request(200, 0), snapshot(2, t6), BINPACK, GpuFilter(one_numa=True)) == [0, 1]


def test_gpus_can_be_named_and_excluded() -> None:
    named = GpuFilter(uuids=frozenset({GpuUuid("GPU-1")}))
    for wanted in (named, GpuFilter(not_uuids=frozenset({GpuUuid("GPU-0"), GpuUuid("GPU-2")}))):
        choice = place(Request(100, 0), snapshot(3, t6), wanted=wanted)
        assert [card.minor for card in choice.gpus] == [1], wanted
        assert {each.reason for each in choice.passed_over} == {"not among the GPUs that the pod wants"}, wanted


def test_a_cordoned_gpu_takes_nothing_new() -> None:
    choice = place(Request(30, 8), snapshot(2, t6, used={0: (50, 8)}), cordoned={gpu(0).uuid})
    assert [card.minor for card in choice.gpus] == [1]
    assert choice.passed_over[0].reason == "cordoned"
