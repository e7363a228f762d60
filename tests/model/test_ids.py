"""Device IDs: short, unique over both resources, stable for a card, and naming their GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError
from deviceplugin.model.gpu import Gpu, GpuKey, GpuUuid, device_id, device_ids, gpu_keys, key_of
from deviceplugin.model.units import BLOCK_BYTES, Resource

MEMORY = Resource.MEMORY
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
def test_an_id_names_its_gpu(key: GpuKey, resource: Resource, number: int) -> None:
    assert key_of(device_id(resource, key, number)) == key


def test_memory_has_room_for_eleven_tebibytes_and_no_slot_is_ever_cut() -> None:
    key = GpuKey("abcdef")
    assert device_id(MEMORY, key, 36**3 - 1) == "mabcdefzzz"
    with pytest.raises(ParseError, match="does not fit"):
        device_id(MEMORY, key, 36**3)
