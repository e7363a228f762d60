"""The agent against a real kubelet: what issue 2 promises of crowds, crashes, churn and broken GPUs."""

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.e2e.conftest import StartAgent
from tests.e2e.node.scene import (
    check_everything,
    create_at_once,
    everything,
    wait_all_running,
    wait_ledger_empty,
    wait_offered,
    wait_some_running,
)
from tests.e2e.node.workload import WHOLE, GpuContainer, GpuPod, burst, lookalikes, share
from tests.offered import blocks_of_each

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GENERATIONS = 5
EXACT = {"pods", "podresources"}


def test_a_burst_of_pods_gives_every_container_its_own(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent, asked = start_agent(), burst("burst")

    create_at_once(empty_cluster, asked)
    wait_all_running(empty_cluster, asked)

    scene = check_everything(empty_cluster, agent, asked)
    sources = {each.source for each in scene.usage.containers}
    assert "pods" in sources
    assert sources <= EXACT  # a slow answer of kubelet's may cost its place, never exactness


def test_a_burst_in_which_every_answer_is_late_is_as_exact(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    """With 30 ms and less for kubelet's answers, containers ran without their GPU, and others never started."""
    agent, asked = start_agent("--identity-budget=1ms"), burst("late")

    create_at_once(empty_cluster, asked)
    wait_all_running(empty_cluster, asked)

    scene = check_everything(empty_cluster, agent, asked)
    assert {each.source for each in scene.usage.containers} <= EXACT


def test_kubelet_killed_in_the_middle_of_a_burst_costs_nothing(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent, asked = start_agent(), burst("kubelet")
    create_at_once(empty_cluster, asked)
    before = wait_some_running(empty_cluster, 6)

    empty_cluster.kubelet.kill()
    empty_cluster.kubelet.start()
    wait_all_running(empty_cluster, asked)

    after = check_everything(empty_cluster, agent, asked).states
    assert {name: after[name].containers for name in before} == {name: each.containers for name, each in before.items()}


def test_the_agent_killed_in_the_middle_of_a_burst_loses_no_slot(
    empty_cluster: Cluster, start_agent: StartAgent
) -> None:
    """Kubelet refuses pods while no agent is there; the test makes those again, as their controller would."""
    agent, asked = start_agent(), burst("agent")
    create_at_once(empty_cluster, asked)
    before = wait_some_running(empty_cluster, 6)

    agent.process.kill()
    agent.start()
    _make_refused_again(empty_cluster, {pod.name: pod for pod in asked})
    wait_all_running(empty_cluster, asked)

    after = check_everything(empty_cluster, agent, asked).states
    assert {name: after[name].containers for name in before} == {name: each.containers for name, each in before.items()}


def test_churn_leaves_the_ledger_empty(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent, admin = start_agent(), empty_cluster.admin
    previous = [share("churn-first", 5, 5)]
    pods.create(admin, previous[0].manifest())
    for number in range(GENERATIONS):
        fresh = _generation(number)
        for pod in fresh:
            pods.create(admin, pod.manifest())
        pods.delete(admin, [pod.name for pod in previous])
        wait_all_running(empty_cluster, fresh)
        pods.wait_gone(admin, [pod.name for pod in previous])
        previous = fresh
    check_everything(empty_cluster, agent, previous)

    pods.delete_all(admin)

    wait_ledger_empty(agent)


def test_the_burst_without_kubelets_pods_is_as_exact(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent, asked = start_agent(without=("nodes/pods",)), burst("blind")

    create_at_once(empty_cluster, asked)
    wait_all_running(empty_cluster, asked)

    scene = check_everything(empty_cluster, agent, asked)
    assert "pods" not in {each.source for each in scene.usage.containers}  # kubelet did refuse


def test_wrong_guesses_are_put_right_before_a_container_starts(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    """The API server cannot say for whom kubelet asks. Repair needs room on the GPU given, and here there is."""
    agent, asked = start_agent("--identity=apiserver", without=("nodes/pods",)), lookalikes("guess")

    create_at_once(empty_cluster, asked)
    wait_all_running(empty_cluster, asked)

    scene = check_everything(empty_cluster, agent, asked)
    assert {each.source for each in scene.usage.containers} == {"apiserver"}


def test_nothing_lands_on_a_gpu_that_fell_off_the_bus(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent, admin = start_agent(own=True), empty_cluster.admin
    blocks = blocks_of_each(agent.gpus.profile)
    lost = 3

    agent.gpus.lose(lost)
    wait_offered(admin, everything([count for minor, count in enumerate(blocks) if minor != lost]))
    asked = [GpuPod(f"whole-{number}", (GpuContainer("main", WHOLE, 0),)) for number in range(6)]
    asked += [share(f"share-{number}", 25, 20) for number in range(4)]
    create_at_once(empty_cluster, asked)
    wait_all_running(empty_cluster, asked)

    scene = check_everything(empty_cluster, agent, asked)
    used = {minor for view in scene.views.values() for minor in view.reachable_gpus}
    assert used == set(range(len(blocks))) - {lost}


def _make_refused_again(cluster: Cluster, asked: dict[str, GpuPod]) -> None:
    """Until every pod has been admitted: a refusal can come as late as the last of the burst is bound."""

    def all_run() -> bool:
        states = pods.states(cluster.admin)
        refused = [name for name, state in states.items() if state.phase == "Failed"]
        for name in refused:
            assert states[name].reason == "UnexpectedAdmissionError", states[name]
        pods.delete(cluster.admin, refused)
        pods.wait_gone(cluster.admin, refused)
        for name in refused:
            pods.create(cluster.admin, asked[name].manifest())
        return not refused and all(state.is_running for state in states.values())

    wait_until(
        all_run, "every pod is admitted", evidence=lambda: "\n".join(map(str, pods.states(cluster.admin).values()))
    )


def _generation(number: int) -> list[GpuPod]:
    init = (GpuContainer("first", 10, 4),)
    sidecar = (GpuContainer("side", 5, 3),)
    return [
        share(f"churn-{number}-a", 30, 20),
        share(f"churn-{number}-b", 45, 33),
        GpuPod(f"churn-{number}-c", (GpuContainer("main", 20, 10), GpuContainer("more", 7, 9)), init=init),
        GpuPod(f"churn-{number}-d", (GpuContainer("main", 12, 6),), sidecars=sidecar),
        GpuPod(f"churn-{number}-e", (GpuContainer("main", WHOLE, 0),)),
    ]
