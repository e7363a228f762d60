"""`still_fits` by the sums with the pod in them equals a count without the pod."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import ContainerRequest
from deviceplugin.model.request import Request
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.snapshot import occupied
from tests.cluster.extender.makers import node

BLOCKS = 64
UUIDS = [GpuUuid(f"GPU-a-{at}") for at in range(3)] + [GpuUuid("GPU-of-another-node")]
CORES = st.sampled_from([0, 10, 50, 60, 100])
MEMORY = st.sampled_from([0, 1, 32, 40, BLOCKS])


@st.composite
def holds(draw: st.DrawFn, number: int) -> PodHold:
    """A hold with any allocation; sometimes with an unlocated container."""
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
    node_info = NodeInfo("a", {})
    ill, cordon = draw(st.sets(st.integers(0, 2), max_size=1)), draw(st.sets(st.sampled_from(UUIDS[:3]), max_size=1))
    node_info.describe(node("a", 3, blocks=BLOCKS, ill=ill, cordon=cordon))
    for number in draw(st.lists(st.integers(0, 3), max_size=8)):
        held = draw(holds(number))
        node_info.put_hold(held)
        if draw(st.integers(0, 5)) == 0:
            node_info.release(held.pod.uid)
    return node_info


def fits_without_itself(node_info: NodeInfo, held: PodHold) -> bool:
    views = {view.gpu.uuid: view for view in node_info.state_without({held.pod.uid}).open_gpus.views}
    return all(
        uuid in views and use.cores <= views[uuid].free_cores and use.blocks <= views[uuid].free_blocks
        for uuid, use in occupied(held.allocations).items()
    )


@given(cache())
def test_it_is_as_if_the_node_was_counted_without_the_pod_and_suspect_where_the_sum_is_too_much(
    node_info: NodeInfo,
) -> None:
    for uid, held in node_info.holds.items():
        assert node_info.still_fits(uid) == fits_without_itself(node_info, held)
    use = occupied(one for held in node_info.holds.values() for one in held.allocations)
    too_much = [
        uuid for uuid in UUIDS[:3] if (sum_ := use.get(uuid)) and (sum_.cores > CORES_PER_GPU or sum_.blocks > BLOCKS)
    ]
    assert node_info.may_be_overcommitted == bool(too_much)


@given(cache(), st.data())
def test_what_is_only_known_better_leaves_the_node_as_it_is(node_info: NodeInfo, data: st.DataObject) -> None:
    """The state equals a recount, whichever part of it was kept."""
    for uid, held in tuple(node_info.holds.items()):
        before = node_info.state
        node_info.put_hold(
            PodHold(held.pod, "a", data.draw(st.sampled_from(HoldState)), held.allocations, held.unlocated)
        )
        if not any(each.unlocated for each in node_info.holds.values()):
            assert node_info.state is before, uid
