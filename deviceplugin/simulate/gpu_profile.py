"""Reads a profile of the emulated driver (schema: emulator/README.md) as the node that it describes.

In: its JSON. Out: the inventory that an agent would discover there, and the number of processes on each GPU. Errors
name the place in the document. Of GPUs, models and processes only the fields that placement needs are read; the others
belong to the emulator, whose profiles are compiled from what is read here and from them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Annotated, Any, Literal

import msgspec

from deviceplugin.errors import ParseError, one_line
from deviceplugin.model.gpu import ComputeMode, Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Level, Link, Topology
from deviceplugin.model.units import MIB

LevelName = Literal["internal", "single", "multiple", "hostbridge", "node", "system"]
ModeName = Literal["default", "exclusive_thread", "prohibited", "exclusive_process"]
Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,3}\.[0-9]{1,2}$")]
Mebibytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Position = Annotated[int, msgspec.Meta(ge=0, le=63)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=127)]
_LEVELS = {
    "internal": Level.INTERNAL,
    "single": Level.PIX,
    "multiple": Level.PXB,
    "hostbridge": Level.PHB,
    "node": Level.NODE,
    "system": Level.SYS,
}
_MODES = {
    "default": ComputeMode.DEFAULT,
    "exclusive_thread": ComputeMode.EXCLUSIVE_PROCESS,  # NVML removed the thread form and treats it like this
    "prohibited": ComputeMode.PROHIBITED,
    "exclusive_process": ComputeMode.EXCLUSIVE_PROCESS,
}
_RESERVED_PART = 128  # what the driver keeps for itself if the profile does not say
_BUS_ID = re.compile(r"([0-9A-Fa-f]{4}|[0-9A-Fa-f]{8}):([0-9A-Fa-f]{2}):([01][0-9A-Fa-f])\.0")


class ModelOfProfile(msgspec.Struct, kw_only=True):
    """The fields of a model, and of a GPU that differs from its model."""

    name: Text | None = None
    memory_mib: Mebibytes | None = None
    reserved_mib: Annotated[int, msgspec.Meta(ge=0)] | None = None


class GpuOfProfile(ModelOfProfile, kw_only=True):
    """One entry of `gpus`; its own fields take precedence over those of its model."""

    model: str
    minor: Annotated[int, msgspec.Meta(ge=0, le=1023)] | None = None
    uuid: Text | None = None
    bus_id: str | None = None
    numa: Annotated[int, msgspec.Meta(ge=-1, le=1023)] = -1
    compute_mode: ModeName = "default"
    mig: bool = False


class Group(msgspec.Struct, forbid_unknown_fields=True):
    """GPUs whose common ancestor is at this level or nearer."""

    level: LevelName
    gpus: list[Position]


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    """The levels of all pairs."""

    default: LevelName = "system"
    groups: list[Group] = []


class NvLink(msgspec.Struct, forbid_unknown_fields=True):
    """GPUs that are linked to each other, or each to switches."""

    gpus: list[Position]
    links: Annotated[int, msgspec.Meta(ge=1, le=18)]
    version: str
    via: Literal["direct", "switch"]
    switches: list[str] = []


class RunningProcess(msgspec.Struct):
    """A process on one GPU."""

    gpu: Position
    pid: int
    memory_mib: int


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    format: Literal[1]
    name: Text
    driver: Text
    cuda: Version
    models: dict[str, ModelOfProfile]
    gpus: Annotated[list[GpuOfProfile], msgspec.Meta(max_length=64)]
    cpus: Any = None  # the emulator's
    topology: Tree = msgspec.field(default_factory=Tree)
    nvlink: list[NvLink] = []
    processes: list[RunningProcess] = []


class Profile(msgspec.Struct, frozen=True):
    """The node that a profile describes, in its initial state."""

    inventory: Inventory
    processes: Mapping[GpuUuid, int]


def parse_profile(text: bytes | str, *, source: str = "profile") -> Profile:
    """`source` names the text in errors, for example its path."""
    try:
        return _profile(msgspec.json.decode(text, type=Document))
    except (ParseError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ParseError(f"{source}: {one_line(str(error))}") from None


def _profile(read: Document) -> Profile:
    gpus = tuple(_gpu(read, position) for position in range(len(read.gpus)))
    for field in ("minor", "bus_id", "uuid"):
        _check_unique(field, [getattr(gpu, field) for gpu in gpus])
    running = Counter(_position(read, f"processes[{at}].gpu", process.gpu) for at, process in enumerate(read.processes))
    return Profile(
        inventory=Inventory(gpus=gpus, topology=_topology(read, gpus), driver=Driver(read.driver, _pair(read.cuda))),
        processes={gpu.uuid: running[gpu.index] for gpu in gpus},
    )


def _gpu(read: Document, position: int) -> Gpu:
    own = read.gpus[position]
    model = read.models.get(own.model)
    if model is None:
        raise ParseError(f"there is no model {own.model[:40]!r} in `$.models` - at `$.gpus[{position}].model`")
    name, memory = own.name or model.name, own.memory_mib or model.memory_mib
    if name is None or memory is None:
        raise ParseError(f"name and memory_mib are required in a GPU or its model - at `$.gpus[{position}]`")
    reserved = next(
        (mib for mib in (own.reserved_mib, model.reserved_mib) if mib is not None), memory // _RESERVED_PART
    )
    if reserved >= memory:
        raise ParseError(f"reserved_mib ({reserved}) leaves nothing of memory_mib ({memory}) - at `$.gpus[{position}]`")
    bus_id = _bus_id(own.bus_id, position)
    return Gpu(
        uuid=GpuUuid(own.uuid or _derived_uuid(read.name, bus_id)),
        index=position,
        minor=position if own.minor is None else own.minor,
        model=name,
        memory_bytes=(memory - reserved) * MIB,
        bus_id=bus_id,
        numa=None if own.numa < 0 else own.numa,
        compute_mode=_MODES[own.compute_mode],
        mig_enabled=own.mig,
    )


def _bus_id(given: str | None, position: int) -> str:
    if given is None:
        return f"00000000:{1 + 3 * position:02X}:00.0"
    found = _BUS_ID.fullmatch(given)
    if found is None:
        raise ParseError(f"{given[:40]!r} is not a PCI address (00000000:07:00.0) - at `$.gpus[{position}].bus_id`")
    return f"{found[1]:0>8}:{found[2]}:{found[3]}.0".upper()


def _derived_uuid(profile: str, bus_id: str) -> str:
    digits = f"{fnv(profile, bus_id):016x}{fnv(bus_id, profile):016x}"
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def fnv(one: str, other: str) -> int:
    """64-bit FNV-1a of both, with a zero byte between them."""
    value = 0xCBF29CE484222325
    for byte in f"{one}\0{other}".encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def _pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


def _check_unique(field: str, values: list[object]) -> None:
    for position, value in enumerate(values):
        if (first := values.index(value)) != position:
            raise ParseError(f"{field} {value} is already used by `$.gpus[{first}]` - at `$.gpus[{position}]`")


def _topology(read: Document, gpus: tuple[Gpu, ...]) -> Topology:
    levels = dict.fromkeys(combinations(range(len(gpus)), 2), _LEVELS[read.topology.default])
    for at, group in enumerate(read.topology.groups):
        for pair in _pairs(read, f"topology.groups[{at}].gpus", group.gpus):
            levels[pair] = min(levels[pair], _LEVELS[group.level])
    nvlinks = _nvlinks(read)
    return Topology(
        minors=tuple(gpu.minor for gpu in gpus),
        links={(gpus[a].minor, gpus[b].minor): Link(level, nvlinks[a, b]) for (a, b), level in levels.items()},
    )


def _nvlinks(read: Document) -> Counter[tuple[int, int]]:
    """The number of links of each pair: direct ones, and those to common switches."""
    counts: Counter[tuple[int, int]] = Counter()
    into: dict[int, Counter[str]] = {position: Counter() for position in range(len(read.gpus))}
    for at, joined in enumerate(read.nvlink):
        for pair in _pairs(read, f"nvlink[{at}].gpus", joined.gpus):
            counts[pair] += joined.links if joined.via == "direct" else 0
        for position in joined.gpus:
            into[position].update(_switches(joined, at))
    for a, b in combinations(into, 2):
        counts[a, b] += (into[a] & into[b]).total()
    return counts


def _switches(joined: NvLink, at: int) -> list[str]:
    """The switch at the other end of each link of one GPU."""
    if bool(joined.switches) is not (joined.via == "switch"):
        raise ParseError(
            f'`switches` is required with `"via": "switch"` and not allowed otherwise - at `$.nvlink[{at}]`'
        )
    names = [switch.upper() for switch in joined.switches]
    return [names[link % len(names)] for link in range(joined.links)] if names else []


def _pairs(read: Document, where: str, positions: list[int]) -> Iterator[tuple[int, int]]:
    for at, position in enumerate(positions):
        _position(read, f"{where}[{at}]", position)
        if position in positions[:at]:
            raise ParseError(f"GPU {position} is listed twice - at `$.{where}[{at}]`")
    return combinations(sorted(positions), 2)


def _position(read: Document, where: str, position: int) -> int:
    if position >= len(read.gpus):
        raise ParseError(f"there is no GPU {position}; `$.gpus` has {len(read.gpus)} - at `$.{where}`")
    return position
