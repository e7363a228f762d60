"""Pods and nodes for the tests of the choice among nodes."""

from collections.abc import Mapping

from hypothesis import strategies as st

from deviceplugin.model.allocation import ContainerRole, PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import ANY_GPU, GpuFilter, GpuPolicy, NodePolicy, Preferences
from deviceplugin.model.request import Request
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.snapshot import Snapshot
from deviceplugin.structs import replace
from tests.placement.nodes import gpu, snapshot


def pod(
    *asked: tuple[int, int] | Request,
    node: NodePolicy | None = None,
    gpu_policy: GpuPolicy | None = None,
    gpus: GpuFilter = ANY_GPU,
    uid: str = "pod",
) -> PodRequest:
    """App containers that ask for (cores, blocks)."""
    requests = [each if isinstance(each, Request) else Request(*each) for each in asked]
    containers = (ContainerRequest(f"c{at}", ContainerRole.APP, at, request) for at, request in enumerate(requests))
    return PodRequest(PodRef(PodUid(uid), "ns", uid), tuple(containers), Preferences(node, gpu_policy, gpus))


def node(
    name: str,
    count: int = 4,
    *,
    used: Mapping[int, tuple[int, int]] | None = None,
    spare: Spare | None = None,
    blocks: int = 320,
    model: str = "Test",
    cordoned: tuple[int, ...] = (),
) -> NodeState:
    """Its GPUs are named after it."""
    cards = {minor: replace(gpu(minor, blocks=blocks), uuid=GpuUuid(f"{name}/{minor}"), model=model)
             for minor in range(count)}  # fmt: skip
    found: Snapshot = snapshot(count, used=used, gpus=cards)
    closed = frozenset(GpuUuid(f"{name}/{minor}") for minor in cordoned)
    return NodeState(name, found, spare=spare, cordoned=closed)


@st.composite
def some_nodes(draw: st.DrawFn) -> tuple[NodeState, ...]:
    """Up to six, many of them alike, used here and there."""
    nodes = []
    for number in range(draw(st.integers(1, 6))):
        count = draw(st.integers(0, 4))
        amounts = st.tuples(st.sampled_from([0, 30, 50, 100]), st.sampled_from([0, 40, 80]))
        used = draw(st.dictionaries(st.integers(0, max(0, count - 1)), amounts, max_size=count))
        nodes.append(
            node(
                f"node-{number}",
                count,
                used=used,
                blocks=draw(st.sampled_from([80, 160])),
                model=draw(st.sampled_from(["T4", "A100"])),
                spare=draw(st.sampled_from([None, Spare(8, 8), Spare(2, 2)])),
                cordoned=draw(st.sampled_from([(), (), (0,)])),
            )
        )
    return tuple(nodes)


requests = st.one_of(
    st.builds(Request, st.sampled_from([20, 30, 50, 80]), st.sampled_from([1, 20, 60, 100])),
    st.builds(lambda gpus: Request(100 * gpus, 0), st.integers(1, 3)),
    st.builds(lambda parts: Request(40 * parts, 10 * parts, parts), st.integers(2, 3)),
)
filters = st.sampled_from([
    GpuFilter(), GpuFilter(), GpuFilter(models=("a100",)), GpuFilter(not_uuids=frozenset({GpuUuid("node-0/0")})),
])  # fmt: skip
some_pods = st.builds(
    lambda asked, gpus, node, gpu_policy: pod(*asked, gpus=gpus, node=node, gpu_policy=gpu_policy),
    st.lists(requests, max_size=3),
    filters,
    st.sampled_from([None, *NodePolicy]),
    st.sampled_from([None, *GpuPolicy]),
)
