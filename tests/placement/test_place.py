"""The one door: restrictions, refusals, and that every GPU is accounted for."""

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import CapacityError
from deviceplugin.model.gpu import ComputeMode, GpuUuid, Health
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.placement.pod import Choice, place
from deviceplugin.placement.snapshot import GpuView, Snapshot
from deviceplugin.structs import replace
from sandbox.gpu_links import nvswitch, pcie_tree, t6
from tests.placement.nodes import gpu, snapshot, snapshots, view_of

UNWANTED = "not among the GPUs that the pod wants"
REQUESTS = [Request(30, 8), Request(100, 0), Request(100, 65), Request(200, 0), Request(300, 3 * 64)]


def uuids(*minors: int) -> list[GpuUuid]:
    return [gpu(minor).uuid for minor in minors]


def outcome(
    request: Request, on: Snapshot, *, prefer: Collection[GpuUuid] = (), wanted: GpuFilter = ANY_GPU
) -> Choice | CapacityError:
    try:
        return place(request, on, prefer=prefer, wanted=wanted)
    except CapacityError as error:
        return error


def refusal(request: Request, on: Snapshot, *, wanted: GpuFilter = ANY_GPU) -> str:
    refused = outcome(request, on, wanted=wanted)
    assert isinstance(refused, CapacityError)
    return refused.message


@given(node=snapshots(), request_=st.sampled_from(REQUESTS), data=st.data())
def test_a_choice_fits_is_allowed_and_accounts_for_every_gpu(
    node: Snapshot, request_: Request, data: st.DataObject
) -> None:
    all_uuids = [view.gpu.uuid for view in node.gpus]
    wanted = GpuFilter(uuids=frozenset(data.draw(st.sets(st.sampled_from(all_uuids)))))
    prefer = data.draw(st.sets(st.sampled_from(all_uuids)))
    choice = outcome(request_, node, prefer=prefer, wanted=wanted)
    if isinstance(choice, CapacityError):
        assert len(fitting(request_, node, wanted)) < request_.gpus
        return
    assert choice.evaluator is request_.kind
    assert [card.minor for card in choice.gpus] == sorted({card.minor for card in choice.gpus})
    assert len(choice.gpus) == len(choice.shares) == request_.gpus
    assert sorted(card.uuid for card in (*choice.gpus, *(passed.gpu for passed in choice.passed_over))) == sorted(
        all_uuids
    )
    assert all(passed.reason for passed in choice.passed_over)
    for card, share in zip(choice.gpus, choice.shares, strict=True):
        view = view_of(node, card.uuid)
        assert share.uuid == card.uuid
        assert wanted.admits_uuid(card.uuid)
        assert view.health.healthy
        assert not card.mig_enabled
        assert card.compute_mode is not ComputeMode.PROHIBITED
        assert 0 < share.cores <= view.free_cores
        assert request_.blocks_per_gpu <= share.blocks <= view.free_blocks
        if request_.kind is RequestKind.SHARE:
            assert card.compute_mode is ComputeMode.DEFAULT
            assert (share.cores, share.blocks) == (request_.cores, request_.blocks)
        else:
            assert view.capacity.is_whole
            assert (share.cores, share.blocks) == (100, card.blocks)


def fitting(request: Request, on: Snapshot, wanted: GpuFilter) -> list[GpuUuid]:
    """GPUs that could serve a part of the request, by the contract."""
    whole = request.kind is not RequestKind.SHARE
    closed = {ComputeMode.PROHIBITED} if whole else {ComputeMode.PROHIBITED, ComputeMode.EXCLUSIVE_PROCESS}
    return [
        view.gpu.uuid
        for view in on.gpus
        if wanted.admits_uuid(view.gpu.uuid)
        and view.health.healthy
        and not view.gpu.mig_enabled
        and view.gpu.compute_mode not in closed
        and (view.capacity.is_whole if whole else view.free_cores >= request.cores)
        and view.free_blocks >= request.blocks_per_gpu
    ]


@given(node=snapshots(), request_=st.sampled_from(REQUESTS), data=st.data())
def test_the_order_in_which_gpus_are_listed_does_not_matter(
    node: Snapshot, request_: Request, data: st.DataObject
) -> None:
    shuffled = Snapshot(tuple(data.draw(st.permutations(node.gpus))), node.topology)
    one, other = outcome(request_, shuffled), outcome(request_, node)
    assert one == other or str(one) == str(other)


@given(node=snapshots(), request_=st.sampled_from(REQUESTS), data=st.data())
def test_a_preference_never_turns_a_yes_into_a_no(node: Snapshot, request_: Request, data: st.DataObject) -> None:
    prefer = data.draw(st.sets(st.sampled_from([view.gpu.uuid for view in node.gpus]), min_size=1))
    free = outcome(request_, node)
    within = outcome(request_, node, wanted=GpuFilter(uuids=frozenset(prefer)))
    preferring = outcome(request_, node, prefer=prefer)
    assert isinstance(preferring, Choice) == isinstance(free, Choice)
    if isinstance(preferring, Choice):
        assert preferring.gpus == (within.gpus if isinstance(within, Choice) else place(request_, node).gpus)


def test_preferred_gpus_are_tried_alone_first() -> None:
    choice = place(Request(200, 0), snapshot(6, t6), prefer=uuids(2, 3, 4))
    assert [card.minor for card in choice.gpus] == [2, 3]
    assert (
        choice.reason
        == "GPUs 2 and 3: the closest 2 of 3 GPUs that fit (total distance 10, all under PIX), among the preferred GPUs"
    )
    assert {passed.reason for passed in choice.passed_over if passed.gpu.minor < 2} == {
        "fits, but others are preferred"
    }


def test_where_the_preferred_gpus_do_not_suffice_all_are_looked_at() -> None:
    node = snapshot(6, t6, used={5: (90, 1)})
    for prefer in [uuids(5), uuids(0, 5), [GpuUuid("GPU-gone")]]:
        assert place(Request(200, 0), node, prefer=prefer) == place(Request(200, 0), node), prefer


def test_a_hard_restriction_holds_and_a_preference_works_within_it() -> None:
    node, wanted = snapshot(6, t6), GpuFilter(uuids=frozenset(uuids(1, 2, 3)))
    assert [card.minor for card in place(Request(100, 0), node, wanted=wanted).gpus] == [1]
    assert [card.minor for card in place(Request(100, 0), node, wanted=wanted, prefer=uuids(0, 3)).gpus] == [3]
    assert {passed.reason for passed in place(Request(100, 0), node, wanted=wanted).passed_over} > {UNWANTED}


def test_a_refusal_says_what_was_asked_what_is_free_and_what_to_do() -> None:
    cases = [
        (
            Request(60, 8),
            snapshot(3, used={0: (50, 0), 1: (70, 0), 2: (10, 319)}),
            (
                "60 cores and 2 GiB of one GPU asked, but GPUs 0 and 1 are short of cores (at most 50 free, "
                "on GPU 0) and GPU 2 is short of memory (at most 256 MiB free, on GPU 2); "
                "ask for less or wait until a pod ends"
            ),
        ),
        (
            Request(300, 0),
            snapshot(4, used={0: (1, 1)}, ill={3: "XID 79"}),
            (
                "3 whole GPUs asked, but only GPUs 1 and 2 are free, GPU 3 is unhealthy and GPU 0 is in use; "
                "ask for less or wait until a pod ends"
            ),
        ),
        (
            Request(800, 0),
            snapshot(4),
            "8 whole GPUs asked, but only GPUs 0-3 are free; waiting does not help here, so ask for at most 4 GPUs",
        ),
        (
            Request(30, 400),
            snapshot(2),
            (
                "30 cores and 100 GiB of one GPU asked, but GPUs 0 and 1 are too small in memory "
                "(at most 80 GiB); waiting does not help here, so ask for less memory or another node"
            ),
        ),
        (
            Request(100, 0),
            snapshot(2, ill={0: "XID 79"}, gpus={1: gpu(1, mig=True)}),
            (
                "1 whole GPU asked, but GPU 0 is unhealthy and GPU 1 is in MIG mode; "
                "ask on another node, or see why with nvidia-smi on this one"
            ),
        ),
        (Request(100, 0), snapshot(0), "1 whole GPU asked, but this node has no GPU; ask on a node that has one"),
    ]
    assert [refusal(request, node) for request, node, _ in cases] == [sentence for *_, sentence in cases]


def test_a_refusal_stays_one_short_sentence_on_a_node_of_64_gpus() -> None:
    modes = list(ComputeMode)
    node = snapshot(
        64,
        pcie_tree,
        used={minor: (2 + minor, minor) for minor in range(64)},
        ill=dict.fromkeys(range(1, 64, 9), "XID 79"),
        gpus={minor: gpu(minor, mode=modes[minor % 3], mig=minor % 7 == 0) for minor in range(2, 64, 3)},
    )
    uuids = frozenset(view.gpu.uuid for view in node.gpus[:60] if view.gpu.minor % 5)
    requests = (Request(99, 319), Request(6400, 0), Request(6400, 64 * 321))
    said = [refusal(request, node, wanted=GpuFilter(uuids=uuids)) for request in requests]
    assert [each for each in said if UNWANTED not in each or len(each) >= 900 or "\n" in each] == []


def test_a_gpu_that_vanished_may_have_the_minor_of_the_one_that_took_its_place() -> None:
    here = snapshot(3, nvswitch)
    gone = GpuView(replace(gpu(1), uuid=GpuUuid("GPU-gone")), 100, 320, health=Health(healthy=False, reason="vanished"))
    both = Snapshot((gone, *here.gpus), here.topology)
    for request in REQUESTS:
        assert place(request, both).gpus == place(request, here).gpus
    assert "vanished" in place(Request(100, 0), both).passed_over[1].reason
