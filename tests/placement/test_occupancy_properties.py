"""The sums of `placement.occupancy` are those of a kubelet that runs the pods; nothing placed on them is too much."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import CapacityError
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.request import Request
from deviceplugin.placement.fit import GpuAmount
from deviceplugin.placement.pod import place
from deviceplugin.placement.snapshot import occupied
from deviceplugin.structs import replace
from tests.placement.nodes import free_for, node_of

INIT, SIDECAR, APP, UNKNOWN = ContainerRole.INIT, ContainerRole.SIDECAR, ContainerRole.APP, ContainerRole.UNKNOWN
BLOCKS = 40
NOTHING = GpuAmount()


ONE = node_of(1, BLOCKS)
(CARD,) = ONE.gpus


def share(pod: str, role: ContainerRole, index: int, size: tuple[int, int]) -> Allocation:
    owner = ContainerRef(PodRef(PodUid(pod), "default", pod), f"{role.value}-{index}")
    return Allocation(owner, role, Request(*size), (GpuShare(CARD.uuid, *size),), index)


SIZES = st.tuples(st.integers(1, 60), st.integers(1, 25))


@st.composite
def pods(draw: st.DrawFn, name: str) -> list[Allocation]:
    """The containers of one pod on one GPU, in kubelet's order; places in between are containers without a GPU."""
    init = draw(st.lists(st.none() | st.tuples(st.sampled_from([INIT, SIDECAR]), SIZES), max_size=6))
    apps = draw(st.lists(st.none() | SIZES, max_size=3))
    listed = [share(name, each[0], index, each[1]) for index, each in enumerate(init) if each]
    return listed + [share(name, APP, index, size) for index, size in enumerate(apps) if size]


def highest(pod: list[Allocation]) -> GpuAmount:
    """Kubelet runs the pod: each init container to its end, sidecars from their turn on, then all app containers."""
    running: list[Allocation] = []
    peak = NOTHING
    for container in [each for each in pod if each.role is not APP]:
        peak |= running_now([*running, container])
        if container.role is SIDECAR:
            running.append(container)
    return peak | running_now([*running, *(each for each in pod if each.role is APP)])


def running_now(containers: list[Allocation]) -> GpuAmount:
    parts = [part for each in containers for part in each.shares]
    return GpuAmount(sum(part.cores for part in parts), sum(part.blocks for part in parts))


def fits(*pods_: list[Allocation]) -> bool:
    total = sum((highest(pod) for pod in pods_), NOTHING)
    return total.cores <= 100 and total.blocks <= BLOCKS


@given(a=pods("a"), b=pods("b"), data=st.data())
def test_the_sum_is_what_kubelet_would_run_at_worst_in_whatever_order_it_is_added_up(
    a: list[Allocation], b: list[Allocation], data: st.DataObject
) -> None:
    mixed = data.draw(st.permutations(a + b))
    assert occupied(mixed).get(CARD.uuid, NOTHING) == highest(a) + highest(b)


@given(a=pods("a"), b=pods("b"), data=st.data())
def test_a_snapshot_offers_exactly_what_kubelet_could_run_in_addition(
    a: list[Allocation], b: list[Allocation], data: st.DataObject
) -> None:
    """One container of pod a is left out and placed again: in cores and in blocks, no more than is offered fits."""
    a = a or [share("a", APP, 0, (1, 1))]
    place_ = data.draw(st.integers(0, len(a) - 1))
    absent = a[place_]
    rest = data.draw(st.permutations([each for each in a if each is not absent] + b))

    def with_size(cores: int, blocks: int) -> list[Allocation]:
        return [*a[:place_], share("a", absent.role, absent.index, (cores, blocks)), *a[place_ + 1 :]]

    (view,) = free_for(ONE, rest, PodUid("a"), absent.role, absent.index).gpus
    if fits(with_size(0, 0), b):
        assert fits(with_size(view.free_cores, view.free_blocks), b)
    assert not fits(with_size(view.free_cores + 1, 0), b)
    assert not fits(with_size(0, view.free_blocks + 1), b)


@given(a=pods("a"), b=pods("b"), data=st.data())
def test_what_is_not_known_of_a_container_only_ever_counts_too_much(
    a: list[Allocation], b: list[Allocation], data: st.DataObject
) -> None:
    """Rebuilt without its pod; or from a journal that names no places: then the whole pod's."""
    lost = data.draw(st.lists(st.booleans(), min_size=len(a), max_size=len(a)))
    rebuilt = [replace(each, role=UNKNOWN, index=0) if gone else each for each, gone in zip(a, lost, strict=True)]
    placeless = [replace(each, index=0) for each in a]
    exact = highest(a) + highest(b)
    for vague in (rebuilt, placeless):
        counted = occupied(vague + b).get(CARD.uuid, NOTHING)
        assert counted | exact == counted


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(ContainerRole),
        st.integers(0, 5),
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
    steps: list[tuple[str, ContainerRole, int, Request, int | None]],
) -> None:
    """Each step places a further container, in any place; some steps first give back one that was placed before."""
    inventory = node_of(3, BLOCKS)
    allocations: list[Allocation] = []
    for pod, role, index, request, gives_back in steps:
        if gives_back is not None and allocations:
            del allocations[gives_back % len(allocations)]
        try:
            choice = place(request, free_for(inventory, allocations, PodUid(pod), role, index))
        except CapacityError:
            continue
        owner = share(pod, role, index, (1, 1)).owner
        allocations.append(Allocation(owner, role, request, choice.shares, index))
        for card in inventory.gpus:
            total = occupied(allocations).get(card.uuid, NOTHING)
            assert total.cores <= 100
            assert total.blocks <= card.blocks
