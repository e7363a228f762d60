"""Which GPUs this node has, and how each pair of them is joined: one pass over NVML.

In: an open `Nvml`, what was known before (the cache, or the last pass), sysfs. Out: a `Discovery`: the GPUs, their
`Topology` of PCIe levels and NVLinks, the devices to ask further, and why some are unhealthy. Not here: their health
from now on (`health`), and the text forms of a topology (`simulate.topology_matrix`).

Invariants: one GPU that fails never affects the others. Where its identity is known it stays, unhealthy; else it is
left out, with a note. What a GPU does not say now of its links stays as it is known. Links come up after the agent has
started, when the fabric manager has set up the switches, and go down again, so they are asked for at each survey.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import msgspec

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware import pci
from deviceplugin.hardware.device import Device, NvLinkPeer, count, driver_of
from deviceplugin.hardware.health import GPU_HUNG
from deviceplugin.hardware.nvml import STALE, Nvml, Status, Subject
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import NO_LINK, Link, Topology

T = TypeVar("T")


class _End(msgspec.Struct, frozen=True):
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


VANISHED = "NVML no longer lists it"


class Discovery(msgspec.Struct, frozen=True):
    """One pass: `failed` has the reason for each GPU that is known and does not answer, `notes` are for the log."""

    gpus: tuple[Gpu, ...]
    topology: Topology
    driver: Driver
    devices: Mapping[GpuUuid, Device]
    failed: Mapping[GpuUuid, str]
    counted: int
    notes: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every GPU answered: those that NVML counts, and those that were known before."""
        return not self.failed and len(self.devices) == self.counted


def discover(
    nvml: Nvml, *, known: Inventory | None = None, sys_root: Path = Path("/sys"), hung: Collection[int] = ()
) -> Discovery:
    """Runs on the NVML thread; only a driver that is gone altogether raises. GPUs that hang are not asked."""
    driver = driver_of(nvml)
    found: dict[GpuUuid, tuple[Gpu, Device]] = {}
    silent: dict[int, NvmlCallError] = {}
    counted = count(nvml)
    for index in range(counted):
        if index in hung:
            silent[index] = _hang(index)
            continue
        try:
            device = Device.at(nvml, index)
            gpu = _describe(device, sys_root)
        except NvmlCallError as error:
            if error.code in STALE:
                raise
            silent[index] = error
        else:
            found[gpu.uuid] = (gpu, device)
    present = tuple(gpu for gpu, _device in found.values())
    missing, notes = absent_gpus(present, silent, known.gpus if known is not None else ())
    gpus = tuple(sorted((*present, *missing), key=lambda gpu: (gpu.index, gpu.uuid)))
    by_minor = {gpu.minor: device for gpu, device in found.values()}
    return Discovery(
        gpus=gpus,
        topology=topology_of(gpus, by_minor, known=known),
        driver=driver,
        devices={uuid: device for uuid, (_gpu, device) in found.items()},
        failed={gpu.uuid: reason for gpu, reason in missing.items()},
        counted=counted,
        notes=notes,
    )


def _hang(index: int) -> NvmlCallError:
    sentence = f"{GPU_HUNG}; see the kernel log (dmesg) for NVRM and reset the GPU or reboot the node"
    return NvmlCallError(f"{Subject(index)}: {sentence}", code=Status.TIMEOUT, said=GPU_HUNG)


def _describe(device: Device, sys_root: Path) -> Gpu:
    uuid = device.uuid()
    bus_id = device.bus_id()
    return Gpu(
        uuid=uuid,
        index=device.index,
        minor=device.minor(),
        model=device.name(),
        memory_bytes=device.memory()[0],
        bus_id=bus_id,
        numa=_numa(device, sys_root, bus_id),
        compute_mode=device.compute_mode(),
        mig_enabled=device.mig_enabled(),
    )


def _numa(device: Device, sys_root: Path, bus_id: str) -> int | None:
    """The slot's node first: where GPU memory is a separate node (Grace), NVML returns that one, which has no CPUs."""
    node = pci.numa_node(sys_root, bus_id)
    if node is None:
        node = device.memory_affinity()
    return device.numa_node() if node is None else node


def absent_gpus(
    present: Sequence[Gpu], silent: Mapping[int, NvmlCallError], known: Sequence[Gpu]
) -> tuple[dict[Gpu, str], tuple[str, ...]]:
    """GPUs that are known and did not answer, each with the reason, and notes about those that are dropped.

    `silent` by index: the error for a GPU that NVML counts and that did not answer.
    """
    here = {gpu.uuid for gpu in present}
    unseen = [gpu for gpu in known if gpu.uuid not in here]
    elsewhere = not silent and here and len(unseen) == len(known)
    gone = unseen if elsewhere else [gpu for gpu in unseen if _has_successor(gpu, present)]
    missing = {gpu: silent[gpu.index].said if gpu.index in silent else VANISHED for gpu in unseen if gpu not in gone}
    remembered = {gpu.index for gpu in missing}
    notes = [f"left out: {error.message}" for index, error in silent.items() if index not in remembered]
    why = "no GPU that was known is here any more" if elsewhere else "another GPU has its place now"
    notes += [f"forgot {gpu.uuid}: {why}" for gpu in gone]
    return missing, tuple(notes)


def _has_successor(gpu: Gpu, present: Sequence[Gpu]) -> bool:
    return any(gpu.minor == other.minor or (gpu.bus_id and gpu.bus_id == other.bus_id) for other in present)
