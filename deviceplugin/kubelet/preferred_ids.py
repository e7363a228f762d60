"""Which IDs kubelet should take, so that its own books show where a container really sits.

In: the IDs that kubelet offers and how many should come from each GPU. Out: exactly as many IDs as it asked for. Pure.
Only a hint (design 3.1): where a GPU has too few free IDs the rest comes from the others; the ledger is untouched.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from deviceplugin.model.allocation import Allocation
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.ids import GpuKey, key_of
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
    held = Counter(key_of(text) for text in chosen)
    by_key = _by_card(set(available).difference(chosen))
    for key, quota in wanted.items():
        part = max(0, min(quota - held[key], size - len(chosen)))
        offer = sorted(by_key.pop(key, ()))
        chosen += offer[:part]
        by_key[key] = offer[part:]
    for key in sorted(by_key, key=lambda each: (-len(by_key[each]), each)):
        if len(chosen) == size:
            break
        chosen += sorted(by_key[key])[: size - len(chosen)]
    return tuple(chosen)


def _by_card(ids: Iterable[str]) -> dict[GpuKey, list[str]]:
    out: dict[GpuKey, list[str]] = {}
    for text in ids:
        out.setdefault(key_of(text), []).append(text)
    return out
