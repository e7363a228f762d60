"""Compiles a profile of the emulated driver (schema: emulator/README.md) into the form that the driver reads.

In: its JSON. Out: the bytes of sandbox.emulator_layout, every default filled in. Invariant: what `vcuda place` reads of
a profile is read here by the same code, `deviceplugin.simulate.gpu_profile`; this module adds the fields that only the
emulated driver has. Unknown keys are refused. An error names the place in one line.

    python -m sandbox.emulator_profile JSON [COMPILED]    without COMPILED it only checks
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import chain, permutations
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec

from deviceplugin.errors import ParseError, one_line
from deviceplugin.model.gpu import Gpu, Inventory
from deviceplugin.model.topology import Level
from deviceplugin.model.units import MIB
from deviceplugin.simulate.gpu_profile import (
    GpuOfProfile,
    Mebibytes,
    ModelOfProfile,
    ModeName,
    Version,
    fnv,
    parse_profile,
)
from sandbox import emulator_layout as layout

Brand = Literal["nvidia", "tesla", "geforce", "quadro", "rtx", "titan"]
ProcessKind = Literal["compute", "graphics", "mps"]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Watts = Annotated[int, msgspec.Meta(ge=1, le=10000)]
Megahertz = Annotated[int, msgspec.Meta(ge=1, le=20000)]
PciId = Annotated[str, msgspec.Meta(pattern="^0x[0-9A-Fa-f]{1,8}$")]
BusId = Annotated[str, msgspec.Meta(pattern=r"^([0-9A-Fa-f]{4}){1,2}:[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\.0$")]
Numa = Annotated[int, msgspec.Meta(ge=0, le=1023)]
_BRANDS = {"nvidia": 14, "tesla": 2, "geforce": 5, "quadro": 1, "rtx": 13, "titan": 6}  # NVML's numbers
_LINK_VERSIONS = {"1.0": 1, "2.0": 2, "2.2": 3, "3.0": 4, "3.1": 5, "4.0": 6, "5.0": 7}  # NVML's numbers
_FACTS = (
    "cores", "memory_bus_bits", "pcie_generation", "pcie_width", "power_limit_w", "power_idle_w", "sm_clock_mhz",
    "memory_clock_mhz", "fans", "ecc", "mig_capable",
)  # fmt: skip
_STATUS = ("persistence", "gpu_util", "memory_util", "temperature_c", "power_w", "used_mib")
_UUID = re.compile("GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_FIRST_SERIAL, _SERIALS = 1320000000000, 10**10
Entry = dict[str, Any]


class ModelFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of a model beside those of `ModelOfProfile`; 0 and the empty text: derived."""

    compute_capability: Version = ""
    bar1_mib: Mebibytes = 0
    brand: Brand = "nvidia"
    pci_id: PciId = "0x10DE"
    pci_subsystem_id: PciId = "0x0"
    cores: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1024
    memory_bus_bits: Annotated[int, msgspec.Meta(ge=32, le=1 << 16)] = 256
    pcie_generation: Annotated[int, msgspec.Meta(ge=1, le=7)] = 4
    pcie_width: Annotated[int, msgspec.Meta(ge=1, le=32)] = 16
    power_limit_w: Watts = 250
    power_min_w: Watts = 0
    power_max_w: Watts = 0
    power_idle_w: Annotated[int, msgspec.Meta(ge=0, le=10000)] = 25
    sm_clock_mhz: Megahertz = 1500
    memory_clock_mhz: Megahertz = 5000
    fans: Annotated[int, msgspec.Meta(ge=0, le=8)] = 0
    ecc: bool = False
    mig_capable: bool = False
    part_number: str = ""
    vbios: str = ""


class GpuFields(ModelFields, kw_only=True):
    """The fields of a GPU beside those of `GpuOfProfile`; -1: derived."""

    compute_capability: Version
    serial: str = ""
    persistence: bool = False
    gpu_util: Percent = -1
    memory_util: Percent = -1
    used_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 0
    temperature_c: Annotated[int, msgspec.Meta(ge=0, le=150)] = -1
    power_w: Annotated[int, msgspec.Meta(ge=0, le=10000)] = -1


class Processors(msgspec.Struct, forbid_unknown_fields=True):
    """The cores of a NUMA node, as the kernel writes them: 0-15,32-47."""

    numa: Numa
    list: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$")]


class Connection(msgspec.Struct):
    """`NvLink` of gpu_profile, with what only the emulated driver tells apart."""

    gpus: list[int]
    links: int
    version: Literal["1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0"]
    switches: list[BusId] = []


class Process(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A process on one GPU."""

    gpu: int
    pid: Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
    memory_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
    sm: Percent = 0
    memory_util: Percent = 0
    type: ProcessKind = "compute"
    name: str = ""


class Parts(msgspec.Struct):
    """The parts of a document that hold fields of the emulated driver's own."""

    name: str
    models: dict[str, Entry]
    gpus: list[Entry]
    cpus: Annotated[list[Processors], msgspec.Meta(max_length=layout.MAX_NODES)] = []
    nvlink: list[Connection] = []
    processes: list[Process] = []


Fields = TypeVar("Fields", bound=ModelFields)


def compile_profile(text: bytes | str, *, source: str = "profile") -> bytes:
    """`source` names the text in errors, for example its path."""
    inventory = parse_profile(text, source=source).inventory
    try:
        return _compiled(inventory, msgspec.json.decode(text, type=Parts))
    except (ParseError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ParseError(f"{source}: {one_line(str(error))}") from None


def write_profile(document: Mapping[str, Any], path: Path) -> Path:
    """The document as JSON, and the compiled profile beside it, whose path is returned."""
    text = json.dumps(document, indent=1)
    compiled = path.with_suffix(".profile")
    path.write_text(text)
    compiled.write_bytes(compile_profile(text, source=str(path)))
    return compiled


def main(words: Sequence[str]) -> int:
    """Exit status: 0, or 2 where the profile is wrong."""
    profile, *compiled = map(Path, words)
    try:
        content = compile_profile(profile.read_bytes(), source=str(profile))
    except (ParseError, OSError) as error:
        print(f"emulator_profile: {error}", file=sys.stderr)
        return 2
    for path in compiled:
        path.write_bytes(content)
    return 0


def _compiled(inventory: Inventory, parts: Parts) -> bytes:
    for name, model in parts.models.items():
        _fields(model, ModelFields, ModelOfProfile, f"models.{name}")
    gpus = [_gpu(parts, gpu) for gpu in inventory.gpus]
    _check_serials(gpus)
    _add_levels(inventory, gpus)
    switches = _add_links(parts, gpus)
    processes = list(chain.from_iterable(_processes(parts, gpu) for gpu in range(len(gpus))))
    for process in parts.processes:
        gpus[process.gpu].process_count += 1
    return layout.profile(_header(inventory, parts, switches), gpus, processes)


def _header(inventory: Inventory, parts: Parts, switches: Sequence[str]) -> layout.Header:
    major, minor = inventory.driver.cuda
    header = layout.Header(
        cuda=major * 1000 + minor * 10,
        name=_text(parts.name, 128, "name"),
        driver=_text(inventory.driver.version, 80, "driver"),
        node_count=len(parts.cpus),
        switch_count=len(switches),
    )
    if len({cpus.numa for cpus in parts.cpus}) < len(parts.cpus):
        raise ParseError("a NUMA node is listed twice - at `$.cpus`")
    for at, cpus in enumerate(parts.cpus):
        header.nodes[at] = layout.node(cpus.numa, _cores(cpus.list, f"cpus[{at}].list"))
    for at, bus_id in enumerate(switches):
        header.switches[at].bus_id = bus_id.encode()
    return header


def _gpu(parts: Parts, gpu: Gpu) -> layout.Gpu:
    where = f"gpus[{gpu.index}]"
    given = {key: value for key, value in parts.gpus[gpu.index].items() if value is not None}
    entry = parts.models[given["model"]] | given
    own = _fields(entry, GpuFields, GpuOfProfile, where)
    _check_gpu(gpu, own, where)
    return layout.Gpu(
        facts=_facts(parts.name, gpu, own, entry["memory_mib"], where),
        compute_mode=get_args(ModeName).index(entry.get("compute_mode", "default")),
        mig=gpu.mig_enabled,
        **{name: getattr(own, name) for name in _STATUS},
    )


def _fields(entry: Entry, kind: type[Fields], known: type[ModelOfProfile], where: str) -> Fields:
    """Those that gpu_profile does not know."""
    rest = {key: value for key, value in entry.items() if key not in known.__struct_fields__}
    try:
        return msgspec.convert(rest, kind)
    except msgspec.ValidationError as error:
        cause, _, place = str(error).partition(" - at `$")
        raise ParseError(f"{cause} - at `$.{where}{place or '`'}") from None


def _check_gpu(gpu: Gpu, own: GpuFields, where: str) -> None:
    if not _UUID.fullmatch(gpu.uuid):
        raise ParseError(f"{gpu.uuid!r} is not like {_UUID.pattern} - at `$.{where}.uuid`")
    if not _least_power(own) <= own.power_limit_w <= _most_power(own):
        raise ParseError(f"power_limit_w is not between power_min_w and power_max_w - at `$.{where}`")
    if gpu.mig_enabled and not own.mig_capable:
        raise ParseError(f"mig is on, and the model is not mig_capable - at `$.{where}`")


def _facts(profile: str, gpu: Gpu, own: GpuFields, memory_mib: int, where: str) -> layout.GpuFacts:
    domain, bus, device = (int(part, 16) for part in gpu.bus_id.removesuffix(".0").split(":"))
    major, minor = map(int, own.compute_capability.split("."))
    return layout.GpuFacts(
        name=_text(gpu.model, 96, f"{where}.name"),
        uuid=gpu.uuid.encode(),
        serial=_text(_serial(profile, gpu, own), 32, f"{where}.serial"),
        bus_id=gpu.bus_id.encode(),
        part_number=_text(own.part_number, 32, f"{where}.part_number"),
        vbios=_text(own.vbios, 32, f"{where}.vbios"),
        minor=gpu.minor,
        numa=-1 if gpu.numa is None else gpu.numa,
        domain=domain,
        bus=bus,
        device=device,
        pci_id=int(own.pci_id, 16),
        pci_subsystem_id=int(own.pci_subsystem_id, 16),
        memory_mib=memory_mib,
        reserved_mib=memory_mib - gpu.memory_bytes // MIB,
        bar1_mib=own.bar1_mib or 1 << (memory_mib - 1).bit_length(),
        capability_major=major,
        capability_minor=minor,
        brand=_BRANDS[own.brand],
        power_min_w=_least_power(own),
        power_max_w=_most_power(own),
        **{name: getattr(own, name) for name in _FACTS},
    )


def _least_power(own: GpuFields) -> int:
    return own.power_min_w or (own.power_limit_w + 1) // 2


def _most_power(own: GpuFields) -> int:
    return own.power_max_w or own.power_limit_w


def _serial(profile: str, gpu: Gpu, own: GpuFields) -> str:
    if own.brand == "geforce":
        return ""
    return own.serial or str(_FIRST_SERIAL + fnv(profile, gpu.bus_id) % _SERIALS)


def _check_serials(gpus: Sequence[layout.Gpu]) -> None:
    serials = [gpu.facts.serial for gpu in gpus if gpu.facts.serial]
    if len(set(serials)) < len(serials):
        raise ParseError("two GPUs have the same serial - at `$.gpus`")


def _add_levels(inventory: Inventory, gpus: Sequence[layout.Gpu]) -> None:
    for one, other in permutations(inventory.gpus, 2):
        level = inventory.topology.link(one.minor, other.minor).level
        assert level is not None
        gpus[one.index].facts.level[other.index] = 0 if level is Level.INTERNAL else level


def _add_links(parts: Parts, gpus: Sequence[layout.Gpu]) -> list[str]:
    """The switches, in the order of their numbers."""
    numbers: dict[str, int] = {}
    for at, joined in enumerate(parts.nvlink):
        switches = [numbers.setdefault(_long_bus_id(each), len(numbers)) for each in joined.switches]
        for gpu in joined.gpus:
            _add_ends(gpus[gpu].facts, _ends(joined, gpu, switches), joined.version, f"nvlink[{at}]")
    if len(numbers) > layout.MAX_SWITCHES:
        raise ParseError(f"there are more than {layout.MAX_SWITCHES} switches - at `$.nvlink`")
    return list(numbers)


def _ends(joined: Connection, gpu: int, switches: Sequence[int]) -> list[layout.GpuLink]:
    """What is at the other end of each link of one GPU."""
    if switches:
        return [layout.GpuLink(-1, switches[link % len(switches)]) for link in range(joined.links)]
    peers = [peer for peer in joined.gpus if peer != gpu]
    return [layout.GpuLink(peer, -1) for peer in peers for _ in range(joined.links)]


def _add_ends(facts: layout.GpuFacts, ends: Sequence[layout.GpuLink], version: str, where: str) -> None:
    total = facts.link_count + len(ends)
    if total > layout.MAX_LINKS:
        raise ParseError(f"a GPU would have more than {layout.MAX_LINKS} links - at `$.{where}`")
    if facts.link_count and facts.link_version != _LINK_VERSIONS[version]:
        raise ParseError(f"a GPU would have links of two versions - at `$.{where}`")
    facts.links[facts.link_count : total] = ends
    facts.link_count, facts.link_version = total, _LINK_VERSIONS[version]


def _long_bus_id(bus_id: str) -> str:
    domain, rest = bus_id.split(":", 1)
    return f"{domain:0>8}:{rest}".upper()


def _processes(parts: Parts, gpu: int) -> list[layout.Process]:
    found = [(at, process) for at, process in enumerate(parts.processes) if process.gpu == gpu]
    if len(found) > layout.MAX_PROCESSES:
        raise ParseError(f"GPU {gpu} has more than {layout.MAX_PROCESSES} processes - at `$.processes`")
    if len({process.pid for _, process in found}) < len(found):
        raise ParseError(f"a process is listed twice for GPU {gpu} - at `$.processes`")
    return [_process(process, f"processes[{at}].name") for at, process in found]


def _process(process: Process, where: str) -> layout.Process:
    return layout.Process(
        pid=process.pid,
        kind=get_args(ProcessKind).index(process.type),
        memory_mib=process.memory_mib,
        sm=process.sm,
        memory_util=process.memory_util,
        name=_text(process.name, 64, where),
    )


def _cores(text: str, where: str) -> int:
    """A bit for each core."""
    cores = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not low <= high < layout.MAX_CPUS:
            raise ParseError(f"{part} is not a range of cores below {layout.MAX_CPUS} - at `$.{where}`")
        cores |= (1 << high + 1) - (1 << low)
    return cores


def _text(value: str, size: int, where: str) -> bytes:
    """`size`: of the C string, with its end."""
    encoded = value.encode()
    if len(encoded) >= size or not value.isprintable():
        raise ParseError(f"{value[:40]!r} is not a printable text of at most {size - 1} bytes - at `$.{where}`")
    return encoded


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
