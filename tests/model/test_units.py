"""The two units, and their names."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.units import BLOCK_BYTES, MIB, Resource, ResourceNames, blocks_in, format_blocks


def test_a_card_has_only_whole_blocks() -> None:
    expected = {0: 0, 255: 0, 256: 1, 511: 1, 512: 2, 81559: 318, 40960: 160, 15109: 59}
    assert {mib: blocks_in(mib * MIB) for mib in expected} == expected


def test_the_remainders_of_two_gpus_do_not_make_a_block() -> None:
    card = BLOCK_BYTES + BLOCK_BYTES // 2
    assert blocks_in(card) + blocks_in(card) == 2
    assert blocks_in(2 * card) == 3


@given(memory=st.integers(0, 1 << 50))
def test_the_blocks_of_a_card_fit_on_it_and_no_more_would(memory: int) -> None:
    assert blocks_in(memory) * BLOCK_BYTES <= memory < (blocks_in(memory) + 1) * BLOCK_BYTES


def test_blocks_are_shown_with_their_size() -> None:
    expected = {0: "0 blocks (0 GiB)", 1: "1 block (256 MiB)", 4: "4 blocks (1 GiB)", 318: "318 blocks (81408 MiB)"}
    assert {blocks: format_blocks(blocks) for blocks in expected} == expected


def test_the_domain_is_that_of_both_resources() -> None:
    assert (ResourceNames().core, ResourceNames().memory) == ("tencent.com/vcuda-core", "tencent.com/vcuda-memory")
    names = ResourceNames("example.org")
    assert [names.of(resource) for resource in Resource] == ["example.org/vcuda-core", "example.org/vcuda-memory"]


def test_each_resource_is_the_other_of_the_other() -> None:
    assert {resource.other for resource in Resource} == set(Resource)
    assert all(resource.other.other is resource for resource in Resource)
