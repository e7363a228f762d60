"""`vcuda place`: which GPUs a request would get on a node that is described by a file.

In: a topology (what `nvidia-smi topo -m` prints, or a profile of the emulated driver, told apart by content), what is
occupied and what is ill, and a request. Out: the chosen minors and the reason, or one sentence why there are none.
Placement is the agent's own; nothing here knows how it chooses.
"""

import json
from collections.abc import Iterable
from dataclasses import replace

import click

from deviceplugin.errors import ConfigError, ParseError
from deviceplugin.hardware.matrix import parse_matrix
from deviceplugin.hardware.profile import Profile, parse_profile
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.units import CORES_PER_GPU, MIB, format_blocks
from deviceplugin.placement.choice import Choice
from deviceplugin.placement.describe import gpus_text
from deviceplugin.placement.occupancy import occupied, snapshot_for
from deviceplugin.placement.place import place as choose

DEFAULT_GPU_MEMORY_MIB = 80 * 1024
_LARGEST_FILE = 1 << 20


class _Occupied(click.ParamType[tuple[int, int, int | None]]):
    """MINOR:CORES[:BLOCKS]."""

    name = "MINOR:CORES[:BLOCKS]"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int, int | None]:
        parts = str(value).split(":")
        if not 2 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            self.fail(f"{value!r} is not MINOR:CORES or MINOR:CORES:BLOCKS, whole numbers all", param, ctx)
        minor, cores, *blocks = (int(part) for part in parts)
        return minor, cores, blocks[0] if blocks else None


@click.command("place", short_help="Show which GPUs a request would get, and why.")
@click.option(
    "--topology",
    "file",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    required=True,
    metavar="FILE",
    help="What `nvidia-smi topo -m` prints, or a profile of the emulated driver; - is standard input.",
)
@click.option(
    "--occupied",
    "held",
    type=_Occupied(),
    multiple=True,
    help="What is taken of a GPU; several for one GPU add up. Without BLOCKS a whole GPU takes all its memory, less "
    "than 100 cores take none.",
)
@click.option(
    "--unhealthy",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="MINOR",
    help="A GPU that is ill; may be repeated.",
)
@click.option(
    "--cores", type=int, required=True, help="Cores asked for: 1-99 a share, 100 a GPU, then multiples of 100."
)
@click.option(
    "--memory", "blocks", type=int, default=0, metavar="BLOCKS", help="Memory asked for, in blocks of 256 MiB."
)
@click.option(
    "--gpu-memory",
    "gpu_memory_mib",
    type=click.IntRange(min=1, max=1 << 24),
    metavar="MIB",
    help=f"Memory of each GPU. Default: what the profile says; for a matrix {DEFAULT_GPU_MEMORY_MIB} (80 GiB).",
)
@click.option("--share-mode/--no-share-mode", default=True, show_default=True, help="Whether GPUs may be shared.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print.")
@click.option("--explain", is_flag=True, help="Also say why each other GPU was passed over.")
def place(
    file: str,
    held: tuple[tuple[int, int, int | None], ...],
    unhealthy: tuple[int, ...],
    cores: int,
    blocks: int,
    gpu_memory_mib: int | None,
    share_mode: bool,
    output: str,
    explain: bool,
) -> None:
    """Show which GPUs a request would get, and why.

    Prints the minor numbers of the chosen GPUs and the reason. Where none can be chosen, one sentence on standard error
    says why, and the exit status is 1.
    """
    node = _node(file, gpu_memory_mib)
    inventory = _with_ill(node.inventory, unhealthy)
    request = parse_request(cores, blocks, share_mode=share_mode)
    allocations = _allocations(inventory, held)
    choice = choose(request, snapshot_for(inventory, allocations, processes=node.processes))
    click.echo(_as_json(choice, explain) if output == "json" else _as_text(choice, explain))


def _node(file: str, gpu_memory_mib: int | None) -> Profile:
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
        raise ParseError(f"{source}: byte {error.start} is no UTF-8 text, so it is no topology matrix") from None
    return _bare_node(text, source, gpu_memory_mib or DEFAULT_GPU_MEMORY_MIB)


def _resized(profile: Profile, mib: int) -> Profile:
    gpus = tuple(replace(gpu, memory_bytes=mib * MIB) for gpu in profile.inventory.gpus)
    return replace(profile, inventory=replace(profile.inventory, gpus=gpus))


def _bare_node(text: str, source: str, mib: int) -> Profile:
    """The node of a matrix, which says nothing of its GPUs but their links."""
    topology = parse_matrix(text, source=source)
    gpus = tuple(
        Gpu(uuid=GpuUuid(f"GPU-{minor}"), index=at, minor=minor, model="unknown", memory_bytes=mib * MIB)
        for at, minor in enumerate(topology.minors)
    )
    return Profile(inventory=Inventory(gpus=gpus, topology=topology, driver=Driver("", (0, 0))), processes={})


def _with_ill(inventory: Inventory, minors: Iterable[int]) -> Inventory:
    ill = {_at(inventory, minor, "--unhealthy").uuid: Health(healthy=False) for minor in minors}
    return replace(inventory, health=ill)


def _at(inventory: Inventory, minor: int, flag: str) -> Gpu:
    for gpu in inventory.gpus:
        if gpu.minor == minor:
            return gpu
    here = gpus_text(gpu.minor for gpu in inventory.gpus) if inventory.gpus else "no GPU"
    raise ConfigError(f"{flag} names GPU {minor}, but the topology has {here}")


def _allocations(inventory: Inventory, held: Iterable[tuple[int, int, int | None]]) -> list[Allocation]:
    """Each --occupied as a pod of its own."""
    allocations = []
    for number, (minor, cores, blocks) in enumerate(held):
        gpu = _at(inventory, minor, "--occupied")
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


def _as_text(choice: Choice, explain: bool) -> str:
    lines = [" ".join(str(gpu.minor) for gpu in choice.gpus), choice.reason]
    if explain:
        lines += [f"GPU {passed.gpu.minor}: {passed.reason}" for passed in choice.passed_over]
    return "\n".join(lines)


def _as_json(choice: Choice, explain: bool) -> str:
    document: dict[str, object] = {
        "gpus": [gpu.minor for gpu in choice.gpus],
        "evaluator": choice.evaluator.value,
        "reason": choice.reason,
    }
    if explain:
        document["passed_over"] = [{"gpu": passed.gpu.minor, "reason": passed.reason} for passed in choice.passed_over]
    return json.dumps(document, separators=(",", ":"))
