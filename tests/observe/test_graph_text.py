"""The picture: exact for a few nodes, narrow and complete for all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.gpu import ComputeMode, Driver, GpuSample, Health, Inventory
from deviceplugin.model.topology import Level
from deviceplugin.observe.glyphs import ASCII, BOXES
from deviceplugin.observe.graph import WIDTH, draw
from deviceplugin.observe.node_view import NodePicture
from deviceplugin.structs import replace
from tests.observe.pictures import T4, by_groups, gpu, grant, hgx, node, pcie, uuid

LOST = Health(healthy=False, reason="XID 79 (GPU has fallen off the bus)")
PICTURES = {
    "laptop": node([gpu(0, model=T4, mib=15360)], by_groups(1), samples={uuid(0): GpuSample(37, 1 << 30)}),
    "hgx": hgx(
        grant("ml/train-0/main", 0, 1, 2, 3),
        grant("web/llm-6f7d4-abcde/server", 4, cores=30, blocks=64),
        grant("web/llm-6f7d4-fghij/server", 4, cores=30, blocks=64, proved=False),
        grant("web/emb/fetch", 4, cores=30, blocks=64, role=ContainerRole.INIT),
        grant("web/tiny/c", 5, cores=1, blocks=1),
        health={uuid(7): LOST},
    ),
    "two-sockets-mixed": node(
        [
            gpu(3, index=0, numa=1),
            gpu(1, model=T4, mib=15360, numa=0),
            gpu(0, index=2, model=T4, mib=15360, numa=0),
            gpu(2, index=3, mig=True, numa=1),
        ],
        by_groups(4, (Level.NODE, 2), (Level.SYS, 4)),
        grant("a/b/c", 1, cores=10, blocks=3),
        grant("a/gone/c", 9),
    ),
    "sixteen": pcie(16, grant("ml/train-0/main", *range(8))),
    "forty": pcie(40, *(grant(f"ml/p-{minor}/c", minor, cores=50, blocks=100) for minor in range(0, 40, 3))),
    "no-common-ancestor": node([gpu(0), gpu(1)], by_groups(2)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_the_one_that_was_approved(name: str) -> None:
    approved = Path(__file__).parent / "approved" / f"{name}.txt"
    assert draw(PICTURES[name]) == approved.read_text()


def test_no_line_is_wider_than_a_hundred_columns() -> None:
    texts = {(name, glyphs): draw(PICTURES[name], glyphs) for name in PICTURES for glyphs in (BOXES, ASCII)}
    lines = [(name, line) for (name, _), text in texts.items() for line in text.splitlines()]
    assert [each for each in lines if len(each[1]) > WIDTH or each[1] != each[1].rstrip()] == []


def test_a_gpu_in_exclusive_mode_says_why_it_takes_no_shares() -> None:
    exclusive = replace(gpu(0, model=T4, mib=15360), compute_mode=ComputeMode.EXCLUSIVE_PROCESS)
    assert "compute mode exclusive, allocated whole only" in draw(node([exclusive], by_groups(1)))


def test_a_memory_repair_that_waits_for_a_reset_is_shown() -> None:
    picture = replace(PICTURES["laptop"], repairs_pending=frozenset({uuid(0)}))
    assert "reset it when it is free: a memory repair is pending" in draw(picture)


def test_ascii_is_ascii() -> None:
    assert all(draw(picture, ASCII).isascii() for picture in PICTURES.values())


def test_names_from_outside_can_neither_break_lines_nor_widen_them() -> None:
    evil = grant("n/p/c", 0)
    owner = replace(evil.allocation.owner, name="x\n\x1b[31m" + "y" * 300)
    broken = Health(healthy=False, reason="line\nline" * 30)
    picture = node(
        [gpu(0)],
        by_groups(1),
        replace(evil, allocation=replace(evil.allocation, owner=owner)),
        health={uuid(0): broken},
        name="n" * 253,
    )
    text = draw(picture)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 5
    assert max(map(len, text.splitlines())) <= WIDTH


def test_a_gpu_that_gives_nothing_out_says_why_and_does_not_count_as_free() -> None:
    closed = replace(gpu(1), compute_mode=ComputeMode.PROHIBITED)
    text = draw(node([gpu(0), closed], by_groups(2, (Level.PIX, 2))))
    assert "PIX  2 GPUs, 1 free" in text
    assert "✗ unavailable: compute mode prohibited" in text


def test_without_gpus_or_driver_the_picture_is_a_sentence() -> None:
    assert draw(NodePicture("n", None)) == "n: the driver has not answered yet\n"
    empty = Inventory((), by_groups(0), Driver("1", (1, 0)))
    assert draw(NodePicture("n", empty)) == "n: this node has no GPU\n"


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(2, 40))
def test_a_bar_is_empty_only_for_nothing_and_full_only_for_all(part: int, whole: int, cells: int) -> None:
    bar = BOXES.bar(part, whole, cells)
    assert len(bar) == cells
    assert (bar == "░" * cells) == (part == 0)
    assert (bar == "█" * cells) == (part >= whole)


@given(st.integers(1, 40), st.data())
def test_every_gpu_stands_in_the_picture_once_and_so_does_every_owner_on_each_of_its_gpus(
    count: int, data: st.DataObject
) -> None:
    minors = data.draw(st.lists(st.integers(0, count - 1), max_size=30))
    grants = [grant(f"n/p{number}/c", minor, cores=5, blocks=5) for number, minor in enumerate(minors)]
    lines = draw(pcie(count, *grants)).splitlines()
    for minor in range(count):
        assert sum(f"GPU {minor} " in line for line in lines) == 1
    for number in range(len(minors)):
        assert sum(line.endswith(f"n/p{number}/c") for line in lines) == 1
