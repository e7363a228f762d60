"""kube-scheduler's own choice for claims, as it was seen on the real one: the first GPU that fits, nodes by CPU and
memory alone, and every container's part held at once."""

from pathlib import Path

from deviceplugin.model.allocation import ContainerRole, PodRef, PodUid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuFilter, GpuPolicy, NodePolicy, Preferences
from deviceplugin.model.request import parse_request
from deviceplugin.placement.fit import NodeRejection
from deviceplugin.placement.node_state import NodeState, Spare, node_state
from deviceplugin.simulate.replay import SimulationPlan, replay
from deviceplugin.simulate.scene import read_scene
from deviceplugin.simulate.stock_scheduler import StockScheduler, first_fit
from sandbox.emulated_gpus import REPOSITORY
from tests.ledger.makers import BLOCKS, inventory, uuid

TRACES = REPOSITORY / "benchmarks" / "traces"
NOTHING = Spare(0, 0)


def pod(*cores: int, role: ContainerRole = ContainerRole.APP, wanted: GpuFilter | None = None) -> PodRequest:
    containers = tuple(
        ContainerRequest(f"c{at}", role, at, parse_request(each, 8 if each < 100 else 0))
        for at, each in enumerate(cores)
    )
    ref = PodRef(PodUid("p"), "default", "p")
    return PodRequest(ref, containers, Preferences(gpus=wanted) if wanted else Preferences())


def node(name: str = "a", gpus: int = 2, spare: Spare | None = None) -> NodeState:
    return node_state(name, inventory(gpus), ()).with_spare(spare)


def minors(request: PodRequest, state: NodeState) -> list[list[int]] | None:
    found = first_fit(request, state)
    if found is None:
        return None
    by_uuid = {uuid(minor): minor for minor in range(8)}
    return [[by_uuid[share.uuid] for share in each.shares] for each in found.allocations]


def choose(scheduler: StockScheduler, request: PodRequest, *states: NodeState, needs: Spare = NOTHING) -> str | None:
    return scheduler.choose(request, states, needs=needs).node


def test_the_first_gpu_that_fits_is_taken() -> None:
    expected = {
        (20,): [[0]],
        (60, 60): [[0], [1]],
        (60, 40): [[0], [0]],
        (200,): [[0, 1]],
        (20, 100): [[0], [1]],
        (100, 20): [[0], [1]],
        (60, 60, 60): None,
        (300,): None,
    }
    assert {cores: minors(pod(*cores), node()) for cores in expected} == expected


def test_init_containers_hold_their_part_beside_the_others() -> None:
    assert minors(pod(80, 80, 80, role=ContainerRole.INIT), node()) is None


def test_selectors_are_obeyed() -> None:
    assert minors(pod(20, wanted=GpuFilter(uuids=frozenset({uuid(1)}))), node()) == [[1]]


def test_nodes_are_chosen_by_cpu_and_memory_and_never_by_gpus() -> None:
    """So shares are spread over the nodes, where binpack would fill one."""
    full = node("full", spare=Spare(1000, 1000))
    empty = node("empty", spare=Spare(8000, 8000))
    scheduler = StockScheduler(1)
    for state in (full, empty):  # what they have in all is what they had first
        choose(scheduler, pod(20), state)
    used = full.with_spare(Spare(100, 100))
    assert choose(scheduler, pod(20), used, empty, needs=Spare(50, 50)) == "empty"


def test_a_node_without_cpu_is_refused_for_that() -> None:
    found = StockScheduler(1).choose(pod(20), [node(spare=Spare(10, 10))], needs=Spare(11, 0))
    assert (found.node, dict(found.refused)) == (None, {"a": NodeRejection.SPARE})


def test_what_was_taken_is_not_given_again() -> None:
    state, scheduler = node(gpus=1), StockScheduler(1)
    found = scheduler.choose(pod(60), [state], needs=NOTHING)
    assert found.placed is not None
    assert choose(scheduler, pod(60), state.with_pod(found.placed.allocations, needs=NOTHING)) is None
    assert BLOCKS > 16


def test_a_policy_of_ours_allocates_more_of_the_example(tmp_path: Path) -> None:
    """The sentence of docs/claims.md."""
    scene = read_scene(TRACES / "example-nodes.csv", TRACES / "example-pods.csv")
    plans = [
        SimulationPlan(NodePolicy.FRAGMENTATION, GpuPolicy.BINPACK, 130),
        SimulationPlan(NodePolicy.BINPACK, GpuPolicy.BINPACK, 130),
        SimulationPlan(NodePolicy.BINPACK, GpuPolicy.BINPACK, 130, by_claims=True),
    ]
    figures = [round(100 * replay(scene, plan, seed=1).at(130).allocated, 1) for plan in plans]
    said = (REPOSITORY / "docs" / "claims.md").read_text()
    assert "{} %, `binpack` {} %, claims {} %".format(*figures) in said
