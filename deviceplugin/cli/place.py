"""`vcuda place`: which GPUs a request would get on a node that a file describes.

In: a topology (the output of `nvidia-smi topo -m`, or a profile of the emulated driver; the content tells which), the
occupied and the unhealthy GPUs, and a request. Out: the chosen minor numbers and the reason, or one sentence that says
why there are none. The agent's own placement chooses.
"""

import math
import re
from collections.abc import Iterable
from contextlib import suppress

import click

from deviceplugin.cli.command import output_option
from deviceplugin.cli.terminal import say, show_document
from deviceplugin.config.param_types import SettingType
from deviceplugin.errors import ConfigError, ParseError, RequestError
from deviceplugin.kube.structs import exact_quantity
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.pod import MOST_MIB
from deviceplugin.model.pod_request import MOST_PARTS
from deviceplugin.model.preferences import GpuFilter, GpuPolicy
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.units import (
    BLOCK_BYTES,
    BLOCK_MIB,
    CORES_PER_GPU,
    DEFAULT_CORES,
    MIB,
    blocks_for,
    format_blocks,
)
from deviceplugin.placement.describe import gpus_text
from deviceplugin.placement.pod import Choice
from deviceplugin.placement.pod import place as choose
from deviceplugin.placement.snapshot import occupied, snapshot_for
from deviceplugin.simulate.gpu_profile import Profile, parse_profile
from deviceplugin.simulate.topology_matrix import parse_matrix
from deviceplugin.structs import replace

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


_UNITS = tuple("iMGTPE")
"""How quantities of memory end: 8Gi, 8192Mi, 9G."""


def _read_occupied(text: str) -> tuple[int, int, int | None]:
    parts = text.split(":")
    if not 2 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ValueError(f"{text!r} is not MINOR:CORES or MINOR:CORES:BLOCKS in whole numbers")
    minor, cores, *blocks = (int(part) for part in parts)
    return minor, cores, blocks[0] if blocks else None


def _read_cores(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text, re.ASCII):
        percent = text.removesuffix("%")
        example = percent if re.fullmatch(r"[0-9]{1,9}", percent, re.ASCII) and percent != text else "20"
        raise ValueError(
            f"{text[:40]!r} is no number of cores (1/100 of a GPU's time); write {example} for {example} %"
        )
    return int(text)


def _read_memory(text: str) -> int:
    """Blocks, as pods write them; or a quantity of bytes, which the webhook too rounds up to blocks."""
    if text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 20:
        return int(text)
    with suppress(ParseError):
        size = exact_quantity(text)
        if text.endswith(_UNITS) and size >= 0:
            return math.ceil(size / BLOCK_BYTES)
    raise ValueError(f"{text[:40]!r} is no memory; write blocks of 256 MiB such as 32, or a quantity such as 8Gi")


_OCCUPIED = SettingType("cores and blocks of a GPU", "MINOR:CORES[:BLOCKS]", _read_occupied)
_CORES = SettingType("cores", "CORES", _read_cores)
_MEMORY = SettingType("memory", "BLOCKS|QUANTITY", _read_memory)


@click.command("place")
@click.option(
    "--topology",
    "file",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    required=True,
    metavar="FILE",
    help="Output of `nvidia-smi topo -m`, or a profile of the emulated driver; -: standard input.",
)
@click.option(
    "--occupied",
    "held",
    type=_OCCUPIED,
    metavar=_OCCUPIED.metavar,
    multiple=True,
    help="Cores and 256 MiB memory blocks of a GPU that are in use; may be repeated, also for one GPU. Without BLOCKS: "
    "all memory for 100 cores, none for fewer.",
)
@click.option(
    "--unhealthy",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="MINOR",
    help="Treat this GPU as unhealthy; may be repeated.",
)
@click.option(
    "--cores",
    type=_CORES,
    metavar=_CORES.metavar,
    help="Requested cores (1/100 of a GPU): 1-99 for a share, 100 for a GPU, then multiples of 100. Without them a "
    f"request for memory gets {DEFAULT_CORES} of each GPU, as from the webhook.",
)
@click.option(
    "--memory-mib",
    "mib",
    type=click.IntRange(1, MOST_MIB),
    metavar="MIB",
    help="Requested memory in MiB, as in tencent.com/vcuda-memory-mib, rounded up to blocks of 256 MiB.",
)
@click.option(
    "--memory",
    "blocks",
    type=_MEMORY,
    metavar=_MEMORY.metavar,
    default="0",
    help="The same in blocks of 256 MiB, or as a quantity such as 8Gi. Without memory a share gets its part of the "
    "smallest GPU, as from the webhook.",
)
@click.option(
    "--gpu-memory",
    "gpu_memory_mib",
    type=click.IntRange(min=1, max=1 << 24),
    metavar="MIB",
    help=f"Memory of each GPU in MiB. Default: that of the profile; for a matrix {DEFAULT_GPU_MEMORY_MIB} (80 GiB).",
)
@click.option(
    "--gpus",
    "parts",
    type=click.IntRange(1, MOST_PARTS),
    default=1,
    metavar="N",
    help="Split a share evenly over this number of GPUs; whole GPUs need only --cores.",
)
@click.option(
    "--gpu-policy",
    "policy",
    type=click.Choice([policy.value for policy in GpuPolicy]),
    default=GpuPolicy.BINPACK.value,
    show_default=True,
    help="Which of the GPUs that fit to choose; docs/policies.md describes the policies.",
)
@click.option("--model", "models", multiple=True, help="Use only models whose name contains this; may be repeated.")
@click.option(
    "--avoid-model", "not_models", multiple=True, help="Avoid models whose name contains this; may be repeated."
)
@click.option(
    "--use-gpu",
    "use",
    multiple=True,
    metavar="GPU",
    help="Use only this GPU, by minor number or UUID; may be repeated.",
)
@click.option(
    "--avoid-gpu",
    "avoid",
    multiple=True,
    metavar="GPU",
    help="Avoid this GPU, by minor number or UUID; may be repeated.",
)
@click.option("--one-numa", is_flag=True, help="Require all GPUs on one NUMA node.")
@click.option(
    "--cordon", multiple=True, metavar="GPU", help="Cordon this GPU: it gets no new requests; may be repeated."
)
@click.option(
    "--share-mode/--no-share-mode", default=True, show_default=True, help="Whether the node allocates shares of GPUs."
)
@output_option("table", "json", "yaml")
@click.option("--explain", is_flag=True, help="Also print why each other GPU was not chosen.")
def place(
    file: str,
    held: tuple[tuple[int, int, int | None], ...],
    unhealthy: tuple[int, ...],
    cores: int | None,
    mib: int | None,
    blocks: int,
    gpu_memory_mib: int | None,
    parts: int,
    policy: str,
    models: tuple[str, ...],
    not_models: tuple[str, ...],
    use: tuple[str, ...],
    avoid: tuple[str, ...],
    one_numa: bool,
    cordon: tuple[str, ...],
    share_mode: bool,
    output: str,
    explain: bool,
) -> None:
    """Show which GPUs a request would get, and why.

    Prints the minor numbers of the chosen GPUs and the reason. If the request does not fit, one sentence on standard
    error says why, and the exit status is 1.
    """
    cores, blocks = _requested(cores, mib, blocks, parts)
    node = read_node(file, gpu_memory_mib)
    inventory = with_unhealthy(node.inventory, unhealthy)
    blocks = blocks or _blocks_for(cores, parts, inventory)
    request = parse_request(cores, blocks, parts=parts, share_mode=share_mode)
    uuids, not_uuids = named(inventory, use, "--use-gpu"), named(inventory, avoid, "--avoid-gpu")
    choice = choose(
        request,
        snapshot_for(inventory, allocations_of(inventory, held), processes=node.processes),
        policy=GpuPolicy(policy),
        wanted=GpuFilter(models, not_models, uuids, not_uuids, one_numa),
        cordoned=named(inventory, cordon, "--cordon"),
    )
    if output == "table":
        say(*_as_lines(choice, explain))
    else:
        show_document(_document(choice, explain), output)


def _requested(cores: int | None, mib: int | None, blocks: int, parts: int) -> tuple[int, int]:
    """Cores and blocks over all GPUs; the blocks are 0 where none are asked for."""
    if mib is not None:
        if blocks:
            raise click.UsageError("--memory and --memory-mib are the same; give one of them")
        blocks = parts * math.ceil(math.ceil(mib / parts) / BLOCK_MIB)
    if cores is None:
        if not blocks:
            raise click.UsageError("missing option '--cores' or '--memory-mib'")
        return parts * DEFAULT_CORES, blocks
    if cores == 0 and not blocks:
        raise RequestError(
            "--cores 0 requests nothing; write 1 to 99 for a share, 100 for a GPU, then multiples of 100"
        )
    return cores, blocks


def _blocks_for(cores: int, parts: int, inventory: Inventory) -> int:
    """As the webhook fills memory in: a share gets its part of the smallest GPU."""
    each, rest = divmod(cores, parts)
    if rest or not 0 < each < CORES_PER_GPU or not inventory.gpus:
        return 0
    return parts * blocks_for(each, min(gpu.blocks for gpu in inventory.gpus))


def _as_lines(choice: Choice, explain: bool) -> list[str]:
    lines = [" ".join(str(gpu.minor) for gpu in choice.gpus), choice.reason]
    if explain:
        lines += [f"GPU {passed.gpu.minor}: {passed.reason}" for passed in choice.passed_over]
    return lines


def _document(choice: Choice, explain: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "gpus": [gpu.minor for gpu in choice.gpus],
        "evaluator": choice.evaluator.value,
        "reason": choice.reason,
    }
    if explain:
        document["passed_over"] = [{"gpu": passed.gpu.minor, "reason": passed.reason} for passed in choice.passed_over]
    return document
