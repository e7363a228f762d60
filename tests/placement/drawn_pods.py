"""Pods for the tests of placement: drawn ones, written ones, and nodes to put them on."""

from hypothesis import strategies as st

from deviceplugin.model.allocation import ContainerRole, PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import NO_PREFERENCES, GpuFilter, GpuPolicy, Preferences
from deviceplugin.model.request import Request
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.snapshot import Snapshot
from deviceplugin.structs import replace
from tests.placement.nodes import snapshots

INIT, SIDECAR, APP = ContainerRole.INIT, ContainerRole.SIDECAR, ContainerRole.APP
REF = PodRef(PodUid("uid-1"), "default", "trainer")
SHARES = st.builds(Request, st.sampled_from([1, 20, 30, 50, 70, 99]), st.sampled_from([1, 16, 40, 64, 200]))
PARTED = st.builds(
    lambda cores, blocks, parts: Request(cores * parts, blocks * parts, parts),
    st.sampled_from([10, 40, 60]),
    st.sampled_from([1, 16, 64]),
    st.integers(2, 3),
)
WHOLE = st.builds(Request, st.sampled_from([100, 200, 300]), st.sampled_from([0, 0, 64, 130]))
REQUESTS = SHARES | PARTED | WHOLE
MODELS = ("Test", "Tesla T4", "NVIDIA A100-SXM4-80GB")


def pod(*containers: tuple[ContainerRole, int, Request], preferences: Preferences = NO_PREFERENCES) -> PodRequest:
    named = (ContainerRequest(f"{role.value}-{index}", role, index, request) for role, index, request in containers)
    return PodRequest(REF, tuple(named), preferences)


def app(request: Request, *, preferences: Preferences = NO_PREFERENCES) -> PodRequest:
    return pod((APP, 0, request), preferences=preferences)


@st.composite
def filters(draw: st.DrawFn) -> GpuFilter:
    """Mostly none."""
    uuids = st.frozensets(st.integers(0, 8).map(lambda minor: GpuUuid(f"GPU-{minor}")), max_size=4)
    words = st.lists(st.sampled_from(["t4", "A100", "test", "H100"]), max_size=2).map(tuple)
    if draw(st.integers(0, 2)):
        return GpuFilter(one_numa=draw(st.booleans()))
    return GpuFilter(draw(words), draw(words), draw(uuids), draw(uuids), draw(st.booleans()))


@st.composite
def pods(draw: st.DrawFn, *, containers: int = 5) -> PodRequest:
    """Init containers and sidecars, then app containers; at least one."""
    first = draw(st.lists(st.tuples(st.sampled_from([INIT, INIT, SIDECAR]), REQUESTS), max_size=containers - 1))
    apps = draw(st.lists(REQUESTS, min_size=0 if first else 1, max_size=containers - len(first)))
    listed = [(role, index, request) for index, (role, request) in enumerate(first)]
    listed += [(APP, index, request) for index, request in enumerate(apps)]
    policy = draw(st.none() | st.sampled_from(GpuPolicy))
    return pod(*listed, preferences=Preferences(gpu=policy, gpus=draw(filters())))


@st.composite
def states(draw: st.DrawFn, *, at_most: int = 6) -> NodeState:
    """Any snapshot, with several models and NUMA nodes, some GPUs cordoned."""
    drawn = draw(snapshots(at_most=at_most))
    models = st.sampled_from(MODELS)
    numa = st.sampled_from([0, 0, 1, None])
    views = tuple(replace(view, gpu=replace(view.gpu, model=draw(models), numa=draw(numa))) for view in drawn.gpus)
    cordoned = frozenset(view.gpu.uuid for view in views if draw(st.sampled_from([False] * 6 + [True])))
    share_mode = draw(st.sampled_from([True] * 9 + [False]))
    return NodeState("node-1", Snapshot(views, drawn.topology), share_mode=share_mode, cordoned=cordoned)
