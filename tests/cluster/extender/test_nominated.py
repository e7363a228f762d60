"""Nominated pods of others: who asks neither pays for them nor waits for them long, and what they need stays theirs."""

import asyncio
from functools import partial

import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.rejection import NOT_PLACED_YET
from deviceplugin.cluster.extender.turns import Turns
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod import ClusterPod
from deviceplugin.placement.budget import AT_ONCE, Budget
from deviceplugin.structs import replace
from tests.cluster.extender.makers import NAMES, allocated, ask, ask_room, bound, deleting, node, on_gpu, pod

NODES = tuple(f"n{at:03}" for at in range(12))


def dear(number: int = 0, cores: int = 1) -> ClusterPod:
    """Of 32 containers, nominated on the first node."""
    more = [(f"i{at}", ContainerRole.INIT, cores, 1) for at in range(31)]
    return pod(f"dear-{number}", cores=cores, blocks=1, more=more, nominated=NODES[0])


@pytest.fixture
def fleet(extender: Extender) -> Extender:
    for name in NODES:
        extender.put_node(node(name, 8))
    return extender


async def longest_turn(turns: Turns, extender: Extender, asked: ClusterPod, *names: str) -> tuple[tuple[str, ...], int]:
    """The answer, and the most steps of one turn, for whomever they are made."""
    most = 0

    def question(budget: Budget) -> tuple[str, ...]:
        nonlocal most
        found = extender.filter(ask(asked, *names), budget).names
        most = max(most, budget.spent + budget.others)
        return found

    return await turns.ask("other", question), most


async def test_another_pod_finds_the_other_nodes_at_once_whatever_is_nominated_on_one(fleet: Extender) -> None:
    for number in range(60):
        fleet.put_pod(dear(number))
    names, most = await longest_turn(turns := Turns(), fleet, pod(cores=10, blocks=1), *NODES)
    assert names == (NODES[1],)
    assert most < 2 * AT_ONCE
    assert turns.budget("other").most == AT_ONCE, "it has paid for itself alone"


async def test_where_no_other_node_is_offered_they_are_placed_turn_by_turn(fleet: Extender) -> None:
    for number in range(20):
        fleet.put_pod(dear(number))
    turns, answers = Turns(clock=lambda: 0.0), []
    for _ in range(10):
        names, most = await longest_turn(turns, fleet, pod(cores=10, blocks=1), NODES[0])
        assert most < 2 * AT_ONCE
        answers.append(names)
        if names:
            break
    assert answers[-1] == (NODES[0],), "each request goes on where the last one ended"


async def test_a_change_that_asks_the_same_begins_nothing_anew(fleet: Extender) -> None:
    """Its owner may write a label without pause."""
    one = dear()
    fleet.put_pod(one)
    budget = Budget(AT_ONCE, is_last=False)
    fleet.prioritize(ask(pod(cores=10, blocks=1), *NODES), budget)
    assert budget.others > 0
    for version in ("7", "8"):
        fleet.put_pod(_version(one, version))
        budget = Budget(AT_ONCE, is_last=False)
        fleet.prioritize(ask(pod(cores=10, blocks=1), *NODES), budget)
        assert budget.others == 0
    fleet.put_pod(_version(one, "9", **{NAMES.gpus: "2"}))
    budget = Budget(AT_ONCE, is_last=False)
    fleet.prioritize(ask(pod(cores=10, blocks=1), *NODES), budget)
    assert budget.others > 0


def _version(one: ClusterPod, version: str, **annotations: str) -> ClusterPod:
    return replace(one, pod=replace(one.pod, resource_version=version, annotations=annotations))


async def test_a_pod_that_waits_for_its_victim_keeps_the_gpus_that_the_victim_leaves_and_no_others(
    extender: Extender,
) -> None:
    extender.put_node(node("a", 2))
    victim = pod(cores=100, blocks=0)
    extender.put_pod(deleting(bound(victim, "a", allocated(victim, {"main": on_gpu("a", 0, 100, 64)}))))
    other = pod(cores=60, blocks=8)
    extender.put_pod(bound(other, "a", allocated(other, {"main": on_gpu("a", 1, 60, 8)})))
    extender.put_pod(pod(cores=100, blocks=0, nominated="a"))
    assert extender.filter(ask(pod(cores=40, blocks=8), "a")).names == ("a",), "on the other GPU"
    assert extender.filter(ask(pod(cores=10, blocks=8), "a")).names == ()
    extender.drop_pod(victim.uid)
    assert extender.filter(ask(pod(cores=10, blocks=8), "a")).names == (), "it is the nominated pod's"


async def test_of_two_nominated_pods_of_one_priority_the_older_goes_first(extender: Extender) -> None:
    """Else each would keep the one GPU that is free from the other."""
    extender.put_node(node("a", 1))
    first, second = (pod(cores=100, blocks=0, nominated="a") for _ in range(2))
    extender.put_pod(first)
    extender.put_pod(second)
    assert extender.filter(ask(second, "a")).names == ()
    assert extender.filter(ask(first, "a")).names == ("a",)


async def test_victims_are_sought_with_the_nominated_pods_placed_once(fleet: Extender) -> None:
    for at in range(8):
        lesser = pod(f"low-{at}", cores=90, blocks=8, priority=-1)
        fleet.put_pod(bound(lesser, NODES[0], allocated(lesser, {"main": on_gpu(NODES[0], at, 90, 8)})))
    for number in range(3):
        fleet.put_pod(dear(number))
    asked = pod(cores=200, blocks=0)
    fleet.put_pod(asked)
    turns, spent = Turns(clock=lambda: 0.0), []
    for _ in range(4):
        found = await fleet.preempt(ask_room(asked, {NODES[0]: []}), turns)
        spent.append(turns.budget("d").most)
        if found:
            break
    assert len(found[NODES[0]].pods) == 2, "no more than are needed"
    assert set(spent) == {AT_ONCE}


@pytest.mark.parametrize("verb", ["prioritize", "explain"])
async def test_other_verbs_have_their_turns_too(fleet: Extender, verb: str) -> None:
    for number in range(30):
        fleet.put_pod(dear(number))
    asked, gaps = pod("mine", cores=10, blocks=1), 0
    fleet.put_pod(asked)

    async def other() -> None:
        nonlocal gaps
        while True:
            gaps += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    if verb == "prioritize":
        scores = await Turns().ask("d", partial(fleet.prioritize, ask(asked, *NODES)))
        assert len(scores) == len(NODES)
    else:
        assert await fleet.explain("d", "mine") is not None
        assert gaps > 30, "one for each of them at least"
    task.cancel()


def test_that_pods_were_not_placed_yet_is_a_reason_that_may_go_away() -> None:
    assert NOT_PLACED_YET.resolvable
