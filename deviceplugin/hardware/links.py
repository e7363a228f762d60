"""How each pair of GPUs is joined, as NVML says: the PCIe level of every pair and the NVLinks between them.

In: the devices of one session and what was known before. Out: a `Topology`. Not here: its text forms
(`simulate.topology_matrix`). Links come up after the agent has started, when the fabric manager has set up the
switches, and go down again, so they are asked for at each survey. Invariant: what a GPU does not say now stays as it is
known.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware.device import Device, NvLinkPeer
from deviceplugin.hardware.nvml import STALE
from deviceplugin.model.gpu import Gpu, Inventory
from deviceplugin.model.topology import NO_LINK, Link, Topology

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    """One side of a pair, and its NVLinks: how many to each other GPU directly, and into each switch.

    `answered` is False if the GPU failed the question for its NVLinks.
    """

    gpu: Gpu
    device: Device
    answered: bool
    direct: Mapping[str, int]
    switches: Mapping[str, int]


def topology_of(gpus: Sequence[Gpu], devices: Mapping[int, Device], *, known: Inventory | None = None) -> Topology:
    """`devices` by minor number; a GPU without one keeps the links that are known of it."""
    places = frozenset(gpu.bus_id for gpu in gpus)
    ends = [_end(gpu, devices[gpu.minor], places) for gpu in gpus if gpu.minor in devices]
    links = {
        (one.minor, other.minor): _known_link(one, other, known) or NO_LINK for one, other in combinations(gpus, 2)
    }
    for one, other in combinations(ends, 2):
        links[one.gpu.minor, other.gpu.minor] = _link(one, other, _known_link(one.gpu, other.gpu, known))
    return Topology(
        minors=tuple(gpu.minor for gpu in gpus), links={pair: link for pair, link in links.items() if link != NO_LINK}
    )


def _known_link(one: Gpu, other: Gpu, known: Inventory | None) -> Link | None:
    """By their UUIDs: a driver that was loaded again may have given them other minor numbers."""
    if known is None:
        return None
    first, second = known.gpu(one.uuid), known.gpu(other.uuid)
    return known.topology.link(first.minor, second.minor) if first and second else None


def _end(gpu: Gpu, device: Device, places: frozenset[str]) -> _End:
    answer: tuple[NvLinkPeer, ...] | None = _unless_failed(device.nvlink_peers, otherwise=None)
    peers = answer or ()
    direct = Counter(peer.bus_id for peer in peers if peer.bus_id in places)
    return _End(
        gpu, device, answer is not None, direct, Counter(peer.bus_id for peer in peers if _into_switch(peer, places))
    )


def _into_switch(peer: NvLinkPeer, places: frozenset[str]) -> bool:
    if peer.is_switch is not None:
        return peer.is_switch
    return bool(peer.bus_id) and peer.bus_id not in places  # drivers before 450 do not say what the far end is


def _link(one: _End, other: _End, known: Link | None) -> Link:
    level = _unless_failed(lambda: one.device.ancestor(other.device), otherwise=known.level if known else None)
    nvlinks = _direct(one, other) + _switched(one, other, known)
    if known is not None and not (one.answered and other.answered):
        nvlinks = max(nvlinks, known.nvlinks)
    return Link(level=level, nvlinks=nvlinks)


def _direct(one: _End, other: _End) -> int:
    return max(one.direct.get(other.gpu.bus_id, 0), other.direct.get(one.gpu.bus_id, 0))


def _switched(one: _End, other: _End, known: Link | None) -> int:
    """As many as the weaker of the two has into switches that both reach; two that share none may have trunks."""
    ones, others = one.switches, other.switches
    if not ones or not others:
        return 0
    before = known.nvlinks > 0 if known is not None else None
    if _unless_failed(lambda: one.device.reaches_by_nvlink(other.device), otherwise=before) is False:
        return 0
    shared = (ones.keys() & others.keys()) or (ones.keys() | others.keys())
    return min(sum(wires.get(switch, 0) for switch in shared) for wires in (ones, others))


def _unless_failed(question: Callable[[], T], *, otherwise: T) -> T:
    try:
        return question()
    except NvmlCallError as error:
        if error.code in STALE:
            raise
        return otherwise
