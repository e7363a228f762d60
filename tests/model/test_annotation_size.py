"""What is reserved for the annotations of a pod's GPUs is never less than what is written."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.bind import binding_annotations
from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.pod_request import room_for, size_of, size_with
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import BLOCK_BYTES, ResourceNames

NAMES = annotation_names("tencent.com")
UUIDS = [GpuUuid(f"GPU-{at:08x}-1111-2222-3333-{at:012x}") for at in range(16)]
GPUS = tuple(Gpu(uuid, at, 4000 + at, "H100", 400 * BLOCK_BYTES) for at, uuid in enumerate(UUIDS))
INVENTORY = Inventory(GPUS, Topology(tuple(range(16)), {}), Driver("550.1", (12, 4)))
POD = PodRef(PodUid("6f1fa3a5-9d1d-4a9b-9d0e-0f5c7f6a2b1c"), "d", "p")
_requests = st.integers(1, 16).map(lambda gpus: Request(100 * gpus, 65536 * gpus))
_containers = st.lists(
    st.tuples(st.text("abc-", min_size=1, max_size=63), _requests), max_size=40, unique_by=lambda one: one[0]
)


@given(_containers)
def test_what_a_binding_writes_fits_into_what_was_required(asked: list[tuple[str, Request]]) -> None:
    held = PodHold(
        POD,
        "n" * 253,
        HoldState.ASSUMED,
        tuple(
            Allocation(
                ContainerRef(POD, name),
                ContainerRole.APP,
                request,
                tuple(GpuShare(uuid, 100, 65536) for uuid in UUIDS[: request.gpus]),
                at,
            )
            for at, (name, request) in enumerate(asked)
        ),
    )
    written = size_of(binding_annotations(held, INVENTORY, now_ns=(1 << 63) - 1, names=ResourceNames()))
    assert written <= room_for(asked, NAMES)


def test_bytes_count_and_what_is_replaced_does_not() -> None:
    assert size_of({"a": "xyz", "ä": "ö"}) == 8
    assert size_with(108, {"a": "xyz", "b": "1"}, {"a": "x", "c": "22"}) == 108 - 4 + 2 + 3
