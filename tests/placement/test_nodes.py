"""Which node a pod gets, and what is said of the others."""

import random
from collections.abc import Sequence
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuFilter, GpuPolicy, NodePolicy
from deviceplugin.model.request import Request
from deviceplugin.placement.capacity_after import CapacityAfter, capacities_of, free_cores
from deviceplugin.placement.fit import NodeRejection
from deviceplugin.placement.fragmentation import ASSUMED, Fragmentation, Workload, workload
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.nodes import LAST, NodeChoice, NodeScorer, score_by_totals, totals_of
from tests.placement.clusters import node, pod, some_nodes, some_pods
from tests.placement.drawn_pods import APP, INIT
from tests.placement.drawn_pods import pod as with_roles

HALF = pod((50, 40))
node_policies = st.sampled_from(NodePolicy)
gpu_policies = st.sampled_from(GpuPolicy)
amounts = st.sampled_from([Spare(0, 0), Spare(1, 1), Spare(3, 1)])


def chosen(asked: PodRequest, *nodes: NodeState, policy: NodePolicy, typical: Workload | None = None) -> str | None:
    return NodeScorer(typical or ASSUMED, node_policy=policy).choose(asked, nodes).node


SCENES = (
    (node("empty"), node("fuller", used={0: (50, 40)}), node("full", used=dict.fromkeys(range(4), (80, 0)))),
    (node("1 GPU, half", 1, used={0: (50, 160)}), node("8 GPUs, 1 used", 8, used={0: (100, 320)})),
    (node("2 GPUs, empty", 2), node("8 GPUs, half", 8, used=dict.fromkeys(range(8), (50, 160)))),
    (node("60 of one GPU", 2, used={0: (100, 320), 1: (40, 128)}), node("half of two", 2, used={0: (50, 160)})),
)
TAKEN = {
    NodePolicy.BINPACK: ("fuller", "1 GPU, half", "8 GPUs, half", "60 of one GPU"),
    NodePolicy.SPREAD: ("empty", "8 GPUs, 1 used", "2 GPUs, empty", "half of two"),
    NodePolicy.FRAGMENTATION: ("fuller", "1 GPU, half", "8 GPUs, half", "half of two"),
}
"""By policy, the node that half a GPU takes in each scene. Nodes of different size are compared by fractions."""


def test_half_a_gpu_goes_to_the_node_that_the_policy_prefers() -> None:
    found = {policy: tuple(chosen(HALF, *nodes, policy=policy) for nodes in SCENES) for policy in NodePolicy}
    assert found == TAKEN
    assert len(set(TAKEN.values())) == len(NodePolicy), "add a scene that shows what is special about the new policy"


def test_spread_looks_at_the_scarcer_of_cores_and_memory() -> None:
    nodes = (node("little-memory", 1, used={0: (0, 200)}), node("few-cores", 1, used={0: (40, 100)}))
    assert chosen(pod((10, 10)), *nodes, policy=NodePolicy.SPREAD) == "few-cores"


def test_fragmentation_keeps_the_gpus_that_only_large_tasks_need() -> None:
    eight = workload([(pod((800, 0)), Spare(0, 0))])
    nodes = (node("eight", 8), node("two", 2))
    assert chosen(pod((200, 0)), *nodes, policy=NodePolicy.FRAGMENTATION, typical=eight) == "two"


def test_fragmentation_counts_the_cpu_that_gpus_need_beside_them() -> None:
    hungry = workload([(pod((100, 0)), Spare(10, 0))])
    starved = node("starved", 2, spare=Spare(12, 0))
    rich = node("a-rich", 2, spare=Spare(20, 0))
    taken = NodeScorer(hungry).choose(pod((50, 1)), (rich, starved), needs=Spare(1, 0))
    assert taken.node == "starved"


def test_nodes_that_tie_go_by_name() -> None:
    for policy in NodePolicy:
        assert chosen(HALF, node("c"), node("a"), node("b"), policy=policy) == "a"


def test_the_pods_own_policy_wins() -> None:
    asked = pod((50, 40), node=NodePolicy.SPREAD)
    assert chosen(asked, node("b-empty"), node("fuller", used={0: (50, 40)}), policy=NodePolicy.BINPACK) == "b-empty"


def test_every_node_that_was_looked_at_has_a_verdict() -> None:
    nodes = (
        node("chosen", used={0: (50, 0)}),
        node("other"),
        node("full", 1, used={0: (100, 320)}),
        node("none", 0),
        node("busy", spare=Spare(1, 1)),
    )
    choice = NodeScorer().choose(HALF, nodes, needs=Spare(2, 2))
    assert choice.node == "chosen"
    assert choice.ranked.keys() == {"chosen", "other"}
    assert choice.refused == {"full": NodeRejection.CORES, "none": NodeRejection.NO_GPU, "busy": NodeRejection.SPARE}


def test_a_node_that_does_not_carry_all_containers_together_comes_last_and_is_refused() -> None:
    asked = pod((60, 1), (60, 1))
    tight = node("a-tight", 2, used={0: (20, 0), 1: (50, 0)})
    assert NodeScorer().choose(asked, (tight, node("roomy"))).node == "roomy"
    choice = NodeScorer().choose(asked, (tight,))
    assert (choice.node, choice.placed, choice.refused["a-tight"]) == (None, None, NodeRejection.TOGETHER)


def test_an_init_container_that_has_ended_takes_nothing_beside_the_app() -> None:
    """The fuller node has room for one after the other, not for both at once."""
    nodes = (node("empty", 1, used={0: (20, 100)}), node("fuller", 1, used={0: (20, 290)}))
    init = with_roles((INIT, 0, Request(30, 20)), (APP, 0, Request(30, 16)))
    large_init = with_roles((INIT, 0, Request(30, 20)), (APP, 0, Request(10, 16)))
    for policy in NodePolicy:
        alone = chosen(pod((30, 20)), *nodes, policy=policy)
        assert [chosen(each, *nodes, policy=policy) for each in (init, large_init)] == [alone, alone], policy


def test_a_node_for_which_not_every_combination_was_tried_is_not_said_to_be_too_small() -> None:
    """Four times 100 cores in 16 containers, to the last core."""
    sixteen = pod(*((cores, 1) for cores in (42, 12, 35, 10, 19, 9, 13, 32, 21, 17, 24, 42, 12, 17, 43, 52)))
    choice = NodeScorer().choose(sixteen, (node("a", 4),))
    assert (choice.node, choice.refused["a"]) == (None, NodeRejection.SEARCH_EXHAUSTED)


def test_a_pod_that_fits_nowhere_has_no_node() -> None:
    choice = NodeScorer().choose(pod((500, 0)), (node("a"), node("b", 0)))
    assert (choice.node, choice.placed) == (None, None)
    assert choice.refused == {"a": NodeRejection.TOO_FEW, "b": NodeRejection.NO_GPU}


def test_a_gpu_named_by_uuid_is_found_although_another_node_is_alike() -> None:
    nodes = (node("a"), node("b"))
    scorer = NodeScorer()
    for name in ("b", "a", "b"):
        asked = pod((50, 40), gpus=GpuFilter(uuids=frozenset({GpuUuid(f"{name}/2")})))
        choice = scorer.choose(asked, nodes)
        assert choice.node == name
        assert choice.placed is not None
        assert choice.placed.uuids == {f"{name}/2"}


def test_what_comes_can_change_while_the_scorer_is_used() -> None:
    nodes = (node("eight", 8), node("two", 2))
    scorer = NodeScorer(workload([(pod((800, 0)), Spare(0, 0))]))
    assert scorer.choose(pod((100, 0)), nodes).node == "two"
    scorer.expect(workload([(pod((200, 0)), Spare(0, 0))]))
    assert scorer.choose(pod((100, 0)), (node("a-odd", 3), nodes[1])).node == "a-odd"


def test_a_node_that_left_may_come_back_as_another() -> None:
    scorer = NodeScorer()
    assert scorer.choose(HALF, (node("a"),)).node == "a"
    scorer.forget("a")
    assert scorer.choose(HALF, (node("a", 0),)).node is None


def outcome(choice: NodeChoice) -> tuple[object, ...]:
    return (choice.node, choice.placed, dict(choice.ranked), dict(choice.refused))


@given(some_pods, some_nodes(), node_policies, gpu_policies, amounts, st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_are_given_never_counts(
    asked: PodRequest,
    nodes: Sequence[NodeState],
    policy: NodePolicy,
    gpu_policy: GpuPolicy,
    needs: Spare,
    order: random.Random,
) -> None:
    mixed = list(nodes)
    order.shuffle(mixed)
    one = NodeScorer(node_policy=policy, gpu_policy=gpu_policy).choose(asked, nodes, needs=needs)
    other = NodeScorer(node_policy=policy, gpu_policy=gpu_policy).choose(asked, mixed, needs=needs)
    assert outcome(one) == outcome(other)


@given(st.lists(st.tuples(some_pods, amounts), min_size=1, max_size=12), some_nodes(), node_policies, gpu_policies)
def test_what_was_kept_changes_no_choice_and_no_gpu_gives_more_than_it_has(
    pods: list[tuple[PodRequest, Spare]], start: Sequence[NodeState], policy: NodePolicy, gpu_policy: GpuPolicy
) -> None:
    typical = workload(pods)
    new_scorer = partial(NodeScorer, typical, node_policy=policy, gpu_policy=gpu_policy)
    warm = new_scorer()
    nodes = {each.name: each for each in start}
    taken: dict[GpuUuid, int] = {}
    for asked, needs in [*pods, *pods]:
        choice = warm.choose(asked, nodes.values(), needs=needs)
        cold = new_scorer().choose(asked, nodes.values(), needs=needs)
        assert outcome(choice) == outcome(cold)
        if choice.node is None or choice.placed is None:
            continue
        nodes[choice.node] = nodes[choice.node].with_pod(choice.placed.allocations, needs=needs)
        for share in (share for each in choice.placed.allocations for share in each.shares):
            taken[share.uuid] = taken.get(share.uuid, 0) + share.cores
        assert not any(uuid in nodes[choice.node].cordoned for uuid in choice.placed.uuids)
    for state in start:
        for view in state.snapshot.gpus:
            assert taken.get(view.gpu.uuid, 0) <= view.free_cores
    for state in nodes.values():
        assert state.spare is None or (state.spare.cpu_milli >= 0 and state.spare.memory_mib >= 0)


@given(some_pods, some_nodes(), node_policies)
def test_a_pod_of_one_container_never_fails_behind_the_prefilter(
    asked: PodRequest, nodes: Sequence[NodeState], policy: NodePolicy
) -> None:
    choice = NodeScorer(node_policy=policy).choose(asked, nodes)
    if len(asked.containers) <= 1:
        assert not {NodeRejection.TOGETHER, NodeRejection.SEARCH_EXHAUSTED}.intersection(choice.refused.values())
        assert (choice.node is None) == (not choice.ranked)


def test_a_whole_workload_is_counted_by_container_without_uuids() -> None:
    named = pod((50, 1), (100, 0), gpus=GpuFilter(models=("T4",), uuids=frozenset({GpuUuid("x")})))
    found = workload([(named, Spare(4, 8)), (named, Spare(4, 8)), (pod(), Spare(9, 9))])
    assert [(kind.request, kind.needs, kind.wanted, count) for kind, count in found.kinds] == [
        (Request(50, 1), Spare(2, 4), GpuFilter(models=("T4",)), 2),
        (Request(100, 0), Spare(2, 4), GpuFilter(models=("T4",)), 2),
    ]


@given(some_pods, some_nodes(), node_policies, gpu_policies)
def test_a_share_is_scored_by_totals_as_by_its_gpus(
    asked: PodRequest, nodes: Sequence[NodeState], policy: NodePolicy, gpu_policy: GpuPolicy
) -> None:
    found = NodeScorer(node_policy=policy, gpu_policy=gpu_policy).choose(asked, nodes).ranked
    policy, gpu_policy = asked.preferences.node or policy, asked.preferences.gpu or gpu_policy
    score = score_by_totals(policy)
    measure = Fragmentation(ASSUMED)
    for state in nodes:
        if state.name in found:
            before = capacities_of(state)
            left = CapacityAfter(asked, gpu_policy)(before)
            if left is None:
                assert found[state.name] == LAST
            elif score is not None:
                assert found[state.name] == score(totals_of(left))
            else:
                growth = measure.of(left, state.spare) - measure.of(before, state.spare)
                assert found[state.name] == (growth, free_cores(left))
