"""What one request may cost: where the steps are spent the answer says so, and the next one goes on from there."""

import random

import pytest

from deviceplugin.errors import CapacityError, RequestError, SearchLimitError
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest, require_few
from deviceplugin.model.preferences import NO_PREFERENCES, GpuFilter, Preferences
from deviceplugin.model.request import Request
from deviceplugin.placement.budget import Budget
from deviceplugin.placement.fit import NodeRejection
from deviceplugin.placement.node_state import NodeState, NodeUsage
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.pod import place_pod
from sandbox.inventories import made_up_inventory

REF = PodRef(PodUid("u"), "d", "p")


def asking(*sizes: tuple[int, int], preferences: Preferences = NO_PREFERENCES) -> PodRequest:
    containers = (ContainerRequest(f"c{at}", ContainerRole.APP, at, Request(*size)) for at, size in enumerate(sizes))
    return PodRequest(REF, tuple(containers), preferences)


NEVER_TOGETHER = asking(*[(34, 20)] * 17)
"""On eight GPUs that are a third used: the sums suffice, and no GPU takes three."""


def held(uuid: GpuUuid, cores: int, blocks: int) -> Allocation:
    share = GpuShare(uuid, cores, blocks)
    return Allocation(ContainerRef(REF, "c"), ContainerRole.APP, Request(cores, blocks), (share,))


def used(nodes: int) -> list[NodeState]:
    """No two of them alike."""
    dice, found = random.Random(1), []
    for at in range(nodes):
        inventory = made_up_inventory(f"n{at:03}")
        usage = NodeUsage(f"n{at:03}", inventory)
        for number, gpu in enumerate(inventory.gpus):
            usage.hold(PodUid(f"u{number}"), [held(gpu.uuid, dice.randrange(1, 20), dice.randrange(1, 20))])
        found.append(usage.state())
    return found


def test_a_pod_that_fits_together_on_no_node_is_placed_on_each_class_once() -> None:
    scorer, states = NodeScorer(), used(30)
    first, second = Budget(), Budget()
    refused = scorer.choose(NEVER_TOGETHER, states, budget=first).refused
    assert set(refused.values()) <= {NodeRejection.TOGETHER, NodeRejection.SEARCH_EXHAUSTED}
    assert scorer.choose(NEVER_TOGETHER, states, budget=second).refused == refused
    assert second.spent == 0 < first.spent


def test_a_spent_budget_says_which_nodes_were_not_looked_at_and_the_next_goes_on() -> None:
    scorer, states = NodeScorer(), used(30)
    left, rounds = 30, 0
    while left:
        choice = scorer.choose(NEVER_TOGETHER, states, budget=Budget(20_000))
        now = list(choice.refused.values()).count(NodeRejection.NOT_LOOKED_AT)
        assert choice.unfinished == bool(now)
        assert now < left, "each request gets on"
        left, rounds = now, rounds + 1
    assert rounds > 2


def test_whatever_the_budget_the_choice_is_the_same_in_the_end() -> None:
    pod, states = asking((30, 4), (40, 8), (90, 10)), used(40)
    wanted = NodeScorer().choose(pod, states)
    scorer = NodeScorer()
    while (found := scorer.choose(pod, states, budget=Budget(500))).unfinished:
        pass
    assert (found.node, found.placed, found.ranked) == (wanted.node, wanted.placed, wanted.ranked)


def test_a_changed_node_is_looked_at_again() -> None:
    scorer, (state, *_) = NodeScorer(), used(1)
    assert scorer.choose(NEVER_TOGETHER, [state]).node is None
    empty = NodeUsage(state.name, made_up_inventory(state.name)).state()
    assert scorer.choose(asking(*[(34, 20)] * 16), [empty]).node == state.name


def test_all_that_fit_are_the_nodes_on_which_placing_succeeds() -> None:
    pod, states = asking((60, 10), (70, 10), (35, 60)), used(40)
    refused = NodeScorer().all_that_fit(pod, states).refused
    for state in states:
        try:
            place_pod(pod, state)
        except SearchLimitError:
            assert refused[state.name] is NodeRejection.SEARCH_EXHAUSTED
        except CapacityError:
            assert state.name in refused
        else:
            assert state.name not in refused


def test_a_pod_that_names_gpus_is_judged_by_them_and_costs_no_more() -> None:
    states = used(40)
    own = states[7].snapshot.gpus[2].gpu.uuid
    wanted = Preferences(gpus=GpuFilter(uuids=frozenset({own, *(GpuUuid(f"GPU-none-{at}") for at in range(300))})))
    scorer, first, again = NodeScorer(), Budget(), Budget()
    assert scorer.choose(asking((10, 1), preferences=wanted), states, budget=first).node == "n007"
    assert scorer.choose(asking((10, 1), preferences=wanted), states, budget=again).node == "n007"
    assert again.spent * 2 < first.spent, "39 nodes without such a GPU are not calculated again"


def test_one_container_more_than_may_be_placed_together_is_one_sentence() -> None:
    require_few(64)
    with pytest.raises(RequestError, match=r"65 containers of the pod request GPUs, and at most 64 .* several pods"):
        require_few(65)


def test_what_is_refused_after_the_first_refusal_costs_nothing() -> None:
    """The part of a namespace pays for what was done: 15 times as much was counted for a pod that named 400 GPUs."""
    budget = Budget(10)
    assert [budget.may(8), budget.may(8), budget.may(8)] == [True, False, False]
    assert (budget.spent, budget.left) == (16, 0)


def test_nodes_where_it_did_not_fit_are_not_asked_again_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 nodes that are alike are one class; a call for each was 13 ms of every turn."""
    alike = [NodeUsage(f"n{at}", made_up_inventory(f"n{at}", gpus=2)).state() for at in range(50)]
    scorer, never = NodeScorer(), asking(*[(60, 20)] * 3)
    asked: list[str] = []
    first = NodeScorer._placed

    def counted(self: NodeScorer, context: object, state: NodeState) -> object:
        asked.append(state.name)
        return first(self, context, state)  # type: ignore[arg-type]

    monkeypatch.setattr(NodeScorer, "_placed", counted)
    for most in (50, 0):
        choice = scorer.choose(never, alike)
        assert choice.node is None
        assert set(choice.refused.values()) == {NodeRejection.TOGETHER}
        assert len(choice.refused) == 50
        assert len(asked) <= most
        asked.clear()
