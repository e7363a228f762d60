"""Whole pods: never too much on a GPU, every option kept, a place found wherever there is one, always the same one."""

import random
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import CapacityError, RequestError, VcudaError
from deviceplugin.model.allocation import Allocation, ContainerRef
from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuFilter, GpuPolicy, Preferences
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.placement.assign import Unassigned, assign
from deviceplugin.placement.fit import GpuAmount
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.pod import PodChoice, place_pod, shares_of
from deviceplugin.placement.prefilter import prefilter
from deviceplugin.placement.snapshot import GpuView, Snapshot, occupied
from deviceplugin.structs import replace
from sandbox.gpu_links import nvswitch, t6
from tests.placement.drawn_pods import APP, INIT, REF, SIDECAR, app, pod, pods, states
from tests.placement.nodes import gpu, snapshot

NOTHING = GpuAmount()


def outcome(asked: PodRequest, state: NodeState) -> PodChoice | VcudaError:
    try:
        return place_pod(asked, state)
    except (CapacityError, RequestError) as error:
        return error


def fits(allocations: tuple[Allocation, ...], state: NodeState) -> bool:
    """By kubelet's arithmetic, beside all that the other pods hold."""
    held = occupied(allocations)
    return all(
        held.get(view.gpu.uuid, NOTHING).cores <= view.free_cores
        and held.get(view.gpu.uuid, NOTHING).blocks <= view.free_blocks
        for view in state.snapshot.gpus
    )


def is_allowed(asked: PodRequest, container: ContainerRequest, views: tuple[GpuView, ...], state: NodeState) -> bool:
    """By the contract and the options of the pod, whatever else is on these GPUs."""
    share = container.request.kind is RequestKind.SHARE
    closed = {ComputeMode.PROHIBITED} | ({ComputeMode.EXCLUSIVE_PROCESS} if share else set())
    wanted = asked.preferences.gpus
    each_is_open = all(
        wanted.admits_uuid(view.gpu.uuid)
        and wanted.admits_model(view.gpu.model)
        and view.health.healthy
        and not view.gpu.mig_enabled
        and view.gpu.uuid not in state.cordoned
        and view.gpu.compute_mode not in closed
        and view.gpu.blocks >= container.request.blocks_per_gpu
        for view in views
    )
    one_numa = not wanted.one_numa or len({view.gpu.numa for view in views}) == 1
    return each_is_open and one_numa and (state.share_mode or not share)


@given(asked=pods(), state=states())
def test_what_a_pod_gets_fits_beside_all_others_is_what_it_asked_for_and_accounts_for_every_gpu(
    asked: PodRequest, state: NodeState
) -> None:
    """So a caller that reports the reason need not place the container a second time."""
    found = outcome(asked, state)
    if isinstance(found, VcudaError):
        return
    assert len(found.allocations) == len(found.reasons) == len(asked.containers)
    assert all(found.reasons)
    assert fits(found.allocations, state)
    for container, got, reason in zip(asked.containers, found.allocations, found.reasons, strict=True):
        views = tuple(view for view in state.snapshot.gpus if view.gpu.uuid in got.uuids)
        assert (got.owner, got.role, got.index) == (ContainerRef(REF, container.name), container.role, container.index)
        assert got.request == container.request
        assert len(got.shares) == len(views) == container.request.gpus
        assert set(got.shares) == set(shares_of(container.request, views))
        assert is_allowed(asked, container, views, state)
        choice = found.choice(got.owner.name)
        assert choice is not None
        assert (choice.shares, choice.reason, choice.evaluator) == (got.shares, reason, got.request.kind)
        named = [*(gpu.uuid for gpu in choice.gpus), *(passed.gpu.uuid for passed in choice.passed_over)]
        assert sorted(named) == sorted(view.gpu.uuid for view in state.snapshot.gpus)


@given(asked=pods(containers=3), state=states(at_most=3))
def test_a_place_is_found_wherever_there_is_one(asked: PodRequest, state: NodeState) -> None:
    found = isinstance(outcome(asked, state), PodChoice)
    assert found == any(fits(each, state) for each in every_assignment(asked, state))


def every_assignment(asked: PodRequest, state: NodeState) -> list[tuple[Allocation, ...]]:
    """All sets of GPUs for all containers, in all combinations."""
    options = [
        [
            Allocation(
                ContainerRef(REF, each.name), each.role, each.request, shares_of(each.request, views), each.index
            )
            for views in combinations(state.snapshot.gpus, each.request.gpus)
            if is_allowed(asked, each, views, state)
        ]
        for each in asked.containers
    ]
    return list(product(*options))


@given(asked=pods(), state=states(), data=st.data())
def test_the_same_pod_and_node_give_the_same_answer(asked: PodRequest, state: NodeState, data: st.DataObject) -> None:
    shuffled = Snapshot(tuple(data.draw(st.permutations(state.snapshot.gpus))), state.snapshot.topology)
    one, other = outcome(asked, state), outcome(asked, replace(state, snapshot=shuffled))
    assert str(one) == str(other)
    if isinstance(one, PodChoice):
        assert isinstance(other, PodChoice)
        assert one.allocations == other.allocations


@given(asked=pods(), state=states(), data=st.data())
def test_gpus_to_keep_are_kept_where_they_serve_and_never_turn_a_yes_into_a_no(
    asked: PodRequest, state: NodeState, data: st.DataObject
) -> None:
    free = outcome(asked, state)
    prefer = data.draw(st.sets(st.sampled_from([view.gpu.uuid for view in state.snapshot.gpus])))
    try:
        preferring = place_pod(asked, state, prefer=prefer)
    except VcudaError:
        assert isinstance(free, VcudaError)
        return
    assert isinstance(free, PodChoice)
    if free.uuids <= prefer and len(asked.containers) == 1:
        assert preferring.uuids <= prefer


def test_an_app_container_takes_the_gpu_of_its_init_container_and_they_count_once() -> None:
    state = NodeState("n", snapshot(4, t6, used={1: (30, 8)}))
    choice = place_pod(pod((INIT, 0, Request(60, 8)), (APP, 0, Request(70, 300))), state)
    assert [sorted(each.uuids) for each in choice.allocations] == [["GPU-1"], ["GPU-1"]]


def test_a_sidecar_runs_beside_the_app_and_counts_beside_it() -> None:
    state = NodeState("n", snapshot(2, t6))
    choice = place_pod(pod((SIDECAR, 0, Request(60, 8)), (APP, 0, Request(70, 8))), state)
    assert [sorted(each.uuids) for each in choice.allocations] == [["GPU-0"], ["GPU-1"]]


def test_where_one_after_the_other_fails_all_are_placed_together() -> None:
    """The small one alone would take the fuller GPU, which is the only one with memory for the second."""
    state = NodeState("n", snapshot(2, nvswitch, used={0: (60, 0), 1: (0, 200)}))
    choice = place_pod(pod((APP, 0, Request(30, 100)), (APP, 1, Request(40, 300))), state)
    assert [sorted(each.uuids) for each in choice.allocations] == [["GPU-1"], ["GPU-0"]]
    assert choice.reasons[0] == "GPU 1: so that each container finds room"


def test_all_placed_together_keep_to_the_memory_too() -> None:
    """By cores alone the second would go to the fuller GPU, which is short of memory for it."""
    state = NodeState("n", snapshot(2, nvswitch, used={0: (40, 200)}))
    choice = place_pod(pod((APP, 0, Request(40, 10)), (APP, 1, Request(60, 130)), (APP, 2, Request(60, 100))), state)
    assert [sorted(each.uuids) for each in choice.allocations] == [["GPU-1"], ["GPU-1"], ["GPU-0"]]
    assert fits(choice.allocations, state)


def test_a_spreading_pod_uses_the_gpu_of_its_init_container_again_and_no_other_twice() -> None:
    asked = pod((INIT, 0, Request(10, 8)), (APP, 0, Request(10, 8)), (APP, 1, Request(10, 8)))
    choice = place_pod(asked, NodeState("n", snapshot(4, t6)), policy=GpuPolicy.SPREAD)
    assert [sorted(each.uuids) for each in choice.allocations] == [["GPU-0"], ["GPU-0"], ["GPU-1"]]
    choice = place_pod(
        replace(asked, containers=asked.containers[1:]), NodeState("n", snapshot(4, t6)), policy=GpuPolicy.SPREAD
    )
    assert [sorted(each.uuids) for each in choice.allocations] == [["GPU-0"], ["GPU-1"]]


def test_the_policy_of_the_pod_wins_over_that_of_the_scheduler() -> None:
    state = NodeState("n", snapshot(4, t6, used={2: (30, 8)}))
    spreading = app(Request(30, 8), preferences=Preferences(gpu=GpuPolicy.SPREAD))
    assert place_pod(app(Request(30, 8)), state).uuids == {"GPU-2"}
    assert place_pod(app(Request(30, 8)), state, policy=GpuPolicy.SPREAD).uuids == {"GPU-0"}
    assert place_pod(spreading, state, policy=GpuPolicy.BINPACK).uuids == {"GPU-0"}


def test_a_refusal_names_what_stands_against_it() -> None:
    cases = [
        (
            pod((APP, 0, Request(60, 8)), (APP, 1, Request(60, 8))),
            NodeState("n", snapshot(1)),
            (
                "container app-1, beside the others of its pod: 60 cores and 2 GiB of one GPU asked, but "
                "GPU 0 is short of cores (at most 40 free, on GPU 0); waiting does not help here, so ask for less for "
                "all its containers together or on another node"
            ),
        ),
        (
            pod((APP, 0, Request(60, 8)), (APP, 1, Request(30, 8))),
            NodeState("n", snapshot(1, used={0: (20, 0)})),
            (
                "container app-1, beside the others of its pod: 30 cores and 2 GiB of one GPU asked, but "
                "GPU 0 is short of cores (at most 20 free, on GPU 0); ask for less or wait until a pod ends"
            ),
        ),
        (
            app(Request(30, 8)),
            NodeState("n", snapshot(2), share_mode=False),
            (
                "container app-0: 30 cores and 2 GiB of one GPU asked, but node n allocates whole GPUs only; "
                "ask for whole GPUs or on another node"
            ),
        ),
        (
            app(Request(60, 16, parts=2)),
            NodeState("n", snapshot(2), cordoned=frozenset({gpu(1).uuid})),
            (
                "30 cores and 2 GiB of each of 2 GPUs asked, but only GPU 0 is free and GPU 1 is cordoned; "
                "ask for less, or have a GPU uncordoned"
            ),
        ),
        (
            app(Request(100, 0), preferences=Preferences(gpus=GpuFilter(models=("A100",)))),
            NodeState("n", snapshot(2)),
            (
                "1 whole GPU asked, but GPUs 0 and 1 are of a model that the pod does not want; ask for less, let the "
                "pod use other GPUs too, or ask on another node"
            ),
        ),
        (
            app(Request(200, 0), preferences=Preferences(gpus=GpuFilter(one_numa=True))),
            NodeState("n", snapshot(2, gpus={0: gpu(0, numa=0), 1: gpu(1, numa=1)})),
            (
                "2 whole GPUs on one NUMA node asked, but GPUs 0 and 1, which fit, are on several; ask for fewer GPUs "
                "or let the GPUs be on several NUMA nodes"
            ),
        ),
        (
            app(Request(200, 0), preferences=Preferences(gpus=GpuFilter(one_numa=True))),
            NodeState(
                "n", snapshot(3, used={2: (1, 1)}, gpus={0: gpu(0, numa=0), 1: gpu(1, numa=1), 2: gpu(2, numa=1)})
            ),
            (
                "2 whole GPUs on one NUMA node asked, but GPUs 0 and 1, which fit, are on several; ask for fewer GPUs, "
                "wait until a pod ends, or let the GPUs be on several NUMA nodes"
            ),
        ),
        (
            app(Request(200, 0), preferences=Preferences(gpus=GpuFilter(one_numa=True))),
            NodeState("n", snapshot(2, used={1: (1, 1)}, gpus={0: gpu(0, numa=0), 1: gpu(1, numa=1)})),
            ("2 whole GPUs asked, but only GPU 0 is free and GPU 1 is in use; let the GPUs be on several NUMA nodes"),
        ),
    ]
    assert [str(outcome(asked, state)) for asked, state, _ in cases] == [sentence for *_, sentence in cases]


def tight(*cores: int) -> PodRequest:
    """Containers that fill four GPUs to the last core, in no order that helps."""
    return pod(*((APP, at, Request(each, 1)) for at, each in enumerate(cores)))


SIXTEEN = (42, 12, 35, 10, 19, 9, 13, 32, 21, 17, 24, 42, 12, 17, 43, 52)


def test_where_the_search_gives_up_it_says_so_and_claims_nothing_else() -> None:
    """Four times 100 cores in 16 containers: there is a place, and it takes longer to find than a scheduler waits."""
    state = NodeState("n", snapshot(4, nvswitch))
    assert sum(SIXTEEN) == 400
    assert assign(tight(*SIXTEEN), state) is Unassigned.GIVEN_UP
    assert not isinstance(assign(tight(*SIXTEEN), state, allowance=10_000_000), Unassigned)
    assert str(outcome(tight(*SIXTEEN), state)).endswith(
        "; ask for less or wait until a pod ends, or put less into one pod, because not every combination was tried"
    )
    assert prefilter(tight(*SIXTEEN), state) is None


def test_where_there_is_no_place_for_certain_no_doubt_is_raised() -> None:
    assert assign(tight(60, 60, 60), NodeState("n", snapshot(2, nvswitch))) is Unassigned.NONE_EXISTS
    assert "tried" not in str(outcome(tight(60, 60, 60), NodeState("n", snapshot(2, nvswitch))))


@given(asked=pods(), state=states())
def test_to_wait_is_advised_only_where_a_pod_that_ends_can_help(asked: PodRequest, state: NodeState) -> None:
    """For one container exactly; for several wherever the sums of the empty node say it."""
    refused = outcome(asked, state)
    if not isinstance(refused, CapacityError) or "wait until" not in refused.message:
        return
    reason = prefilter(asked, state)
    assert reason is None or reason.resolvable


@given(
    cuts=st.lists(st.lists(st.integers(1, 99), min_size=2, max_size=2, unique=True), min_size=2, max_size=3),
    order=st.randoms(use_true_random=False),
)
def test_nine_containers_that_leave_nothing_over_still_find_their_place(
    cuts: list[list[int]], order: random.Random
) -> None:
    cores = [each for low, high in map(sorted, cuts) for each in (low, high - low, 100 - high)]
    order.shuffle(cores)
    assert isinstance(outcome(tight(*cores), NodeState("n", snapshot(len(cuts), nvswitch))), PodChoice)
