"""Pods without GPUs: who places them, and what that leaves for the others."""

import pytest

from deviceplugin.model.preferences import NodePolicy
from deviceplugin.placement.fit import NodeRejection
from deviceplugin.placement.node_state import Spare
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.simulate.replay import replay
from deviceplugin.simulate.scene import read_scene
from deviceplugin.simulate.stock_scheduler import Chooser, OtherPods, StockScheduler, beside_kube_scheduler
from deviceplugin.structs import replace
from sandbox.emulated_gpus import REPOSITORY
from tests.placement.clusters import node, pod
from tests.simulate.scenes import plan

TRACES = REPOSITORY / "benchmarks" / "traces"
ROOM = Spare(100, 100)
NODES = (node("fuller", 2, spare=ROOM), node("emptier", 2, spare=ROOM))


def binpack_beside(who: OtherPods, seed: int = 1) -> Chooser:
    return beside_kube_scheduler(NodeScorer(node_policy=NodePolicy.BINPACK), who, seed)


def goes(chooser: Chooser, *asked: tuple[int, int], needs: Spare) -> str | None:
    """On nodes of which one has less CPU and memory left."""
    for each in NODES:
        chooser.choose(pod(), [each], needs=needs)
    states = (NODES[0].with_spare(Spare(40, 40)), NODES[1])
    return chooser.choose(pod(*asked), states, needs=needs).node


def test_a_pod_without_gpus_goes_where_the_plan_says_and_one_with_gpus_by_the_policy() -> None:
    """By the policy binpack both are equal, and the first by name is taken."""
    without = {OtherPods.STOCK: "emptier", OtherPods.MOST_ALLOCATED: "fuller", OtherPods.POLICY: "emptier"}
    assert {who: goes(binpack_beside(who), needs=Spare(10, 10)) for who in OtherPods} == without
    assert {goes(binpack_beside(who), (50, 1), needs=Spare(10, 10)) for who in OtherPods} == {"emptier"}


def test_a_chooser_that_stands_for_kube_scheduler_stays_as_it_is() -> None:
    stock = StockScheduler(1)
    assert beside_kube_scheduler(stock, OtherPods.STOCK, 1) is stock


def test_a_pod_that_fits_nowhere_is_refused_for_cpu() -> None:
    chooser = binpack_beside(OtherPods.STOCK)
    found = chooser.choose(pod(), NODES, needs=Spare(101, 1))
    assert (found.node, set(found.refused.values())) == (None, {NodeRejection.SPARE})


def test_of_equal_nodes_the_seed_draws_and_not_the_order() -> None:
    nodes = tuple(node(f"n{at}", 1, spare=ROOM) for at in range(20))

    def drawn(seed: int, *, backwards: bool = False) -> list[str | None]:
        chooser, states = binpack_beside(OtherPods.STOCK, seed), nodes[:: -1 if backwards else 1]
        return [chooser.choose(pod(), states, needs=Spare(1, 1)).node for _ in range(5)]

    assert drawn(1) == drawn(1, backwards=True) != drawn(2)
    assert len(set(drawn(1))) > 1


def test_pods_that_are_spread_leave_no_node_with_the_cpu_of_a_large_pod() -> None:
    def fit(who: OtherPods) -> int:
        """The percent of GPUs that are taken in the end."""
        nodes = {each.name: each for each in NODES}
        chooser = binpack_beside(who)
        arrivals = [(pod(), Spare(50, 50))] * 2 + [(pod((100, 0)), Spare(60, 60))]
        for asked, needs in arrivals:
            found = chooser.choose(asked, nodes.values(), needs=needs)
            if found.node and found.placed:
                nodes[found.node] = nodes[found.node].with_pod(found.placed.allocations, needs=needs)
        return sum(100 - view.free_cores for each in nodes.values() for view in each.snapshot.gpus)

    assert (fit(OtherPods.STOCK), fit(OtherPods.MOST_ALLOCATED)) == (0, 100)


@pytest.mark.parametrize("policy", [NodePolicy.BINPACK, NodePolicy.SPREAD, NodePolicy.FRAGMENTATION])
def test_a_run_of_the_example_depends_on_who_places_the_other_pods(policy: NodePolicy) -> None:
    """A policy that looks at neither what is free nor CPU and memory need not."""
    scene = read_scene(TRACES / "example-nodes.csv", TRACES / "example-pods.csv")
    runs = [replay(scene, replace(plan(policy), other_pods=who), seed=1) for who in OtherPods]
    assert len({run.samples for run in runs}) == len(OtherPods)
