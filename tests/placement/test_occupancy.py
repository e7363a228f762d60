"""Kubelet's arithmetic: what init, sidecar and app containers take together, and what is left for the next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import CapacityError
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import Driver, GpuUuid, Health, Inventory
from deviceplugin.model.request import Request
from deviceplugin.placement.occupancy import Occupancy, occupied, snapshot_for
from deviceplugin.placement.place import place
from tests.placement.nodes import gpu, t6, topology

INIT, SIDECAR, APP = ContainerRole.INIT, ContainerRole.SIDECAR, ContainerRole.APP
BLOCKS = 40


def node(count: int = 2, *, health: dict[GpuUuid, Health] | None = None) -> Inventory:
    cards = tuple(gpu(minor, blocks=BLOCKS) for minor in range(count))
    return Inventory(cards, topology(count, t6), Driver("550.54.15", (12, 4)), health or {})


def held(pod: str, role: ContainerRole, cores: int, blocks: int = 1, *, minor: int = 0, name: str = "c") -> Allocation:
    owner = ContainerRef(PodRef(PodUid(pod), "default", pod), name)
    return Allocation(owner, role, Request(cores, blocks), (GpuShare(gpu(minor).uuid, cores, blocks),))


@pytest.mark.parametrize(
    ("allocations", "total"),
    [
        pytest.param([held("a", APP, 30, 4), held("a", APP, 20, 3)], Occupancy(50, 7), id="app containers add up"),
        pytest.param(
            [held("a", INIT, 30, 4), held("a", INIT, 20, 9)], Occupancy(30, 9), id="init containers take turns"
        ),
        pytest.param([held("a", INIT, 60, 4), held("a", APP, 20, 9)], Occupancy(60, 9), id="and leave before the apps"),
        pytest.param(
            [held("a", INIT, 60), held("a", SIDECAR, 10), held("a", APP, 20)], Occupancy(70, 2), id="sidecars stay"
        ),
        pytest.param(
            [held("a", SIDECAR, 10), held("a", SIDECAR, 5), held("a", APP, 20)], Occupancy(35, 3), id="all of them"
        ),
        pytest.param([held("a", INIT, 60), held("b", APP, 20)], Occupancy(80, 2), id="pods add up whatever their role"),
    ],
)
def test_what_a_gpu_gives_is_counted_as_kubelet_counts(allocations: list[Allocation], total: Occupancy) -> None:
    assert occupied(allocations) == {gpu(0).uuid: total}
    assert occupied(reversed(allocations)) == occupied(allocations)


def test_every_gpu_is_counted_for_itself() -> None:
    parts = (GpuShare(gpu(0).uuid, 100, 40), GpuShare(gpu(1).uuid, 100, 40))
    linked = Allocation(held("a", APP, 200).owner, APP, Request(200, 0), parts)
    assert occupied([linked, held("a", INIT, 30, minor=1), held("b", APP, 7, 3, minor=2)]) == {
        gpu(0).uuid: Occupancy(100, 40),
        gpu(1).uuid: Occupancy(100, 40),
        gpu(2).uuid: Occupancy(7, 3),
    }
    assert occupied([]) == {}


@pytest.mark.parametrize(
    ("pod", "role", "free"),
    [
        pytest.param("new", APP, 100 - 40, id="another pod sees all of it"),
        pytest.param(None, APP, 100 - 40, id="so does nobody in particular"),
        pytest.param("a", INIT, 100 - 10, id="an init container: beside the sidecar"),
        pytest.param("a", APP, 100 - 10 - 20, id="an app container: beside sidecar and apps, not beside init"),
        pytest.param("a", SIDECAR, 100 - 40, id="a sidecar: beside whatever is largest"),
    ],
)
def test_a_further_container_may_have_what_does_not_run_beside_it(
    pod: str | None, role: ContainerRole, free: int
) -> None:
    allocations = [held("a", INIT, 30), held("a", SIDECAR, 10), held("a", APP, 20)]
    view = snapshot_for(node(), allocations, pod=None if pod is None else PodUid(pod), role=role).gpus[0]
    assert view.free_cores == free


@pytest.mark.parametrize(
    ("pod", "role", "whole"),
    [("a", APP, [True, False]), ("b", APP, [False, False]), ("b", INIT, [False, True]), ("c", APP, [False, False])],
)
def test_a_gpu_is_whole_for_a_container_where_nothing_runs_beside_it(
    pod: str, role: ContainerRole, whole: list[bool]
) -> None:
    """GPU 0 was a's init container's, GPU 1 has an app container of b."""
    allocations = [held("a", INIT, 100, BLOCKS), held("b", APP, 10, minor=1)]
    views = snapshot_for(node(), allocations, pod=PodUid(pod), role=role).gpus
    assert [view.is_whole for view in views] == whole


def test_a_snapshot_has_every_gpu_of_the_inventory_with_its_health_and_processes() -> None:
    ill = {gpu(1).uuid: Health(healthy=False, reason="XID 79")}
    gone = held("a", APP, 10, minor=9)
    views = snapshot_for(node(2, health=ill), [gone], processes={gpu(0).uuid: 3}).gpus
    assert [(view.gpu.minor, view.processes, view.health) for view in views] == [
        (0, 3, Health()),
        (1, 0, ill[gpu(1).uuid]),
    ]


def test_a_gpu_that_was_over_committed_from_outside_has_nothing_free_and_never_less() -> None:
    view = snapshot_for(node(), [held("a", APP, 80, 30), held("b", APP, 80, 30)]).gpus[0]
    assert (view.free_cores, view.free_blocks) == (0, 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(ContainerRole),
        st.one_of(
            st.builds(Request, st.integers(1, 99), st.integers(1, BLOCKS)),
            st.builds(Request, st.sampled_from([100, 200, 300]), st.just(0)),
        ),
        st.none() | st.integers(0, 30),
    ),
    max_size=25,
)


@given(steps=STEPS)
def test_nothing_placed_here_ever_over_commits_a_gpu(
    steps: list[tuple[str, ContainerRole, Request, int | None]],
) -> None:
    """Each step places a further container; some steps first give back one that was placed before."""
    inventory = node(3)
    allocations: list[Allocation] = []
    for number, (pod, role, request, gives_back) in enumerate(steps):
        if gives_back is not None and allocations:
            del allocations[gives_back % len(allocations)]
        try:
            choice = place(request, snapshot_for(inventory, allocations, pod=PodUid(pod), role=role))
        except CapacityError:
            continue
        owner = held(pod, role, 1, name=f"c{number}").owner
        allocations.append(Allocation(owner, role, request, choice.shares))
        for card in inventory.gpus:
            total = occupied(allocations).get(card.uuid, Occupancy())
            assert total.cores <= 100
            assert total.blocks <= card.blocks


@given(steps=STEPS)
def test_what_is_refused_would_over_commit(steps: list[tuple[str, ContainerRole, Request, int | None]]) -> None:
    """The snapshot is exact: one core or block more than it says is too much, by the sum itself."""
    inventory = node(1)
    (card,) = inventory.gpus
    allocations: list[Allocation] = []
    for number, (pod, role, request, _) in enumerate(steps):
        (view,) = snapshot_for(inventory, allocations, pod=PodUid(pod), role=role).gpus
        for cores, blocks, fits in [
            (view.free_cores, view.free_blocks, True),
            (view.free_cores + 1, 0, False),
            (0, view.free_blocks + 1, False),
        ]:
            total = occupied([*allocations, held(pod, role, cores, blocks, name="probe")])[card.uuid]
            assert (total.cores <= 100 and total.blocks <= card.blocks) is fits
        if request.cores <= view.free_cores and request.blocks <= view.free_blocks:
            allocations.append(held(pod, role, request.cores, request.blocks, name=f"c{number}"))
