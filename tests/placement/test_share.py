"""Which GPU a share gets, and what is said of the others."""

import pytest
from hypothesis import given

from deviceplugin.errors import CapacityError
from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.placement.place import place
from deviceplugin.placement.snapshot import Snapshot
from tests.placement.nodes import gpu, snapshot, snapshots

ASK = Request(30, 8)


def chosen(on: Snapshot, request: Request = ASK) -> int:
    (card,) = place(request, on).gpus
    return card.minor


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(snapshot(3, used={1: (40, 1)}), 1, id="fewest free cores"),
        pytest.param(snapshot(3, used={1: (40, 1), 2: (40, 9)}), 2, id="then fewest free blocks"),
        pytest.param(snapshot(3, processes={0: 2, 1: 1, 2: 1}), 1, id="then fewest processes, then the lowest minor"),
        pytest.param(snapshot(3, used={1: (70, 312)}), 1, id="to the last core and block"),
        pytest.param(snapshot(3, used={1: (71, 1)}), 0, id="never too few cores"),
        pytest.param(snapshot(3, used={1: (40, 313)}), 0, id="never too little memory"),
        pytest.param(snapshot(2, used={0: (50, 1)}, ill={0: "XID 79"}), 1, id="never ill"),
        pytest.param(snapshot(2, gpus={0: gpu(0, mig=True)}), 1, id="never in MIG mode"),
        pytest.param(snapshot(2, gpus={0: gpu(0, mode=ComputeMode.PROHIBITED)}), 1, id="never prohibited"),
        pytest.param(
            snapshot(2, gpus={0: gpu(0, mode=ComputeMode.EXCLUSIVE_PROCESS)}), 1, id="no part of an exclusive"
        ),
        pytest.param(snapshot(2, gpus={0: gpu(0, blocks=7)}), 1, id="never too small"),
    ],
)
def test_a_share_goes_to_the_fullest_gpu_that_fits(node: Snapshot, expected: int) -> None:
    assert chosen(node) == expected


def test_a_share_takes_what_it_asked_for_and_no_more() -> None:
    choice = place(ASK, snapshot(2))
    assert choice.evaluator is RequestKind.SHARE
    assert [(share.uuid, share.cores, share.blocks) for share in choice.shares] == [("GPU-0", 30, 8)]


@pytest.mark.parametrize(
    ("node", "phrase"),
    [
        (snapshot(2, used={0: (40, 0)}), "fits, but GPU 0 is fuller: 60 cores free against 100"),
        (
            snapshot(2, used={0: (40, 320 - 8), 1: (40, 0)}),
            "fits, but GPU 0 has as many cores and less memory free: 8 blocks (2 GiB) against 320 blocks (80 GiB)",
        ),
        (snapshot(2, processes={1: 3}), "fits, but GPU 0 is as full and runs fewer processes: 0 against 3"),
        (snapshot(2), "fits as well as GPU 0, which has the lower minor number"),
        (snapshot(2, used={1: (80, 0)}), "only 20 cores free"),
        (snapshot(2, used={1: (1, 319)}), "only 1 block (256 MiB) free"),
        (snapshot(2, ill={1: "XID 79"}), "unhealthy: XID 79"),
        (snapshot(2, gpus={1: gpu(1, blocks=4)}), "too small: 4 blocks (1 GiB) in all"),
        (snapshot(2, gpus={1: gpu(1, mig=True)}), "in MIG mode"),
        (snapshot(2, gpus={1: gpu(1, mode=ComputeMode.PROHIBITED)}), "in compute mode prohibited"),
        (
            snapshot(2, gpus={1: gpu(1, mode=ComputeMode.EXCLUSIVE_PROCESS)}),
            "in compute mode exclusive-process, so given whole only",
        ),
    ],
)
def test_the_phrase_says_why_a_gpu_was_passed_over(node: Snapshot, phrase: str) -> None:
    (passed,) = place(ASK, node).passed_over
    assert (passed.gpu.minor, passed.reason) == (1, phrase)


@given(node=snapshots(at_most=6))
def test_no_gpu_that_fits_is_fuller_than_the_chosen_one(node: Snapshot) -> None:
    fitting = [
        view
        for view in node.gpus
        if view.health.healthy
        and not view.gpu.mig_enabled
        and view.gpu.compute_mode is ComputeMode.DEFAULT
        and view.free_cores >= ASK.cores
        and view.free_blocks >= ASK.blocks
    ]
    if not fitting:
        with pytest.raises(CapacityError):
            place(ASK, node)
        return
    best = min(fitting, key=lambda view: (view.free_cores, view.free_blocks, view.processes, view.gpu.minor))
    assert place(ASK, node).gpus == (best.gpu,)
