"""Which GPU a share gets, and what is said of the others."""

import pytest
from hypothesis import given

from deviceplugin.errors import CapacityError
from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.placement.pod import place
from deviceplugin.placement.snapshot import Snapshot
from tests.placement.nodes import gpu, snapshot, snapshots

ASK = Request(30, 8)


def test_a_share_takes_what_it_asked_for_and_no_more() -> None:
    choice = place(ASK, snapshot(2))
    assert choice.evaluator is RequestKind.SHARE
    assert [(share.uuid, share.cores, share.blocks) for share in choice.shares] == [("GPU-0", 30, 8)]


def test_the_phrase_says_why_a_gpu_was_passed_over() -> None:
    cases = [
        (snapshot(2, used={0: (40, 0)}), "fits, but GPU 0 is fuller: 60 cores free against 100"),
        (
            snapshot(2, used={0: (40, 320 - 8), 1: (40, 0)}),
            "fits, but GPU 0 has as many cores and less memory free: 2 GiB against 80 GiB",
        ),
        (snapshot(2, processes={1: 3}), "fits, but GPU 0 is as full and runs fewer processes: 0 against 3"),
        (snapshot(2), "fits as well as GPU 0, which has the lower minor number"),
        (snapshot(2, used={1: (80, 0)}), "only 20 cores free"),
        (snapshot(2, used={1: (1, 319)}), "only 256 MiB free"),
        (snapshot(2, ill={1: "XID 79"}), "unavailable: XID 79"),
        (snapshot(2, gpus={1: gpu(1, blocks=4)}), "too small: 1 GiB in all"),
        (snapshot(2, gpus={1: gpu(1, mig=True)}), "in MIG mode"),
        (snapshot(2, gpus={1: gpu(1, mode=ComputeMode.PROHIBITED)}), "in compute mode prohibited"),
        (
            snapshot(2, gpus={1: gpu(1, mode=ComputeMode.EXCLUSIVE_PROCESS)}),
            "in compute mode exclusive-process, so allocated whole only",
        ),
    ]
    passed = [place(ASK, node).passed_over for node, _ in cases]
    assert [[(each.gpu.minor, each.reason) for each in found] for found in passed] == [[(1, said)] for _, said in cases]


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
