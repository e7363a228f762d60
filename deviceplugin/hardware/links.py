"""How each pair of GPUs is joined, as NVML tells: the PCIe level of every pair and the NVLinks between them.

In: the devices of one discovery. Out: a `Topology`. Not here: its text forms (`matrix`). Asking is O(n^2), so it is
done once at a discovery. Invariant: a GPU that fails a question loses its own links and nobody else's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware.device import Device, NvLinkPeer
from deviceplugin.hardware.nvml import STALE
from deviceplugin.model.gpu import Gpu, Inventory
from deviceplugin.model.topology import NO_LINK, Level, Link, Topology


@dataclass(frozen=True, slots=True)
class _Wires:
    """The NVLinks of one GPU: so many to each other GPU directly, so many into switches."""

    direct: Mapping[str, int]
    switched: int


_NO_WIRES = _Wires(direct={}, switched=0)


def topology_of(gpus: Sequence[Gpu], devices: Mapping[int, Device], *, known: Inventory | None = None) -> Topology:
    """`devices` by minor number; a GPU without one keeps the links that are known of it."""
    asked = [gpu for gpu in gpus if gpu.minor in devices]
    places = frozenset(gpu.bus_id for gpu in gpus)
    wires = {gpu.minor: _wires(devices[gpu.minor], places) for gpu in asked}
    links: dict[tuple[int, int], Link] = {}
    for one, other in combinations(asked, 2):
        level = _ancestor(devices[one.minor], devices[other.minor])
        nvlinks = _nvlinks(one, wires[one.minor], other, wires[other.minor])
        links[one.minor, other.minor] = Link(level=level, nvlinks=nvlinks)
    for one, other in combinations(gpus, 2) if known is not None else ():
        if (one.minor, other.minor) not in links:
            links[one.minor, other.minor] = _known_link(one, other, known)
    return Topology(
        minors=tuple(gpu.minor for gpu in gpus), links={pair: link for pair, link in links.items() if link != NO_LINK}
    )


def _known_link(one: Gpu, other: Gpu, known: Inventory | None) -> Link:
    if known is None or any(known.gpu(gpu.uuid) is None for gpu in (one, other)):
        return NO_LINK
    return known.topology.link(one.minor, other.minor)


def _nvlinks(one: Gpu, ones: _Wires, other: Gpu, others: _Wires) -> int:
    direct = max(ones.direct.get(other.bus_id, 0), others.direct.get(one.bus_id, 0))
    return direct + min(ones.switched, others.switched)


def _wires(device: Device, places: frozenset[str]) -> _Wires:
    try:
        peers = device.nvlink_peers()
    except NvmlCallError as error:
        if error.code in STALE:
            raise
        return _NO_WIRES
    direct = Counter(peer.bus_id for peer in peers if peer.bus_id in places)
    return _Wires(direct=direct, switched=sum(_into_switch(peer, places) for peer in peers))


def _into_switch(peer: NvLinkPeer, places: frozenset[str]) -> bool:
    if peer.is_switch is not None:
        return peer.is_switch
    return bool(peer.bus_id) and peer.bus_id not in places  # drivers before 450 do not say what the far end is


def _ancestor(one: Device, other: Device) -> Level | None:
    try:
        return one.ancestor(other)
    except NvmlCallError as error:
        if error.code in STALE:
            raise
        return None
