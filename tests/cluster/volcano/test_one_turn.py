"""What Volcano asks of one tenant's gang or node takes one turn of the loop, and no longer because there are more."""

from collections.abc import Callable
from functools import partial

import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.turns import Turns
from deviceplugin.cluster.volcano.tasks import VolcanoTasks
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod import ClusterPod, Gang
from deviceplugin.placement.budget import AT_ONCE, Budget
from tests.budget.dearest import Cost, cost_of
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import NAMES, allocated, bound, node, on_gpu, pod
from tests.cluster.volcano.makers import task

ONE_TURN = 400_000
"""Lines: at most some 50 ms."""
GANG = Gang("t", "g")
NAMED = {NAMES.avoid_gpus: ",".join(f"GPU-{at:08}" for at in range(399))}
INIT, APP = ContainerRole.INIT, ContainerRole.APP


def scene(nodes: int = 1, gpus: int = 8) -> tuple[Extender, VolcanoTasks]:
    extender = Extender(MemoryApi(), clock=lambda: 0.0)
    for at in range(nodes):
        extender.put_node(node(f"n{at}", gpus, blocks=60_000))
    tasks = VolcanoTasks(extender.snapshot, clock=lambda: 0.0)
    return extender, tasks


def member(cores: int, containers: int = 1, *, role: ContainerRole = INIT, named: bool = False) -> ClusterPod:
    more = [(f"c{at}", role, cores, 1) for at in range(containers - 1)]
    return pod(cores=cores, blocks=1, gang=GANG, annotations=NAMED if named else {}, more=more)


def allocating(tasks: VolcanoTasks, made: ClusterPod, budget: Budget | None = None) -> Cost:
    async def ask() -> None:
        assert tasks.allocate(task(made, "n0"), budget) == ""
        tasks.deallocate(task(made, "n0"))

    return cost_of(ask)


MEMBERS: dict[str, Callable[[int], ClusterPod]] = {
    "all alike, of 64 containers": lambda _: member(10, 64),
    "all alike, with 399 names": lambda _: member(10, named=True),
    "larger ones, of 64 init containers": lambda at: member(11 + at % 40, 64),
    "larger ones, of 64 containers": lambda at: member(11 + at % 40, 64, role=APP),
    "larger ones, with 399 names": lambda at: member(11 + at % 40, named=True),
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_a_member_of_a_gang_of_any_size_is_answered_in_one_turn(kind: str) -> None:
    costs = []
    for count in (100, 400):
        extender, tasks = scene()
        first = member(10)
        for made in [first, *map(MEMBERS[kind], range(count))]:
            extender.put_pod(made)
        costs += [allocating(tasks, first).longest for _ in range(2)]
    assert max(costs) < ONE_TURN / 2
    assert costs[2] < costs[0] * 1.1, "it is the same for four times as many"
    assert costs[3] < costs[1] * 1.1


def test_more_members_than_are_remembered_are_not_read_again_and_again() -> None:
    extender, tasks = scene()
    first = member(10)
    for made in [first, *(member(11 + at % 40) for at in range(5_000))]:
        extender.put_pod(made)
    once, again, later = Budget(), Budget(), Budget()
    lines = [allocating(tasks, first, each).total for each in (once, again, later)]
    assert again.spent == later.spent < once.spent - 64 * 30
    assert lines[1] < lines[0]


def test_the_look_at_a_gang_is_charged_and_ends_with_its_budget() -> None:
    extender, tasks = scene()
    first = member(10)
    for made in [first, *(member(11 + at % 40, 8) for at in range(100))]:
        extender.put_pod(made)
    spent = []
    for most in (0, AT_ONCE, AT_ONCE):
        budget = Budget(most)
        allocating(tasks, first, budget)
        spent.append(budget.spent)
    assert spent[0] < 1_000, "its own placement"
    assert AT_ONCE / 2 < spent[1] < AT_ONCE * 1.5
    assert AT_ONCE / 2 < spent[2] < AT_ONCE * 1.5


def test_a_pod_that_finds_no_room_is_charged_too() -> None:
    extender, tasks = scene()
    large = pod(cores=100, blocks=1, more=[(f"c{at}", APP, 100, 1) for at in range(63)])
    extender.put_pod(large)
    budget = Budget(AT_ONCE)
    assert tasks.allocate(task(large, "n0"), budget)
    assert budget.spent > 1_000


@pytest.mark.parametrize(("pods", "unlocated"), [(110, 0), (110, 5), (500, 0), (500, 100), (3_000, 0)])
@pytest.mark.parametrize("cores", [100, 800])
def test_victims_among_the_pods_of_one_node_are_found_in_one_turn(pods: int, unlocated: int, cores: int) -> None:
    extender, tasks = scene()
    running = []
    for at in range(pods):
        made = pod(cores=1, blocks=1)
        where = allocated(made, {"main": on_gpu("n0", at % 8, 1, 1)}) if at >= unlocated else {}
        running.append(bound(made, "n0", where))
        extender.put_pod(running[-1])
    wanted = pod(cores=cores, blocks=1)
    extender.put_pod(wanted)
    evictees = [task(each, "n0") for each in running]
    found: list[int] = []

    async def ask() -> None:
        found.append(len(await tasks.victims(task(wanted), evictees, Turns(clock=lambda: 0.0))))

    assert cost_of(ask).longest < ONE_TURN
    if pods <= 110 or (pods == 500 and cores == 100 and not unlocated):
        assert 0 < found[0] <= 256


VERBS: dict[str, Callable[[VolcanoTasks, ClusterPod, list[str], Budget], object]] = {
    "predicate": lambda tasks, made, names, budget: tasks.predicate(task(made), names[0], budget),
    "scores": lambda tasks, made, names, budget: tasks.scores(task(made), names, budget),
    "allocate": lambda tasks, made, names, budget: tasks.allocate(task(made, names[0]), budget),
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_kube_scheduler_keeps_for_others_costs_who_asks_nothing_and_one_turn_little(verb: str) -> None:
    extender, tasks = scene(nodes=40)
    names = [*extender.cache.nodes]
    for name in names:
        for _ in range(3):
            more = [(f"c{at}", APP, 1 + at % 7, 4) for at in range(15)]
            extender.put_pod(pod(cores=3, blocks=4, more=more, priority=9, nominated=name))
    asking = pod(cores=1, blocks=1)
    extender.put_pod(asking)
    first = Budget(AT_ONCE, is_last=False)
    cost = cost_of(partial(_asked, partial(VERBS[verb], tasks, asking, names, first)))
    assert cost.longest < ONE_TURN
    assert first.spent < 2_000 < first.others < AT_ONCE


async def _asked(question: Callable[[], object]) -> None:
    question()
