"""A node as the scheduler needs it: what its operator says of it, and its GPUs as its agent wrote them.

In: `kube.cluster_objects` decodes `ClusterNode`. A heartbeat of kubelet changes nothing in it, so the value stays
equal; its `inventory` is text, parsed when it changes. An `Inventory` and whether the node offers shares make JSON with
a version, equal text for equal inventories, and back. Memory is rounded down to MiB, which changes no block count. 64
GPUs have 2,016 links, so a link is one letter for the PCIe level and the number of NVLinks; the annotation stays below
60 KiB. A GPU that disappeared is in it as unhealthy.

Root on a node can write its annotation, and the scheduler reads it in its event loop. So the number of GPUs and the
memory of each are bounded, before the links are read.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import msgspec

from deviceplugin.errors import ParseError, TooManyGpusError
from deviceplugin.model.annotations import VERSION, decode_json
from deviceplugin.model.gpu import ComputeMode, Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.topology import NO_LINK, Level, Link, Topology
from deviceplugin.model.units import MIB, Compute

_WHAT = "vcuda-inventory"
_LETTERS: dict[Level | None, str] = {
    None: "-",
    Level.NVLINK: "V",
    Level.INTERNAL: "I",
    Level.PIX: "P",
    Level.PXB: "X",
    Level.PHB: "H",
    Level.NODE: "N",
    Level.SYS: "S",
}
_LEVELS = {letter: level for level, letter in _LETTERS.items()}
_LINK = re.compile(rf"([{''.join(_LEVELS)}])([0-9]{{0,3}})", re.ASCII)


MOST_GPUS = 64
_MOST_MIB = 1 << 24  # 16 TiB
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Memory = Annotated[int, msgspec.Meta(ge=0, le=_MOST_MIB)]


class _Gpu(msgspec.Struct, omit_defaults=True):
    uuid: GpuUuid
    index: _Count
    minor: _Count
    model: str
    memory_mib: _Memory
    bus_id: str = ""
    numa: int | None = None
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    mig: bool = False
    unhealthy: str | None = None  # the reason; absent if healthy


class _Inventory(msgspec.Struct):
    version: int
    driver: str
    cuda: tuple[int, int]
    share_mode: bool
    gpus: list[_Gpu]
    links: list[str]  # row i: GPU i with each later GPU of the list


def format_inventory(inventory: Inventory, *, share_mode: bool) -> str:
    """The text of the node's `vcuda-inventory`."""
    return msgspec.json.encode(
        _Inventory(
            version=VERSION,
            driver=inventory.driver.version,
            cuda=inventory.driver.cuda,
            share_mode=share_mode,
            gpus=[_written(gpu, inventory.health_of(gpu.uuid)) for gpu in inventory.gpus],
            links=_rows(inventory.topology, [gpu.minor for gpu in inventory.gpus]),
        )
    ).decode()


def parse_inventory(text: str) -> tuple[Inventory, bool]:
    """The inventory, and whether the node offers shares; ParseError for anything else."""
    decoded = decode_json(_Inventory, text, what=_WHAT)
    if decoded.version != VERSION:
        raise ParseError(f"annotation {_WHAT} has version {decoded.version}; this vcuda reads {VERSION}")
    if len(decoded.gpus) > MOST_GPUS:
        raise TooManyGpusError(
            f"annotation {_WHAT} has {len(decoded.gpus)} GPUs; vcuda supports {MOST_GPUS} on one node"
        )
    minors = [gpu.minor for gpu in decoded.gpus]
    for numbers, name in ((minors, "minor"), ([gpu.uuid for gpu in decoded.gpus], "uuid")):
        if len(set(numbers)) != len(numbers):
            raise ParseError(f"annotation {_WHAT} has two GPUs with the same {name}")
    inventory = Inventory(
        gpus=tuple(_read(gpu) for gpu in decoded.gpus),
        topology=_topology(tuple(decoded.links), tuple(minors)),
        driver=Driver(decoded.driver, decoded.cuda),
        health={
            gpu.uuid: Health(healthy=False, reason=gpu.unhealthy) for gpu in decoded.gpus if gpu.unhealthy is not None
        },
    )
    return inventory, decoded.share_mode


def _written(gpu: Gpu, health: Health) -> _Gpu:
    return _Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        minor=gpu.minor,
        model=gpu.model,
        memory_mib=gpu.memory_bytes // MIB,
        bus_id=gpu.bus_id,
        numa=gpu.numa,
        compute_mode=gpu.compute_mode,
        mig=gpu.mig_enabled,
        unhealthy=None if health.healthy else health.reason,
    )


def _read(gpu: _Gpu) -> Gpu:
    return Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        minor=gpu.minor,
        model=gpu.model,
        memory_bytes=gpu.memory_mib * MIB,
        bus_id=gpu.bus_id,
        numa=gpu.numa,
        compute_mode=gpu.compute_mode,
        mig_enabled=gpu.mig,
    )


def _rows(topology: Topology, minors: Sequence[int]) -> list[str]:
    return [
        "".join(_letter(topology.link(minor, other)) for other in minors[place + 1 :])
        for place, minor in enumerate(minors[:-1])
    ]


def _letter(link: Link) -> str:
    return _LETTERS[link.level] + (str(link.nvlinks) if link.nvlinks else "")


@lru_cache(maxsize=64)
def _topology(rows: tuple[str, ...], minors: tuple[int, ...]) -> Topology:
    """One for all nodes that are built alike: a cluster has few kinds of nodes, and each a link for each pair."""
    return Topology(minors=minors, links=_links(rows, minors))


def _links(rows: Sequence[str], minors: Sequence[int]) -> dict[tuple[int, int], Link]:
    if len(rows) != max(0, len(minors) - 1):
        raise ParseError(f"annotation {_WHAT} has {len(rows)} rows of links for {len(minors)} GPUs")
    links: dict[tuple[int, int], Link] = {}
    for place, row in enumerate(rows):
        others = minors[place + 1 :]
        found = _LINK.findall(row)
        # Joined again, because `findall` passes over what it does not know.
        if len(found) != len(others) or "".join(letter + count for letter, count in found) != row:
            raise ParseError(f"annotation {_WHAT} has links that cannot be parsed for minor {minors[place]}")
        for other, (letter, count) in zip(others, found, strict=True):
            link = Link(_LEVELS[letter], int(count or 0))
            if link != NO_LINK:
                links[(minors[place], other)] = link
    return links


class ClusterNode(msgspec.Struct, frozen=True):
    """`cores` and `blocks` are what kubelet offers: 0 while the agent is down. `cordon` has UUIDs and minors.

    `close_nvml`: the agent shall let go of the driver; every GPU is cordoned as long as this is asked.
    `allocatable` is the CPU and memory that kubelet offers, None if unknown. `discouraged`: it has a taint with
    PreferNoSchedule.
    """

    name: str
    uid: str
    inventory: str = ""
    cordon: frozenset[str] = frozenset()
    close_nvml: bool = False
    unschedulable: bool = False
    ready: bool = False
    deleting: bool = False
    cores: int = 0
    blocks: int = 0
    allocatable: Compute | None = None
    discouraged: bool = False

    def cordoned(self, inventory: Inventory) -> frozenset[GpuUuid]:
        """The GPUs that get no new pods; `unmatched` has the words that mean none of them."""
        if self.close_nvml:
            return frozenset(gpu.uuid for gpu in inventory.gpus)
        if not self.cordon:
            return frozenset()
        return frozenset(gpu.uuid for gpu in inventory.gpus if gpu.uuid in self.cordon or str(gpu.minor) in self.cordon)

    def unmatched(self, inventory: Inventory) -> frozenset[str]:
        """The words of the cordon that name no GPU of the node."""
        return self.cordon - {word for gpu in inventory.gpus for word in (gpu.uuid, str(gpu.minor))}


def cordon_words(*texts: str) -> frozenset[str]:
    """The union of several lists: one list cannot uncordon a GPU of another list."""
    return frozenset(word.strip() for text in texts for word in text.split(",") if word.strip())
