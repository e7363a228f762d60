"""The node on which `vcuda place` places, from a file and the command line.

In: a topology (the output of `nvidia-smi topo -m`, or a profile of the emulated driver; the content tells which), and
the unhealthy, occupied or named GPUs. Out: inventory and allocations of the agent's own types, or one sentence.
"""

from collections.abc import Iterable
from dataclasses import replace

import click

from deviceplugin.errors import ConfigError, ParseError
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.request import Request
from deviceplugin.model.units import CORES_PER_GPU, MIB, format_blocks
from deviceplugin.placement.describe import gpus_text
from deviceplugin.placement.occupancy import occupied
from deviceplugin.simulate.gpu_profile import Profile, parse_profile
from deviceplugin.simulate.topology_matrix import parse_matrix

DEFAULT_GPU_MEMORY_MIB = 80 * 1024
_LARGEST_FILE = 1 << 20


def read_node(file: str, gpu_memory_mib: int | None) -> Profile:
    source = "standard input" if file == "-" else file
    with click.open_file(file, "rb") as opened:
        content = opened.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise ParseError(f"{source}: larger than 1 MiB, so neither a topology matrix nor a profile")
    if content.lstrip()[:1] == b"{":
        profile = parse_profile(content, source=source)
        return profile if gpu_memory_mib is None else _resized(profile, gpu_memory_mib)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"{source}: byte {error.start} is not UTF-8 text, so this is not a topology matrix") from None
    return _bare_node(text, source, gpu_memory_mib or DEFAULT_GPU_MEMORY_MIB)


def _resized(profile: Profile, mib: int) -> Profile:
    gpus = tuple(replace(gpu, memory_bytes=mib * MIB) for gpu in profile.inventory.gpus)
    return replace(profile, inventory=replace(profile.inventory, gpus=gpus))


def _bare_node(text: str, source: str, mib: int) -> Profile:
    """The node of a matrix, which describes only the links between GPUs."""
    topology = parse_matrix(text, source=source)
    gpus = tuple(
        Gpu(uuid=GpuUuid(f"GPU-{minor}"), index=at, minor=minor, model="unknown", memory_bytes=mib * MIB)
        for at, minor in enumerate(topology.minors)
    )
    return Profile(inventory=Inventory(gpus=gpus, topology=topology, driver=Driver("", (0, 0))), processes={})


def with_unhealthy(inventory: Inventory, minors: Iterable[int]) -> Inventory:
    unhealthy = {gpu_at(inventory, minor, "--unhealthy").uuid: Health(healthy=False) for minor in minors}
    return replace(inventory, health=unhealthy)


def gpu_at(inventory: Inventory, minor: int, flag: str) -> Gpu:
    for gpu in inventory.gpus:
        if gpu.minor == minor:
            return gpu
    here = gpus_text(gpu.minor for gpu in inventory.gpus) if inventory.gpus else "no GPU"
    raise ConfigError(f"{flag} names GPU {minor}, but the topology has {here}")


def named(inventory: Inventory, names: Iterable[str], flag: str) -> frozenset[GpuUuid]:
    """GPUs that the command line names by minor number or by UUID."""
    by_uuid = {gpu.uuid: gpu for gpu in inventory.gpus}
    found = []
    for name in names:
        if name.isascii() and name.isdigit() and len(name) < 10:
            found.append(gpu_at(inventory, int(name), flag).uuid)
        elif (uuid := GpuUuid(name)) in by_uuid:
            found.append(uuid)
        else:
            raise ConfigError(
                f"{flag} names {name[:60]!r}, which is not a GPU of the topology; give a minor number or a UUID"
            )
    return frozenset(found)


def allocations_of(inventory: Inventory, held: Iterable[tuple[int, int, int | None]]) -> list[Allocation]:
    """Each --occupied as a pod of its own."""
    allocations = []
    for number, (minor, cores, blocks) in enumerate(held):
        gpu = gpu_at(inventory, minor, "--occupied")
        taken = blocks if blocks is not None else gpu.blocks if cores >= CORES_PER_GPU else 0
        owner = ContainerRef(PodRef(PodUid(f"occupied-{number}"), "", ""), "")
        share = GpuShare(gpu.uuid, cores, taken)
        allocations.append(Allocation(owner, ContainerRole.APP, Request(cores, taken), (share,)))
    totals = occupied(allocations)
    for gpu in inventory.gpus:
        if gpu.uuid in totals and (totals[gpu.uuid].cores > CORES_PER_GPU or totals[gpu.uuid].blocks > gpu.blocks):
            raise ConfigError(
                f"--occupied takes {totals[gpu.uuid].cores} cores and {format_blocks(totals[gpu.uuid].blocks)} of "
                f"GPU {gpu.minor}, which has {CORES_PER_GPU} cores and {format_blocks(gpu.blocks)}"
            )
    return allocations
