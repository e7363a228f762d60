"""The document that describes an emulated node, as emulator/README.md specifies it.

In and out: JSON, through msgspec. Here stand the keys, their types and their ranges; what they mean is `profile`'s to
say. Keys of type Any are the emulator's alone: they may be given and are not looked at.
"""

from typing import Annotated, Any, Literal

import msgspec

LevelName = Literal["internal", "single", "multiple", "hostbridge", "node", "system"]
ModeName = Literal["default", "exclusive_thread", "prohibited", "exclusive_process"]
Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,3}\.[0-9]{1,2}$")]
Mebibytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Position = Annotated[int, msgspec.Meta(ge=0, le=63)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=127)]


class Card(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What may be said of a model, and of a GPU that differs from it."""

    name: Text | None = None
    memory_mib: Mebibytes | None = None
    compute_capability: Version | None = None
    reserved_mib: Any = None
    bar1_mib: Any = None
    brand: Any = None
    pci_id: Any = None
    pci_subsystem_id: Any = None
    cores: Any = None
    memory_bus_bits: Any = None
    pcie_generation: Any = None
    pcie_width: Any = None
    power_limit_w: Any = None
    power_min_w: Any = None
    power_max_w: Any = None
    power_idle_w: Any = None
    sm_clock_mhz: Any = None
    memory_clock_mhz: Any = None
    fans: Any = None
    ecc: Any = None
    mig_capable: Any = None
    part_number: Any = None
    vbios: Any = None


class CardOfNode(Card, forbid_unknown_fields=True, kw_only=True):
    """One entry of `gpus`; what it says itself wins over its model."""

    model: str
    minor: Annotated[int, msgspec.Meta(ge=0, le=1023)] | None = None
    uuid: Text | None = None
    serial: Any = None
    bus_id: str | None = None
    numa: Annotated[int, msgspec.Meta(ge=-1, le=1023)] = -1
    compute_mode: ModeName = "default"
    mig: bool = False
    persistence: Any = None
    gpu_util: Any = None
    memory_util: Any = None
    used_mib: Any = None
    temperature_c: Any = None
    power_w: Any = None


class Group(msgspec.Struct, forbid_unknown_fields=True):
    """GPUs that meet at a level or nearer."""

    level: LevelName
    gpus: list[Position]


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    """The levels of all pairs."""

    default: LevelName = "system"
    groups: list[Group] = []


class NvLink(msgspec.Struct, forbid_unknown_fields=True):
    """GPUs joined to each other, or each to switches."""

    gpus: list[Position]
    links: Annotated[int, msgspec.Meta(ge=1, le=18)]
    version: str
    via: Literal["direct", "switch"]
    switches: list[str] = []


class RunningProcess(msgspec.Struct, forbid_unknown_fields=True):
    """A process on one GPU."""

    gpu: Position
    pid: int
    memory_mib: int
    sm: Any = None
    memory_util: Any = None
    type: Any = None
    name: Any = None


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    format: Literal[1]
    name: Text
    driver: Text
    cuda: Version
    models: dict[str, Card]
    gpus: Annotated[list[CardOfNode], msgspec.Meta(max_length=64)]
    cpus: Any = None
    topology: Tree = msgspec.field(default_factory=Tree)
    nvlink: list[NvLink] = []
    processes: list[RunningProcess] = []
