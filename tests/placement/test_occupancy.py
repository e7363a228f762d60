"""Kubelet's arithmetic: what init, sidecar and app containers take together, and what is left for the next."""

from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import Health
from deviceplugin.model.request import Request
from deviceplugin.placement.fit import GpuAmount
from deviceplugin.placement.snapshot import occupied, snapshot_for
from tests.placement.nodes import free_for, gpu, node_of

INIT, SIDECAR, APP, UNKNOWN = ContainerRole.INIT, ContainerRole.SIDECAR, ContainerRole.APP, ContainerRole.UNKNOWN
BLOCKS = 40


def held(pod: str, role: ContainerRole, cores: int, blocks: int = 1, *, at: int = 0, minor: int = 0) -> Allocation:
    owner = ContainerRef(PodRef(PodUid(pod), "default", pod), "c")
    return Allocation(owner, role, Request(cores, blocks), (GpuShare(gpu(minor).uuid, cores, blocks),), at)


def test_what_a_gpu_gives_is_counted_as_kubelet_counts() -> None:
    """What tests/placement/test_occupancy_properties.py does not draw, and one of each kind that it does."""
    init, app = held("a", INIT, 60, 4), held("a", APP, 20, 9)
    cases = {
        "init containers leave before the apps": ([init, app], GpuAmount(60, 9)),
        "pods add up whatever their role": ([init, held("b", APP, 20)], GpuAmount(80, 5)),
        "an earlier sidecar runs beside an init container, a later one does not": (
            [held("a", SIDECAR, 30), held("a", INIT, 80, at=1), held("a", SIDECAR, 10, at=2), held("a", APP, 60)],
            GpuAmount(110, 3),
        ),
        "in one place the sidecar counts as the earlier one": (
            [held("a", INIT, 60), held("a", SIDECAR, 10), held("a", APP, 20)],
            GpuAmount(70, 2),
        ),
        "what nobody knows counts beside everything": (
            [held("a", INIT, 60), held("a", UNKNOWN, 10), held("a", APP, 20)],
            GpuAmount(70, 2),
        ),
    }
    expected = {name: {gpu(0).uuid: total} for name, (_, total) in cases.items()}
    assert {name: occupied(held) for name, (held, _) in cases.items()} == expected
    assert {name: occupied(reversed(held)) for name, (held, _) in cases.items()} == expected


def test_every_gpu_is_counted_for_itself() -> None:
    parts = (GpuShare(gpu(0).uuid, 100, 40), GpuShare(gpu(1).uuid, 100, 40))
    linked = Allocation(held("a", APP, 200).owner, APP, Request(200, 0), parts)
    assert occupied([linked, held("a", INIT, 30, minor=1), held("b", APP, 7, 3, minor=2)]) == {
        gpu(0).uuid: GpuAmount(100, 40),
        gpu(1).uuid: GpuAmount(100, 40),
        gpu(2).uuid: GpuAmount(7, 3),
    }
    assert occupied([]) == {}


def test_a_further_container_may_have_what_does_not_run_beside_it() -> None:
    allocations = [held("a", INIT, 50, at=1), held("a", SIDECAR, 10, at=3), held("a", APP, 20)]
    free = {
        ("new", APP, 0): 100 - 50,  # another pod sees all of it
        ("a", INIT, 2): 100,  # beside no later sidecar
        ("a", APP, 1): 100 - 10 - 20,
        ("a", UNKNOWN, 0): 100 - 50,  # beside the largest of all
    }
    views = {each: free_for(node_of(2, BLOCKS), allocations, PodUid(each[0]), *each[1:]).gpus[0] for each in free}
    assert {each: view.free_cores for each, view in views.items()} == free


def test_a_gpu_is_whole_for_a_container_where_nothing_runs_beside_it() -> None:
    """GPU 0 was a's init container's, GPU 1 has an app container of b."""
    allocations = [held("a", INIT, 100, BLOCKS), held("b", APP, 10, minor=1)]
    expected = {
        ("a", APP): [True, False],
        ("b", APP): [False, False],
        ("b", INIT): [False, True],
        ("c", APP): [False, False],
    }
    views = {(pod, role): free_for(node_of(2, BLOCKS), allocations, PodUid(pod), role).gpus for pod, role in expected}
    assert {asked: [view.capacity.is_whole for view in found] for asked, found in views.items()} == expected


def test_a_snapshot_has_every_gpu_of_the_inventory_with_its_health_and_processes() -> None:
    ill = {gpu(1).uuid: Health(healthy=False, reason="XID 79")}
    gone = held("a", APP, 10, minor=9)
    views = snapshot_for(node_of(2, BLOCKS, health=ill), [gone], processes={gpu(0).uuid: 3}).gpus
    assert [(view.gpu.minor, view.processes, view.health) for view in views] == [
        (0, 3, Health()),
        (1, 0, ill[gpu(1).uuid]),
    ]


def test_a_gpu_that_was_over_committed_from_outside_has_nothing_free_and_never_less() -> None:
    view = snapshot_for(node_of(2, BLOCKS), [held("a", APP, 80, 30), held("b", APP, 80, 30)]).gpus[0]
    assert (view.free_cores, view.free_blocks) == (0, 0)
