"""A node kept up to date pod by pod is the node calculated again from all its pods."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.request import Request
from deviceplugin.placement.node_state import NodeUsage, node_state
from sandbox.inventories import made_up_inventory

INVENTORY = made_up_inventory("node", gpus=3)
UUIDS = [gpu.uuid for gpu in INVENTORY.gpus] + [GpuUuid("GPU-of-another-node")]
PODS = [PodRef(PodUid(f"uid-{number}"), "default", f"pod-{number}") for number in range(4)]


@st.composite
def held(draw: st.DrawFn, pod: PodRef) -> tuple[Allocation, ...]:
    made = []
    for number in range(draw(st.integers(0, 3))):
        uuids = draw(st.lists(st.sampled_from(UUIDS), min_size=1, max_size=2, unique=True))
        cores, blocks = draw(st.integers(1, 100)), draw(st.integers(0, 200))
        shares = tuple(GpuShare(uuid, cores, blocks) for uuid in uuids)
        role = draw(st.sampled_from(ContainerRole))
        made.append(Allocation(ContainerRef(pod, f"c{number}"), role, Request(cores, blocks), shares, number))
    return tuple(made)


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[PodRef, tuple[Allocation, ...] | None]]:
    """None: the pod goes."""
    pods = draw(st.lists(st.sampled_from(PODS), max_size=12))
    return [(pod, draw(st.one_of(st.none(), held(pod)))) for pod in pods]


@given(changes(), st.sets(st.sampled_from([pod.uid for pod in PODS])))
def test_whatever_pods_come_and_go(
    told: list[tuple[PodRef, tuple[Allocation, ...] | None]], absent: set[PodUid]
) -> None:
    cordoned = frozenset(UUIDS[:1])
    tally = NodeUsage("node", INVENTORY, share_mode=False, cordoned=cordoned)
    there: dict[PodUid, tuple[Allocation, ...]] = {}
    for pod, allocations in told:
        if allocations is None:
            tally.release(pod.uid)
            there.pop(pod.uid, None)
        else:
            tally.hold(pod.uid, allocations)
            there[pod.uid] = allocations
    for without in (absent, set[PodUid]()):  # to imagine pods away leaves no trace
        left = [one for uid, each in there.items() if uid not in without for one in each]
        rebuilt = node_state("node", INVENTORY, left, share_mode=False, cordoned=cordoned)
        found = tally.state(without=without)
        assert found.snapshot == rebuilt.snapshot
        assert (found.name, found.share_mode, found.cordoned) == (rebuilt.name, rebuilt.share_mode, rebuilt.cordoned)
