"""A program that takes all it can get, in real containers: each is held to its share, and only vcuda does it."""

import json
from collections.abc import Sequence

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.e2e.conftest import StartAgent
from tests.e2e.node.agent import Agent
from tests.e2e.node.greedy import Got, GreedyPod, begin, hold, import_image
from tests.e2e.node.limits import BLOCK_BYTES
from tests.e2e.node.scene import wait_ledger_empty
from tests.e2e.node.usage import ContainerUsage
from tests.e2e.node.workload import WHOLE, GpuContainer
from tests.offered import blocks_of_each

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MIB = 1 << 20
SMALLEST = 2 * MIB  # of the program's blocks
POINTS = 3.0
REFUSAL = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture(scope="module", autouse=True)
def image(cluster: Cluster) -> None:
    import_image(cluster)


def start(cluster: Cluster, agent: Agent, asked: Sequence[GreedyPod]) -> None:
    """Until every process has its context; then all begin at once."""
    hold(agent.gpus)
    for pod in asked:
        pods.create(cluster.admin, pod.manifest(agent.gpus))
    pods.wait_running(cluster.admin, [pod.name for pod in asked])
    wanted = {pod.name: pod.processes for pod in asked}

    def ready() -> bool:
        return {each.pod: each.processes for each in agent.usage().containers} == wanted

    wait_until(
        ready,
        "each container's processes have their contexts",
        evidence=lambda: "\n".join(
            [str(agent.usage().containers), *(pods.log(cluster.admin, pod.name, pod.slice.name) for pod in asked)]
        ),
    )
    begin(agent.gpus)


def end(cluster: Cluster, asked: Sequence[GreedyPod]) -> dict[str, list[Got]]:
    pods.wait_for(
        cluster.admin,
        [pod.name for pod in asked],
        lambda state: state.phase in ("Succeeded", "Failed"),
        what="over",
    )
    return {pod.name: pod.got(cluster.admin) for pod in asked}


def leave_nothing(cluster: Cluster, agent: Agent) -> None:
    pods.delete_all(cluster.admin)
    wait_ledger_empty(agent)
    assert not [path for path in agent.grants.rglob("*") if path.name != ".boot" and path.is_file()]


def entry(agent: Agent, pod: GreedyPod) -> ContainerUsage:
    return next(each for each in agent.usage().containers if each.pod == pod.name)


def held_on(agent: Agent, uuid: str) -> list[int]:
    """Bytes of each process on a GPU, in the driver's own books."""
    gpus = json.loads(agent.gpus.command("show", "--json"))["gpus"]
    (gpu,) = [gpu for gpu in gpus if gpu["uuid"] == uuid]
    return sorted(process["memory_mib"] * MIB for process in gpu["processes"])


def check_memory(pod: GreedyPod, got: Sequence[Got]) -> None:
    limit = pod.slice.blocks * BLOCK_BYTES
    assert {each.total_bytes for each in got} == {limit}
    assert {each.refusal for each in got} == {REFUSAL}
    for each in got:
        assert each.nvml is not None
        assert each.nvml.total_bytes == limit
        assert each.nvml.used_bytes <= limit
        assert each.nvml.processes == pod.processes


def wait_held_back(agent: Agent, pod: GreedyPod) -> None:
    wait_until(
        lambda: (entry(agent, pod).gpus[0].throttled_seconds or 0) > 0,
        f"{pod.name} is told to be held back",
        evidence=lambda: str(entry(agent, pod)),
    )


def check_time(pod: GreedyPod, percent: float) -> None:
    """A busy machine keeps the program from its share; tests marked realtime measure that it gets all of it."""
    assert pod.slice.cores / 2 <= percent <= pod.slice.cores + POINTS


def test_two_containers_on_one_gpu_are_each_held_to_their_own(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent = start_agent()
    asked = [
        GreedyPod("thirty", GpuContainer("main", 30, 8), seconds=6),
        GreedyPod("seventy", GpuContainer("main", 70, 16), seconds=6),
    ]
    limits = [pod.slice.blocks * BLOCK_BYTES for pod in asked]
    start(empty_cluster, agent, asked)

    (gpu,) = {share.uuid for pod in asked for share in entry(agent, pod).gpus}
    for pod, limit in zip(asked, limits, strict=True):
        wait_held_back(agent, pod)
        seen = entry(agent, pod)
        (share,) = seen.gpus
        assert share.memory_used_bytes is not None
        assert share.memory_overhead_bytes is not None
        assert limit - SMALLEST <= share.memory_used_bytes <= limit
        assert 0 < share.memory_overhead_bytes < limit
        assert share.memory_refusals
        assert (seen.processes, seen.over_limit) == (1, ())
    held = held_on(agent, gpu)
    assert [limit - SMALLEST <= bytes_ <= limit for bytes_, limit in zip(held, limits, strict=True)] == [True, True]

    for pod, got in zip(asked, end(empty_cluster, asked).values(), strict=True):
        check_memory(pod, got)
        (one,) = got
        assert one.got_bytes == one.free_bytes // SMALLEST * SMALLEST
        check_time(pod, one.share_percent)
    leave_nothing(empty_cluster, agent)


def test_eight_processes_of_a_container_share_one_budget(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent = start_agent()
    pod = GreedyPod("eight", GpuContainer("main", 40, 32), seconds=6, processes=8)
    start(empty_cluster, agent, [pod])

    (share,) = entry(agent, pod).gpus
    wait_until(
        lambda: (entry(agent, pod).gpus[0].throttled_seconds or 0) > 0,
        "it is told to be held back",
    )
    held = held_on(agent, share.uuid)
    limit = pod.slice.blocks * BLOCK_BYTES
    assert len(held) == pod.processes
    assert limit - 8 * SMALLEST <= sum(held) <= limit
    assert entry(agent, pod).over_limit == ()

    got = end(empty_cluster, [pod])[pod.name]
    assert len(got) == pod.processes
    check_memory(pod, got)
    check_time(pod, sum(each.share_percent for each in got))
    leave_nothing(empty_cluster, agent)


def test_a_whole_gpu_comes_with_the_untouched_driver(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent = start_agent()
    pod = GreedyPod("whole", GpuContainer("main", WHOLE, 0), seconds=1)
    start(empty_cluster, agent, [pod])

    (got,) = end(empty_cluster, [pod])[pod.name]
    (blocks,) = set(blocks_of_each(agent.gpus.profile))
    assert got.nvml is not None
    assert got.nvml.total_bytes > blocks * BLOCK_BYTES  # the driver's own memory included
    assert got.got_bytes > got.total_bytes - 1024 * MIB  # but for the context
    assert got.share_percent > 50  # nothing limits it; a busy machine alone may take a part of the one second
    leave_nothing(empty_cluster, agent)
