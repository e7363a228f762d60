"""Which whole GPU a request gets, and what is said of the others."""

from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.request import Request
from deviceplugin.placement.pod import place
from deviceplugin.placement.snapshot import Snapshot
from sandbox.gpu_links import APART, PIX, nvswitch, pcie_tree, t6
from tests.placement.nodes import gpu, snapshot

ONE = Request(100, 0)


def chosen(on: Snapshot, request: Request = ONE) -> int:
    (card,) = place(request, on).gpus
    return card.minor


def passed_over(on: Snapshot, minor: int) -> str:
    return next(passed.reason for passed in place(ONE, on).passed_over if passed.gpu.minor == minor)


def test_a_whole_gpu_comes_from_the_least_free_branch() -> None:
    cases = {
        "all alike: the lowest minor": (snapshot(8, pcie_tree), 0),
        "a broken pair is used up first": (snapshot(8, pcie_tree, used={6: (10, 1)}), 7),
        "the emptier half, then its pair": (snapshot(8, pcie_tree, used={6: (10, 1), 1: (5, 1), 2: (5, 1)}), 0),
        "then the least memory": (snapshot(4, nvswitch, gpus={2: gpu(2, blocks=64)}), 2),
        "then the fewest processes": (snapshot(4, nvswitch, processes={0: 1, 1: 1, 2: 1}), 3),
        "one that shares no level stands alone": (snapshot(3, lambda a, b: PIX if b < 2 else APART), 2),
        "an exclusive one may be given whole": (snapshot(2, gpus={0: gpu(0, mode=ComputeMode.EXCLUSIVE_PROCESS)}), 0),
        "an ill one does not count as free": (snapshot(6, t6, ill={4: "XID 79"}), 5),
    }
    assert {name: chosen(node) for name, (node, _) in cases.items()} == {name: at for name, (_, at) in cases.items()}


def test_memory_that_is_asked_for_must_be_on_the_gpu() -> None:
    node = snapshot(6, t6, gpus={4: gpu(4, blocks=64), 5: gpu(5, blocks=64)})
    assert chosen(node) == 4
    assert chosen(node, Request(100, 65)) == 0


def test_a_gpu_that_is_too_small_still_counts_as_free_where_branches_are_compared() -> None:
    """The pair 4, 5 has one candidate, but two free GPUs; the pair 2, 3 has one of each."""
    node = snapshot(
        6,
        lambda a, b: PIX if a // 2 == b // 2 else APART,
        used={0: (9, 9), 1: (9, 9), 3: (9, 9)},
        gpus={4: gpu(4, blocks=64)},
    )
    assert chosen(node, Request(100, 65)) == 2


def test_a_whole_gpu_comes_with_all_its_memory() -> None:
    (share,) = place(Request(100, 3), snapshot(1)).shares
    assert (share.uuid, share.cores, share.blocks) == ("GPU-0", 100, 320)


def test_the_phrase_says_why_a_gpu_was_passed_over() -> None:
    cases = [
        (snapshot(6, t6), 2, "fits, but its branch (GPUs 0-3) has 4 free GPUs against 2 among GPUs 4 and 5"),
        (snapshot(6, t6), 5, "fits as well as GPU 4, which has the lower minor number"),
        (
            snapshot(2, gpus={1: gpu(1, blocks=64)}),
            0,
            "fits, but GPU 1 has less memory: 16 GiB against 80 GiB",
        ),
        (snapshot(2, processes={0: 2}), 0, "fits, but GPU 1 runs fewer processes: 0 against 2"),
        (snapshot(2, used={0: (30, 20)}), 0, "partly allocated: 30 of 100 cores, 5 of 80 GiB"),
    ]
    assert [passed_over(node, minor) for node, minor, _ in cases] == [phrase for *_, phrase in cases]


def test_the_reason_names_the_branch() -> None:
    cases = [
        (
            snapshot(6, t6, used={4: (1, 1)}),
            "GPU 5: in the branch with the fewest free GPUs (1 of 2 under PIX), of 5 that fit",
        ),
        (snapshot(1), "GPU 0: no other whole GPU fits"),
        (
            snapshot(2, lambda _a, _b: APART),
            "GPU 0: in the branch with the fewest free GPUs (2 of 2 under no common level), of 2 that fit",
        ),
    ]
    assert [place(ONE, node).reason for node, _ in cases] == [reason for _, reason in cases]
