"""Which IDs kubelet should take, so that its own books show where a container really sits.

In: the IDs that kubelet offers and how many should come from each GPU. Out: exactly as many IDs as it asked for. Pure.
Only a hint (design 3.1): where a GPU has too few free IDs the rest comes from the others; the ledger is untouched.
"""

from collections.abc import Mapping, Sequence

from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import Allocation
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.ids import GpuKey, parse_device_id
from deviceplugin.model.units import Resource


def quotas(allocation: Allocation, resource: Resource, keys: Mapping[GpuUuid, GpuKey]) -> dict[GpuKey, int]:
    """How many IDs of each GPU: its share of the cores, or an even part of the blocks that were asked for."""
    if resource is Resource.CORE:
        return {keys[share.uuid]: share.cores for share in allocation.shares if share.uuid in keys}
    left = allocation.request.blocks
    out: dict[GpuKey, int] = {}
    for share in allocation.shares:
        part = min(left, allocation.request.blocks_per_gpu)
        left -= part
        if share.uuid in keys:
            out[keys[share.uuid]] = part
    return out


def choose_ids(
    available: Sequence[str], must_include: Sequence[str], size: int, wanted: Mapping[GpuKey, int]
) -> tuple[str, ...]:
    """`must_include` first, then each GPU's quota in slot order, then whatever is left, fullest offer first."""
    chosen = list(dict.fromkeys(must_include))[:size]
    taken = set(chosen)
    by_key: dict[GpuKey, list[str]] = {}
    for text in sorted(set(available) - taken):
        by_key.setdefault(_key(text), []).append(text)
    held = _count(chosen)
    for key, quota in wanted.items():
        offer = by_key.get(key, [])
        part = max(0, min(quota - held.get(key, 0), size - len(chosen)))
        chosen += offer[:part]
        by_key[key] = offer[part:]
    for offer in sorted(by_key.values(), key=len, reverse=True):
        chosen += offer[: size - len(chosen)]
    return tuple(chosen)


def _count(ids: Sequence[str]) -> dict[GpuKey, int]:
    out: dict[GpuKey, int] = {}
    for text in ids:
        out[_key(text)] = out.get(_key(text), 0) + 1
    return out


def _key(text: str) -> GpuKey:
    """The card of an ID; IDs of another plugin, left over in kubelet's books, belong to none."""
    try:
        return parse_device_id(text).key
    except ParseError:
        return GpuKey("")
