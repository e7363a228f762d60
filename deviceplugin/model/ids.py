"""The device IDs that kubelet handles: one for each core and each memory block of a GPU.

In: the GPUs of the node. Out: IDs of at most 10 characters: `c` or `m`, a 6-character key of the GPU, and the number in
base 36. They are short because kubelet 1.36 writes each one into the status of the pod; unique over both resources
because kubelet's reverse look-up ignores the resource name; derived from the UUID so that they survive reboots. An ID
only hints at the GPU of its holder. The ledger says who has what.
"""

import hashlib
from collections.abc import Iterable
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


def key_of(text: str) -> GpuKey:
    """The key of an ID's GPU, without any check; an unknown text gives a key without a GPU."""
    return GpuKey(text[1 : 1 + _KEY_LENGTH])


def of_gpu(texts: Iterable[str], key: GpuKey) -> set[str]:
    """Those with this key; kubelet offers thousands at a time, so nothing is made of the others."""
    return {text for text in texts if text.startswith(key, 1)}


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
