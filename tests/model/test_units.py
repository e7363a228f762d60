"""The two units, and their names."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.units import BLOCK_BYTES, Resource, ResourceNames, blocks_in, format_blocks


@given(memory=st.integers(0, 1 << 50))
def test_the_blocks_of_a_card_fit_on_it_and_no_more_would(memory: int) -> None:
    assert blocks_in(memory) * BLOCK_BYTES <= memory < (blocks_in(memory) + 1) * BLOCK_BYTES


def test_blocks_are_shown_with_their_size() -> None:
    expected = {0: "0 blocks (0 GiB)", 1: "1 block (256 MiB)", 4: "4 blocks (1 GiB)", 318: "318 blocks (79.5 GiB)"}
    assert {blocks: format_blocks(blocks) for blocks in expected} == expected


def test_the_domain_is_that_of_both_resources() -> None:
    assert (ResourceNames().core, ResourceNames().memory) == ("tencent.com/vcuda-core", "tencent.com/vcuda-memory")
    names = ResourceNames("example.org")
    assert [names.of(resource) for resource in Resource] == ["example.org/vcuda-core", "example.org/vcuda-memory"]


def test_each_resource_is_the_other_of_the_other() -> None:
    assert {resource.other for resource in Resource} == set(Resource)
    assert all(resource.other.other is resource for resource in Resource)
