"""Kubelet's arithmetic: what init, sidecar and app containers take together, and what is left for the next."""

from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import Driver, GpuUuid, Health, Inventory
from deviceplugin.model.request import Request
from deviceplugin.placement.fit import GpuAmount
from deviceplugin.placement.occupancy import occupied, snapshot_for
from sandbox.gpu_links import t6, topology
from tests.placement.nodes import free_for, gpu

INIT, SIDECAR, APP, UNKNOWN = ContainerRole.INIT, ContainerRole.SIDECAR, ContainerRole.APP, ContainerRole.UNKNOWN
BLOCKS = 40


def node(count: int = 2, *, health: dict[GpuUuid, Health] | None = None) -> Inventory:
    cards = tuple(gpu(minor, blocks=BLOCKS) for minor in range(count))
    return Inventory(cards, topology(count, t6), Driver("550.54.15", (12, 4)), health or {})


def held(pod: str, role: ContainerRole, cores: int, blocks: int = 1, *, at: int = 0, minor: int = 0) -> Allocation:
    owner = ContainerRef(PodRef(PodUid(pod), "default", pod), "c")
    return Allocation(owner, role, Request(cores, blocks), (GpuShare(gpu(minor).uuid, cores, blocks),), at)


def test_what_a_gpu_gives_is_counted_as_kubelet_counts() -> None:
    cases = {
        "app containers add up": ([held("a", APP, 30, 4), held("a", APP, 20, 3)], GpuAmount(50, 7)),
        "init containers take turns": ([held("a", INIT, 30, 4), held("a", INIT, 20, 9)], GpuAmount(30, 9)),
        "and leave before the apps": ([held("a", INIT, 60, 4), held("a", APP, 20, 9)], GpuAmount(60, 9)),
        "sidecars stay": ([held("a", SIDECAR, 10), held("a", SIDECAR, 5), held("a", APP, 20)], GpuAmount(35, 3)),
        "an init container runs beside an earlier sidecar": (
            [held("a", SIDECAR, 30), held("a", INIT, 80, at=1), held("a", APP, 60)],
            GpuAmount(110, 2),
        ),
        "and not beside a later one": (
            [held("a", INIT, 80), held("a", SIDECAR, 30, at=1), held("a", APP, 60)],
            GpuAmount(90, 2),
        ),
        "cores and blocks each have their own largest phase": (
            [
                held("a", INIT, 80, 9),
                held("a", SIDECAR, 20, at=1),
                held("a", INIT, 40, 30, at=2),
                held("a", SIDECAR, 10, at=3),
            ],
            GpuAmount(80, 31),
        ),
        "in one place the sidecar counts as the earlier one": (
            [held("a", INIT, 60), held("a", SIDECAR, 10), held("a", APP, 20)],
            GpuAmount(70, 2),
        ),
        "what nobody knows counts beside everything": (
            [held("a", INIT, 60), held("a", UNKNOWN, 10), held("a", APP, 20)],
            GpuAmount(70, 2),
        ),
        "pods add up whatever their role": ([held("a", INIT, 60), held("b", APP, 20)], GpuAmount(80, 2)),
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
    allocations = [
        held("a", INIT, 50, at=1),
        held("a", SIDECAR, 10, at=3),
        held("a", INIT, 30, at=5),
        held("a", APP, 20),
    ]
    cases = {
        "another pod sees all of it": ("new", APP, 0, 100 - 50),
        "an init container: beside no later sidecar": ("a", INIT, 2, 100),
        "but beside an earlier one": ("a", INIT, 4, 100 - 10),
        "an app container: beside sidecars and apps, not beside init": ("a", APP, 1, 100 - 10 - 20),
        "a sidecar: beside the largest init container after it": ("a", SIDECAR, 0, 100 - 50),
        "and the sidecars before that": ("a", SIDECAR, 2, 100 - 40),
        "and the apps": ("a", SIDECAR, 6, 100 - 30),
        "beside the largest of all where its role is unknown": ("a", UNKNOWN, 0, 100 - 50),
    }
    found = {
        name: free_for(node(), allocations, PodUid(pod), role, index).gpus[0].free_cores
        for name, (pod, role, index, _) in cases.items()
    }
    assert found == {name: free for name, (*_, free) in cases.items()}


def test_a_gpu_is_whole_for_a_container_where_nothing_runs_beside_it() -> None:
    """GPU 0 was a's init container's, GPU 1 has an app container of b."""
    allocations = [held("a", INIT, 100, BLOCKS), held("b", APP, 10, minor=1)]
    expected = {
        ("a", APP): [True, False],
        ("b", APP): [False, False],
        ("b", INIT): [False, True],
        ("c", APP): [False, False],
    }
    views = {(pod, role): free_for(node(), allocations, PodUid(pod), role).gpus for pod, role in expected}
    assert {asked: [view.is_whole for view in found] for asked, found in views.items()} == expected


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
