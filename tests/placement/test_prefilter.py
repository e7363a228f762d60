"""The prefilter says no only where the pod cannot fit, and for one container exactly there."""

from typing import Any

from hypothesis import given

from deviceplugin.errors import CapacityError, RequestError
from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuFilter, Preferences
from deviceplugin.model.request import Request
from deviceplugin.placement.fit import NodeRejection
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.pod import place_pod
from deviceplugin.placement.prefilter import Prefilter, prefilter
from deviceplugin.placement.snapshot import Snapshot
from deviceplugin.structs import replace
from sandbox.gpu_links import t6
from tests.placement.drawn_pods import APP, INIT, REF, app, pod, pods, states
from tests.placement.nodes import gpu, snapshot


def fits(asked: PodRequest, state: NodeState) -> bool:
    try:
        place_pod(asked, state)
    except (CapacityError, RequestError):
        return False
    return True


def emptied(state: NodeState) -> NodeState:
    """The same node without any pod."""
    views = tuple(replace(view, free_cores=100, free_blocks=view.gpu.blocks) for view in state.snapshot.gpus)
    return replace(state, snapshot=Snapshot(views, state.snapshot.topology))


@given(asked=pods(containers=1), state=states())
def test_for_one_container_the_prefilter_is_exact(asked: PodRequest, state: NodeState) -> None:
    assert (prefilter(asked, state) is None) == fits(asked, state)


@given(asked=pods(), state=states())
def test_the_prefilter_never_turns_away_what_fits(asked: PodRequest, state: NodeState) -> None:
    if fits(asked, state):
        assert prefilter(asked, state) is None


@given(asked=pods(containers=1), state=states())
def test_a_reason_is_resolvable_exactly_where_the_empty_node_would_serve(asked: PodRequest, state: NodeState) -> None:
    reason = prefilter(asked, state)
    if reason is not None:
        assert reason.resolvable == fits(asked, emptied(state))


@given(asked=pods(), state=states())
def test_what_is_unresolvable_does_not_fit_on_the_empty_node(asked: PodRequest, state: NodeState) -> None:
    reason = prefilter(asked, state)
    if reason is not None and not reason.resolvable:
        assert not fits(asked, emptied(state))


@given(asked=pods(), one=states(), other=states())
def test_a_prefilter_that_has_seen_other_nodes_says_the_same(
    asked: PodRequest, one: NodeState, other: NodeState
) -> None:
    used = Prefilter(asked)
    assert (used(one), used(other), used(one)) == (
        prefilter(asked, one),
        prefilter(asked, other),
        prefilter(asked, one),
    )


def test_the_reason_is_the_nearest_one() -> None:
    def on(count: int, **more: Any) -> NodeState:
        return NodeState("n", snapshot(count, **more))

    def apps(*requests: Request) -> PodRequest:
        return pod(*((APP, at, request) for at, request in enumerate(requests)))

    share, half, exclusive = app(Request(30, 8)), Request(60, 8), gpu(0, mode=ComputeMode.EXCLUSIVE_PROCESS)
    one, two = Request(100, 0), Request(200, 0)
    cases = [
        (share, on(0), NodeRejection.NO_GPU),
        (share, on(1, ill={0: "XID 79"}), NodeRejection.NO_OPEN_GPU),
        (share, replace(on(1), share_mode=False), NodeRejection.NO_SHARES),
        (share, on(1, used={0: (80, 0)}), NodeRejection.CORES),
        (share, on(1, used={0: (10, 319)}), NodeRejection.MEMORY),
        (share, on(1, gpus={0: exclusive}), NodeRejection.TOO_FEW),
        (app(Request(30, 400)), on(4), NodeRejection.TOO_SMALL),
        (app(Request(60, 16, parts=2)), on(2, used={0: (80, 0)}), NodeRejection.SHARES),
        (app(two), on(2, used={0: (80, 0)}), NodeRejection.WHOLE),
        (app(Request(400, 0)), on(2), NodeRejection.TOO_FEW),
        (apps(one, two), on(2), NodeRejection.POD_TOO_LARGE),
        (apps(half, half), on(1), NodeRejection.POD_TOO_LARGE),
        (apps(half, Request(30, 8)), on(1, used={0: (30, 0)}), NodeRejection.POD),
        (apps(one, one), on(3, used={1: (50, 0), 2: (50, 0)}), NodeRejection.POD),
        (pod((INIT, 0, half), (APP, 0, half)), on(1), None),
        (PodRequest(REF, ()), on(0), None),
    ]
    assert [prefilter(asked, state) for asked, state, _ in cases] == [reason for *_, reason in cases]


def test_the_pods_filter_has_reasons_of_its_own() -> None:
    state = NodeState("n", snapshot(2, t6, gpus={0: gpu(0, numa=0), 1: gpu(1, numa=1)}))
    expected = {
        GpuFilter(models=("H100",)): NodeRejection.MODEL,
        GpuFilter(not_models=("test",)): NodeRejection.MODEL,
        GpuFilter(uuids=frozenset({gpu(9).uuid})): NodeRejection.UNWANTED,
        GpuFilter(uuids=frozenset({gpu(1).uuid})): NodeRejection.TOO_FEW,
        GpuFilter(one_numa=True): NodeRejection.TOO_FEW_ON_NUMA,
        GpuFilter(models=("test",)): None,
    }
    pods = {wanted: app(Request(200, 0), preferences=Preferences(gpus=wanted)) for wanted in expected}
    assert {wanted: prefilter(asked, state) for wanted, asked in pods.items()} == expected


def test_reasons_are_constant_texts_that_an_event_can_group() -> None:
    texts = [reason.value for reason in NodeRejection]
    assert len(set(texts)) == len(texts)
    assert all(len(text) < 90 and "\n" not in text for text in texts)
