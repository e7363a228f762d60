"""Device IDs: short, unique over both resources, stable for a card, and read back exactly."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError
from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.ids import DeviceSlot, GpuKey, count_by_gpu, device_id, device_ids, gpu_keys, parse_device_id
from deviceplugin.model.units import BLOCK_BYTES, Resource

CORE, MEMORY = Resource.CORE, Resource.MEMORY
UUIDS = st.sets(st.text(max_size=50).map(GpuUuid), min_size=1, max_size=20)
KEYS = st.from_regex(r"[0-9a-z]{6}", fullmatch=True).map(GpuKey)


def card(uuid: str, blocks: int) -> Gpu:
    return Gpu(GpuUuid(uuid), 0, 0, "Test", blocks * BLOCK_BYTES)


def colliding_uuids() -> tuple[GpuUuid, GpuUuid]:
    """Two UUIDs whose first hash is the same: a birthday search, quick because a key has 31 bits."""
    seen: dict[GpuKey, GpuUuid] = {}
    for uuid in (GpuUuid(f"GPU-{number}") for number in range(1 << 18)):
        (key,) = gpu_keys([uuid]).values()
        if key in seen:
            return seen[key], uuid
        seen[key] = uuid
    raise AssertionError("no two of so many hash alike: the key is longer than it was")


def test_the_ids_of_a_node_of_64_large_gpus_are_short_and_unique_over_both_resources() -> None:
    cards = [card(f"GPU-{number}", blocks=768) for number in range(64)]
    keys = gpu_keys(gpu.uuid for gpu in cards)
    ids = [id_ for gpu in cards for resource in Resource for id_ in device_ids(resource, gpu, keys[gpu.uuid])]
    assert len(ids) == len(set(ids)) == 64 * (100 + 768)
    assert max(map(len, ids)) <= 12
    assert all(id_.isascii() and id_.isalnum() for id_ in ids)


@given(uuids=UUIDS)
def test_every_card_has_a_key_of_its_own_whatever_the_order(uuids: set[GpuUuid]) -> None:
    keys = gpu_keys(uuids)
    assert keys.keys() == uuids
    assert len(set(keys.values())) == len(uuids)
    assert keys == gpu_keys(sorted(uuids, reverse=True))
    assert all(len(key) == 6 for key in keys.values())


def test_gpus_with_equal_hashes_get_two_keys_and_the_first_keeps_its_own() -> None:
    first, second = sorted(colliding_uuids())
    (own,) = gpu_keys([first]).values()
    assert gpu_keys([second])[second] == own, "alone, the second has the same key"
    both = gpu_keys([second, first])
    assert both[first] == own
    assert both[second] != own


@given(key=KEYS, resource=st.sampled_from(Resource), number=st.integers(0, 99))
def test_an_id_is_read_back_as_what_it_says(key: GpuKey, resource: Resource, number: int) -> None:
    assert parse_device_id(device_id(resource, key, number)) == DeviceSlot(resource, key, number)


def test_memory_has_room_for_eleven_tebibytes_and_no_slot_is_ever_cut() -> None:
    key = GpuKey("abcdef")
    assert parse_device_id(device_id(MEMORY, key, 36**3 - 1)).number == 36**3 - 1
    with pytest.raises(ParseError, match="does not fit"):
        device_id(MEMORY, key, 36**3)


def unparsable() -> Iterator[str]:
    good = device_id(CORE, GpuKey("abcdef"), 7)
    yield from ["", "c", "cabcdef", good + "0", good[:-1], good.upper(), f" {good}", f"{good}\n", "x" + good[1:]]
    yield from ["cabcdef2s", "cabcdefzz"]  # cores 100 and 1295 of a GPU
    yield from ["mabcdef07", "cabcdef007", "cabc-ef07", "cabcde\u066007", "c" * 10_000, "GPU-8a4b0e5c-1f2d"]


@pytest.mark.parametrize("text", list(unparsable()))
def test_an_id_that_was_never_issued_is_refused_in_one_short_line(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_device_id(text)
    assert "was never issued" in caught.value.message
    assert len(caught.value.message) < 120
    assert "\n" not in caught.value.message


@given(text=st.text(max_size=14))
def test_any_text_is_an_id_or_a_parse_error(text: str) -> None:
    try:
        slot = parse_device_id(text)
    except ParseError:
        return
    assert device_id(slot.resource, slot.key, slot.number) == text


def test_ids_are_counted_for_the_gpus_that_remain() -> None:
    here, gone = GpuUuid("GPU-here"), GpuUuid("GPU-gone")
    keys = gpu_keys([here, gone])
    ids = [device_id(CORE, keys[here], 0), device_id(CORE, keys[here], 1), device_id(MEMORY, keys[gone], 5)]
    assert count_by_gpu(ids, {here: keys[here]}) == {here: 2}
    assert count_by_gpu(ids, keys) == {here: 2, gone: 1}
    assert count_by_gpu([], keys) == {}
    with pytest.raises(ParseError):
        count_by_gpu([*ids, "nonsense"], keys)
