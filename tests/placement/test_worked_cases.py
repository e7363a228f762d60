"""The worked cases of gpu-manager, on which every implementation of these evaluators must agree."""

from deviceplugin.model.request import Request
from deviceplugin.placement.candidates import survey
from deviceplugin.placement.pod import place
from deviceplugin.placement.snapshot import Snapshot
from deviceplugin.structs import replace
from sandbox.gpu_links import t6
from tests.placement.nodes import gpu, snapshot

FULL = (100, 320)


def placed(cores: int, on: Snapshot, *, blocks: int = 0) -> list[int]:
    return [card.minor for card in place(Request(cores, blocks), on).gpus]


def test_the_evaluators_agree_with_gpu_manager() -> None:
    cases: dict[str, tuple[int, dict[int, tuple[int, int]], int, int, list[int]]] = {
        "fragment: of the smallest branch": (6, {}, 100, 0, [4]),
        "fragment: the other half of a broken pair": (6, {4: FULL}, 100, 0, [5]),
        "fragment: a node with one GPU": (1, {}, 100, 0, [0]),
        "link: three of a node that is free": (6, {}, 300, 0, [0, 1, 2]),
        "link: pairs that tie, the lower minors": (6, {2: FULL}, 200, 0, [0, 1]),
        "share: all alike, the lowest minor": (6, {}, 50, 4, [0]),
        "share: the fullest is too full": (6, {0: (50, 0)}, 60, 4, [1]),
    }
    found = {
        name: placed(cores, snapshot(count, t6, used=used), blocks=blocks)
        for name, (count, used, cores, blocks, _) in cases.items()
    }
    assert found == {name: expected for name, (*_, expected) in cases.items()}


def test_shares_are_ordered_by_cores_then_blocks_then_minor() -> None:
    """Leaf i has 1024-i bytes beyond its blocks, which do not count; with some of leaf 5 taken: 5, 0, 1, 2, 3, 4."""
    cards = {minor: replace(gpu(minor), memory_bytes=gpu(minor).memory_bytes + 1024 - minor) for minor in range(6)}
    taken = {5: (99, 1)}  # not all 100 cores, so that a share of one core still fits there
    order = []
    for _ in range(6):
        (chosen,) = placed(1, snapshot(6, t6, used=taken, gpus=cards), blocks=1)
        order.append(chosen)
        taken[chosen] = FULL
    assert order == [5, 0, 1, 2, 3, 4]


def test_any_share_makes_its_gpu_unavailable_until_it_is_given_back() -> None:
    def available(count: int, used: dict[int, tuple[int, int]]) -> list[int]:
        return sorted(survey(Request(100, 0), snapshot(count, t6, used=used)).candidates.free)

    for count in (6, 1):
        assert available(count, {}) == available(count, {0: (0, 0)}) == list(range(count))
        taken = [available(count, {0: (cores, 1)}) for cores in (50, 100)]
        assert taken == [list(range(1, count))] * 2


def test_the_allocator_sequence_fills_six_gpus() -> None:
    """1 GiB GPUs: 300 cores, 100, 100, 100; the second pod goes; then 50, 60, 50; the 60 goes; then 100."""
    cards = {minor: gpu(minor, blocks=4) for minor in range(6)}
    used: dict[int, tuple[int, int]] = {}

    def step(cores: int, blocks: int) -> list[int]:
        minors = placed(cores, snapshot(6, t6, used=used, gpus=cards), blocks=blocks)
        for minor in minors:
            held = used.get(minor, (0, 0))
            used[minor] = (100, 4) if cores >= 100 else (held[0] + cores, held[1] + blocks)
        return minors

    assert step(300, 3) == [0, 1, 2]
    assert step(100, 1) == [3]
    assert step(100, 1) == [4]
    assert step(100, 1) == [5]
    del used[3], used[4]
    assert step(50, 1) == [3]
    assert step(60, 1) == [4]
    assert step(50, 1) == [3]
    del used[4]
    assert step(100, 1) == [4]
    assert {minor: cores for minor, (cores, _) in used.items()} == dict.fromkeys(range(6), 100)


def test_a_whole_node_is_taken_at_once() -> None:
    assert placed(600, snapshot(6, t6), blocks=3) == [0, 1, 2, 3, 4, 5]
