"""Nodes as capacities: what is left of them is what `place_pod` leaves."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.gpu import ComputeMode, Health
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.model.request import Request
from deviceplugin.placement.capacity_after import CapacityAfter, capacities_of
from deviceplugin.placement.fit import GpuCapacity, GpuModel
from deviceplugin.placement.fragmentation import NO_NEEDS
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.pod import place_pod
from deviceplugin.placement.prefilter import prefilter
from deviceplugin.structs import replace
from tests.placement.clusters import node, pod, requests, some_nodes
from tests.placement.drawn_pods import APP, INIT, SHARES, SIDECAR
from tests.placement.drawn_pods import pod as with_roles
from tests.placement.nodes import gpu, snapshot


def is_foreseen(policy: GpuPolicy, request: Request) -> bool:
    """Whole GPUs are alike; of shares, only where the policy orders GPUs by free cores and memory alone."""
    if not request.is_share:
        return True
    match policy:
        case GpuPolicy.BINPACK | GpuPolicy.SPREAD:
            return True
        case GpuPolicy.LINK:
            return request.parts == 1


UNEQUAL = node("n", 6, used={0: (40, 10), 1: (10, 60), 2: (30, 90), 3: (50, 40), 4: (20, 80)})


def test_gpus_that_are_all_used_differently_are_foreseen_in_the_order_of_the_policy() -> None:
    requests = (Request(20, 8), Request(40, 8, parts=2), Request(90, 9, parts=3))
    cases = [(policy, pod(each)) for policy in GpuPolicy for each in requests if is_foreseen(policy, each)]
    assert len(cases) == 7
    placed = [place_pod(asked, UNEQUAL, policy=policy).allocations for policy, asked in cases]
    left = [capacities_of(UNEQUAL.with_pod(each, needs=NO_NEEDS)) for each in placed]
    assert [CapacityAfter(asked, policy)(capacities_of(UNEQUAL)) for policy, asked in cases] == left


@given(requests, some_nodes(), st.sampled_from(GpuPolicy))
def test_what_is_foreseen_for_one_container_is_what_placing_it_leaves(
    request: Request, nodes: tuple[NodeState, ...], policy: GpuPolicy
) -> None:
    asked = pod(request)
    for state in nodes:
        foreseen = CapacityAfter(asked, policy)(capacities_of(state))
        assert (foreseen is None) == (prefilter(asked, state) is not None)
        if foreseen is not None and is_foreseen(policy, request):
            placed = place_pod(asked, state, policy=policy)
            assert foreseen == capacities_of(state.with_pod(placed.allocations, needs=NO_NEEDS))


@st.composite
def one_gpu_each(draw: st.DrawFn) -> PodRequest:
    """Init containers and sidecars, then at most one app container, each with a share of one GPU or a whole one."""
    request = st.one_of(SHARES, st.just(Request(100, 0)))
    first = draw(st.lists(st.tuples(st.sampled_from([INIT, INIT, SIDECAR]), request), min_size=1, max_size=3))
    listed = [(role, at, asked) for at, (role, asked) in enumerate(first)]
    return with_roles(*listed, *([(APP, 0, draw(request))] if draw(st.booleans()) else []))


@given(one_gpu_each(), st.dictionaries(st.integers(0, 3), st.tuples(st.integers(1, 100), st.integers(0, 320))),
       st.sampled_from([policy for policy in GpuPolicy if is_foreseen(policy, Request(1, 1))]))  # fmt: skip
def test_containers_that_do_not_run_at_the_same_time_are_foreseen_as_kubelet_counts_them(
    asked: PodRequest, used: dict[int, tuple[int, int]], policy: GpuPolicy
) -> None:
    state = node("n", used=used)
    foreseen = CapacityAfter(asked, policy)(capacities_of(state))
    if foreseen is not None:
        placed = place_pod(asked, state, policy=policy)
        assert foreseen == capacities_of(state.with_pod(placed.allocations, needs=NO_NEEDS))


def test_gpus_that_take_no_work_are_no_capacity_and_some_are_never_shared() -> None:
    cards = {
        0: gpu(0, mig=True),
        1: gpu(1, mode=ComputeMode.PROHIBITED),
        2: gpu(2, mode=ComputeMode.EXCLUSIVE_PROCESS),
        3: gpu(3),
    }
    found = snapshot(5, gpus=cards, ill={4: "XID 79"}, used={3: (20, 5)})
    exclusive = GpuCapacity(GpuModel("Test", 320, whole_only=True), 100, 320)
    assert capacities_of(NodeState("n", found)) == (GpuCapacity(GpuModel("Test", 320), 80, 315), exclusive)
    cordoned = frozenset({found.gpus[3].gpu.uuid})
    assert capacities_of(NodeState("n", found, cordoned=cordoned)) == (exclusive,)
    assert all(card.model.whole_only for card in capacities_of(NodeState("n", found, share_mode=False)))


def test_nodes_that_differ_in_names_and_processes_alone_have_the_same_capacities() -> None:
    one, other = node("a", used={0: (50, 1)}), node("b", used={3: (50, 1)})
    busy = tuple(replace(view, processes=3) for view in other.snapshot.gpus)
    assert capacities_of(one) == capacities_of(replace(other, snapshot=replace(other.snapshot, gpus=busy)))


def test_a_pod_without_room_for_its_second_container_leaves_nothing_foreseen() -> None:
    assert CapacityAfter(pod((60, 1), (60, 1)), GpuPolicy.BINPACK)(capacities_of(node("n", 1))) is None


def test_a_gpu_that_becomes_unhealthy_has_no_capacity_any_more() -> None:
    state = node("n", 1)
    ill = tuple(replace(view, health=Health(healthy=False, reason="XID 79")) for view in state.snapshot.gpus)
    assert capacities_of(replace(state, snapshot=replace(state.snapshot, gpus=ill))) == ()
