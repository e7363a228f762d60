"""The inventory annotation says all that placement needs, and fits into a node object."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError
from deviceplugin.model.gpu import ComputeMode, Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.node import format_inventory, parse_inventory
from deviceplugin.model.topology import NO_LINK, Level, Link, Topology
from deviceplugin.model.units import MIB
from tests.refusals import refusal

links = st.builds(Link, st.sampled_from([None, *Level]), st.integers(0, 999)).filter(lambda link: link != NO_LINK)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    minors = draw(st.lists(st.integers(0, 255), max_size=6, unique=True))
    gpus = tuple(
        Gpu(
            uuid=GpuUuid(f"GPU-{minor}"),
            index=index,
            minor=minor,
            model=draw(st.text()),
            memory_bytes=draw(st.integers(0, 1 << 20)) * MIB,
            bus_id=draw(st.sampled_from(["", "00000000:3B:00.0"])),
            numa=draw(st.none() | st.integers(0, 8)),
            compute_mode=draw(st.sampled_from(ComputeMode)),
            mig_enabled=draw(st.booleans()),
        )
        for index, minor in enumerate(minors)
    )
    pairs = [(a, b) for place, a in enumerate(minors) for b in minors[place + 1 :]]
    drawn = {pair: draw(st.none() | links) for pair in pairs}
    broken = draw(st.dictionaries(st.sampled_from([gpu.uuid for gpu in gpus]), st.text())) if gpus else {}
    return Inventory(
        gpus=gpus,
        topology=Topology(tuple(minors), {pair: link for pair, link in drawn.items() if link is not None}),
        driver=Driver(draw(st.text()), draw(st.tuples(st.integers(0, 20), st.integers(0, 9)))),
        health={uuid: Health(healthy=False, reason=reason) for uuid, reason in broken.items()},
    )


def dgx(count: int) -> Inventory:
    gpus = tuple(
        Gpu(
            uuid=GpuUuid(f"GPU-5a5f3a4e-1b2c-4d3e-8f90-1234567890{index:02d}"),
            index=index,
            minor=index,
            model="NVIDIA H100 80GB HBM3",
            memory_bytes=81559 * MIB + 12345,
            bus_id=f"00000000:{index:02X}:00.0",
            numa=index * 2 // count,
        )
        for index in range(count)
    )
    pairs = {(a, b): Link(Level.SYS, 18) for a in range(count) for b in range(a + 1, count)}
    return Inventory(gpus, Topology(tuple(range(count)), pairs), Driver("550.54.15", (12, 4)))


@given(inventories(), st.booleans())
def test_an_inventory_is_read_as_it_was_written(inventory: Inventory, share_mode: bool) -> None:
    assert parse_inventory(format_inventory(inventory, share_mode=share_mode)) == (inventory, share_mode)


def test_an_inventory_of_64_gpus_stays_under_60_kib() -> None:
    assert len(format_inventory(dgx(64), share_mode=True)) < 60 * 1024


def test_memory_is_floored_to_mib_and_keeps_its_blocks() -> None:
    inventory, _ = parse_inventory(format_inventory(dgx(2), share_mode=True))
    assert inventory.gpus[0].memory_bytes == 81559 * MIB
    assert inventory.gpus[0].blocks == dgx(2).gpus[0].blocks


def test_an_inventory_has_the_documented_form() -> None:
    inventory = dgx(3)
    lost = GpuUuid(inventory.gpus[2].uuid)
    document = json.loads(
        format_inventory(
            Inventory(inventory.gpus, inventory.topology, inventory.driver, {lost: Health(False, "Xid 79")}),
            share_mode=False,
        )
    )
    assert document["version"] == 1
    assert document["share_mode"] is False
    assert document["cuda"] == [12, 4]
    assert document["links"] == ["S18S18", "S18"]
    assert document["gpus"][0] == {
        "uuid": "GPU-5a5f3a4e-1b2c-4d3e-8f90-123456789000",
        "index": 0,
        "minor": 0,
        "model": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81559,
        "bus_id": "00000000:00:00.0",
        "numa": 0,
    }
    assert document["gpus"][2]["unhealthy"] == "Xid 79"


def damaged(**changes: object) -> str:
    return json.dumps(json.loads(format_inventory(dgx(3), share_mode=True)) | changes)


def test_an_inventory_that_cannot_be_true_is_refused() -> None:
    card = {"uuid": "a", "index": 0, "minor": 0, "model": "m", "memory_mib": 1}
    texts = {
        damaged(version=7): "version 7",
        damaged(links=["S18S18"]): "1 rows",
        damaged(links=["S18S18", "Z"]): "minor 1",
        damaged(links=["S18S18S18", "S"]): "minor 0",
        damaged(gpus=[card] * 2, links=["S"]): "same minor",
        damaged(gpus=[card | {"memory_mib": -1}], links=[]): ">= 0",
        damaged(gpus=[card | {"compute_mode": "?"}], links=[]): "compute_mode",
        "{}": "cannot be read",
        "\ud800": "cannot be read",
    }
    said = {text: refusal(ParseError, parse_inventory, text) for text in texts}
    assert [(why, said[text]) for text, why in texts.items() if why not in said[text]] == []


def test_an_inventory_is_bounded_before_its_links_are_read() -> None:
    """Security 15: 650 GPUs fit into an annotation and took a second of the scheduler's loop."""
    document = json.loads(format_inventory(dgx(3), share_mode=True))
    many = [document["gpus"][0] | {"uuid": f"GPU-{n}", "minor": n} for n in range(65)]
    with pytest.raises(ParseError, match="has 65 GPUs; vcuda supports 64 on one node"):
        parse_inventory(json.dumps(document | {"gpus": many, "links": ["no link"]}))
    with pytest.raises(ParseError, match="<= 16777216"):
        parse_inventory(damaged(gpus=[document["gpus"][0] | {"memory_mib": (1 << 24) + 1}], links=[]))


@given(st.text() | st.text(alphabet="PXHNS-0123456789").map(lambda row: damaged(links=[row, "S"])))
def test_any_text_is_an_inventory_or_a_parse_error(text: str) -> None:
    with suppress(ParseError):
        inventory, share_mode = parse_inventory(text)
        assert parse_inventory(format_inventory(inventory, share_mode=share_mode)) == (inventory, share_mode)
