"""The device IDs that kubelet handles: one for each core and each memory block of a GPU.

In: the GPUs of the node. Out: IDs of at most 10 characters: `c` or `m`, a 6-character key of the GPU, and the number in
base 36. They are short because kubelet 1.36 writes each one into the status of the pod; unique over both resources
because kubelet's reverse look-up ignores the resource name; derived from the UUID so that they survive reboots. An ID
only hints at the GPU of its holder. The ledger says who has what.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NewType

from deviceplugin.errors import ParseError
from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.units import CORES_PER_GPU, Resource

DeviceId = NewType("DeviceId", str)
GpuKey = NewType("GpuKey", str)

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_KEY_LENGTH = 6
_PREFIX = {Resource.CORE: "c", Resource.MEMORY: "m"}
_SLOT_DIGITS = {Resource.CORE: 2, Resource.MEMORY: 3}  # 36**3 blocks are 11 TiB of one GPU


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """The content of an ID: the resource, the key of the GPU, and the number of the core or block."""

    resource: Resource
    key: GpuKey
    number: int


def gpu_keys(uuids: Iterable[GpuUuid]) -> dict[GpuUuid, GpuKey]:
    """A key for each GPU; if two hashes are equal, the later UUID is hashed again."""
    keys: dict[GpuUuid, GpuKey] = {}
    taken: set[GpuKey] = set()
    for uuid in sorted(set(uuids)):
        attempt = 0
        while (key := _hash(uuid, attempt)) in taken:
            attempt += 1
        taken.add(key)
        keys[uuid] = key
    return keys


def device_id(resource: Resource, key: GpuKey, number: int) -> DeviceId:
    return DeviceId(f"{_PREFIX[resource]}{key}{_base36(number, _SLOT_DIGITS[resource])}")


def device_ids(resource: Resource, gpu: Gpu, key: GpuKey) -> tuple[DeviceId, ...]:
    """All IDs of one GPU, by number."""
    count = CORES_PER_GPU if resource is Resource.CORE else gpu.blocks
    return tuple(device_id(resource, key, number) for number in range(count))


def parse_device_id(text: str) -> DeviceSlot:
    """Parses an ID; a text that is not an ID of vcuda is a ParseError."""
    for resource, prefix in _PREFIX.items():
        digits = _SLOT_DIGITS[resource]
        if len(text) == 1 + _KEY_LENGTH + digits and text[0] == prefix and set(text[1:]) <= set(_ALPHABET):
            number = int(text[-digits:], 36)
            if resource is Resource.MEMORY or number < CORES_PER_GPU:
                return DeviceSlot(resource, GpuKey(text[1 : 1 + _KEY_LENGTH]), number)
    raise ParseError(f"device ID {text[:40]!r} was never issued by this agent")


def key_of(text: str) -> GpuKey:
    """The key of an ID's GPU, without any check; an unknown text gives a key without a GPU.

    GetPreferredAllocation offers thousands of IDs at once; `parse_device_id` is for IDs that are not trusted.
    """
    return GpuKey(text[1 : 1 + _KEY_LENGTH])


def count_by_gpu(ids: Iterable[str], keys: Mapping[GpuUuid, GpuKey]) -> dict[GpuUuid, int]:
    """How many IDs point to each present GPU."""
    by_key = {key: uuid for uuid, key in keys.items()}
    counts: dict[GpuUuid, int] = {}
    for text in ids:
        uuid = by_key.get(parse_device_id(text).key)
        if uuid is not None:
            counts[uuid] = counts.get(uuid, 0) + 1
    return counts


def _hash(uuid: str, attempt: int) -> GpuKey:
    digest = hashlib.sha256(f"{uuid}#{attempt}".encode() if attempt else uuid.encode()).digest()
    return GpuKey(_base36(int.from_bytes(digest[:8], "big") % 36**_KEY_LENGTH, _KEY_LENGTH))


def _base36(number: int, digits: int) -> str:
    out = ""
    for _ in range(digits):
        number, rest = divmod(number, 36)
        out = _ALPHABET[rest] + out
    if number:
        raise ParseError(f"slot does not fit into {digits} base-36 digits")
    return out
