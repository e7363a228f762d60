"""Whether what a pod holds is still there: asked of the sums with the pod in them, it is as if counted without it."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import ContainerRequest
from deviceplugin.model.request import Request
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.occupancy import occupied
from tests.cluster.extender.makers import node

BLOCKS = 64
UUIDS = [GpuUuid(f"GPU-a-{at}") for at in range(3)] + [GpuUuid("GPU-of-another-node")]
CORES = st.sampled_from([0, 10, 50, 60, 100])
MEMORY = st.sampled_from([0, 1, 32, 40, BLOCKS])


@st.composite
def holds(draw: st.DrawFn, number: int) -> PodHold:
    """Of whatever somebody may have written; now and then of a container of which nobody knows where it is."""
    pod = PodRef(PodUid(f"uid-{number}"), "d", f"pod-{number}")
    made = []
    for at in range(draw(st.integers(0, 3))):
        uuids = draw(st.lists(st.sampled_from(UUIDS), min_size=1, max_size=2, unique=True))
        shares = tuple(GpuShare(uuid, draw(CORES), draw(MEMORY)) for uuid in uuids)
        role = draw(st.sampled_from(ContainerRole))
        made.append(Allocation(ContainerRef(pod, f"c{at}"), role, Request(10, 1), shares, at))
    lost = (ContainerRequest("lost", ContainerRole.APP, 7, Request(30, 8)),) if draw(st.integers(0, 5)) == 0 else ()
    return PodHold(pod, "a", draw(st.sampled_from(HoldState)), tuple(made), lost)


@st.composite
def cache(draw: st.DrawFn) -> NodeInfo:
    book = NodeInfo("a")
    ill, cordon = draw(st.sets(st.integers(0, 2), max_size=1)), draw(st.sets(st.sampled_from(UUIDS[:3]), max_size=1))
    book.describe(node("a", 3, blocks=BLOCKS, ill=ill, cordon=cordon))
    for number in draw(st.lists(st.integers(0, 3), max_size=8)):
        held = draw(holds(number))
        book.put_hold(held)
        if draw(st.integers(0, 5)) == 0:
            book.release(held.pod.uid)
    return book


def fits_without_itself(book: NodeInfo, held: PodHold) -> bool:
    views = {view.gpu.uuid: view for view in book.state_without({held.pod.uid}).open_gpus.views}
    return all(
        uuid in views and use.cores <= views[uuid].free_cores and use.blocks <= views[uuid].free_blocks
        for uuid, use in occupied(held.allocations).items()
    )


@given(cache())
def test_it_is_as_if_the_node_was_counted_without_the_pod(book: NodeInfo) -> None:
    for uid, held in book.holds.items():
        assert book.still_fits(uid) == fits_without_itself(book, held)


@given(cache())
def test_a_node_is_suspect_where_the_sum_of_all_is_too_much(book: NodeInfo) -> None:
    use = occupied(one for held in book.holds.values() for one in held.allocations)
    too_much = [
        uuid for uuid in UUIDS[:3] if (held := use.get(uuid)) and (held.cores > CORES_PER_GPU or held.blocks > BLOCKS)
    ]
    assert book.may_be_overcommitted == bool(too_much)


@given(cache(), st.data())
def test_what_is_only_known_better_leaves_the_node_as_it_is(book: NodeInfo, data: st.DataObject) -> None:
    """The state says the same as one that is counted anew, whichever part of it was kept."""
    for uid, held in tuple(book.holds.items()):
        before = book.state
        book.put_hold(PodHold(held.pod, "a", data.draw(st.sampled_from(HoldState)), held.allocations, held.unlocated))
        if not any(each.unlocated for each in book.holds.values()):
            assert book.state is before, uid
