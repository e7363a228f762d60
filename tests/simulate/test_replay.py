"""Tasks that arrive one by one, and what is counted meanwhile."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.request import Request
from deviceplugin.placement.node_state import Spare
from deviceplugin.simulate.replay import LEARNT_EVERY, Run, SchedulerView, SimulationPlan, arrivals, replay
from deviceplugin.simulate.trace import Scene, Task, task
from deviceplugin.structs import replace
from tests.placement.clusters import node, pod
from tests.placement.drawn_pods import APP, INIT
from tests.placement.drawn_pods import pod as with_roles
from tests.simulate.scenes import AMPLE, plan, shares, some_plans, some_scenes, two_nodes


def without_time(run: Run) -> tuple[object, ...]:
    return (run.samples, run.tasks, run.waiting, run.waits_for, run.models)


def test_all_tasks_come_once_in_an_order_of_the_seeds_before_any_comes_again() -> None:
    tasks = shares(*range(1, 60))
    first = list(itertools.islice(arrivals(tasks, seed=7, until=10**9), 200))
    assert sorted(each.demand for each in first[:59]) == list(range(1, 60))
    assert first == list(itertools.islice(arrivals(tasks, seed=7, until=10**9), 200))
    assert first != list(itertools.islice(arrivals(tasks, seed=8, until=10**9), 200))


def test_arrivals_end_when_they_have_asked_for_enough() -> None:
    assert [each.demand for each in arrivals(shares(30), seed=1, until=100)] == [30, 30, 30, 30]


def test_a_cluster_that_is_asked_for_what_it_has_gives_it() -> None:
    run = replay(two_nodes(*shares(50, 25)), plan(percent=100), seed=1)
    assert run.at(100).allocated >= 0.95
    assert run.samples[49].allocated == run.samples[49].asked


def test_an_init_container_that_has_ended_is_neither_asked_for_nor_allocated_beside_the_app() -> None:
    phased = task(with_roles((INIT, 0, Request(60, 1)), (APP, 0, Request(40, 1))), AMPLE)
    assert phased.demand == 60
    (run,) = [replay(Scene((node("a", 1, spare=AMPLE),), (phased,)), plan(percent=60), seed=1)]
    assert (run.samples[-1].allocated, run.waiting) == (0.6, 0)


def test_what_fits_nowhere_waits_and_says_what_most_nodes_said() -> None:
    scene = two_nodes(task(pod((500, 0)), AMPLE), task(pod((100, 0)), Spare(2000, 0)))
    run = replay(scene, plan(percent=130), seed=1)
    assert run.waiting == run.tasks
    assert set(run.waits_for) == {"not enough matching GPUs", "insufficient cpu or memory"}
    assert run.at(130).allocated == 0
    assert run.waiting_gpus >= 8 * 1.3


def test_a_task_without_gpus_takes_cpu_from_those_with() -> None:
    eater = task(pod(), Spare(999, 0))
    scene = Scene((node("a", 4, spare=AMPLE),), (eater,) * 20 + shares(100))
    run = replay(scene, plan(), seed=3)
    assert run.at(130).allocated == 0.25
    assert "insufficient cpu or memory" in run.waits_for


def test_samples_stand_at_each_hundredth_also_where_one_task_passes_several() -> None:
    run = replay(two_nodes(*shares(100)), plan(), seed=1)
    assert len(run.samples) == 137  # the eleventh task passes 130
    assert run.at(12).asked == run.at(5).asked == 0.125
    assert run.at(100).allocated == 1.0
    assert run.at(100).asked == 1.0


def test_progress_gets_the_requested_cores() -> None:
    seen: list[int] = []
    replay(two_nodes(*shares(100)), plan(), seed=1, progress=seen.append)
    assert seen == [100 * at for at in range(1, 12)]


def test_used_fractions_are_reported_by_model() -> None:
    nodes = (node("a", 2, model="T4", spare=AMPLE), node("b", 2, model="A100", spare=AMPLE))
    for policy in NodePolicy:
        run = replay(Scene(nodes, shares(100)), plan(policy, percent=75), seed=1)
        assert (sorted(run.models), sum(run.models.values())) == (["A100", "T4"], 1.5), policy


@given(some_scenes, some_plans, st.integers(0, 5))
def test_no_cluster_gives_more_than_it_has_and_every_task_is_placed_or_waits(
    scene: Scene, tried: SimulationPlan, seed: int
) -> None:
    run = replay(scene, tried, seed=seed)
    last = run.samples[-1]
    assert round(last.asked * scene.capacity) >= tried.until(scene)
    assert 0 <= last.allocated <= 1
    assert all(0 <= part <= 1 for part in run.models.values())
    assert 0 <= last.allocated + last.fragmented <= 1 + 1e-9
    assert [sample.allocated for sample in run.samples] == sorted(sample.allocated for sample in run.samples)
    assert run.waiting == sum(run.waits_for.values()) <= run.tasks


@given(some_scenes, some_plans, st.integers(0, 5))
def test_the_same_seed_gives_the_same_run(scene: Scene, tried: SimulationPlan, seed: int) -> None:
    reordered = Scene(scene.nodes[::-1], scene.tasks)
    assert without_time(replay(scene, tried, seed=seed)) == without_time(replay(reordered, tried, seed=seed))


def test_as_the_scheduler_it_is_learnt_from_the_tasks_that_come_what_is_worth_keeping() -> None:
    """Half a GPU with much CPU: before a hundred have come it is not known that CPU must be kept for others."""
    hungry, modest = task(pod((50, 1)), Spare(10, 0)), task(pod((50, 1)), Spare(0, 0))
    view = SchedulerView(NodePolicy.FRAGMENTATION, GpuPolicy.BINPACK)
    nodes = (node("a", 1, spare=Spare(20, 9)), node("b", 1, spare=Spare(9, 9)))

    def goes(asked: Task) -> str | None:
        return view.choose(asked.pod, nodes, needs=asked.needs).node

    assert goes(modest) == "a", "the first by name"
    for _ in range(LEARNT_EVERY):
        assert goes(hungry) == "a", "kube-scheduler leaves out the other"
    assert goes(modest) == "b"


@given(some_scenes, some_plans, st.integers(0, 5))
def test_as_the_scheduler_the_same_invariants_hold(scene: Scene, tried: SimulationPlan, seed: int) -> None:
    run = replay(scene, replace(tried, as_scheduler=True), seed=seed)
    assert 0 <= run.samples[-1].allocated <= 1
    assert run.waiting == sum(run.waits_for.values()) <= run.tasks


def test_as_the_scheduler_a_node_without_cpu_is_left_out_and_says_so() -> None:
    scene = Scene((node("a", 4, spare=Spare(5, 5)),), (task(pod((100, 0)), Spare(2, 2)),))
    for policy in NodePolicy:
        run = replay(scene, replace(plan(policy, percent=100), as_scheduler=True), seed=1)
        assert (run.at(100).allocated, run.waits_for) == (0.5, {"insufficient cpu or memory": 2}), policy
