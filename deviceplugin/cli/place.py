"""`vcuda place`: which GPUs a request would get on a node that is described by a file.

In: a topology (what `nvidia-smi topo -m` prints, or a profile of the emulated driver, told apart by content), what is
occupied and what is ill, and a request. Out: the chosen minors and the reason, or one sentence why there are none.
Placement is the agent's own; nothing here knows how it chooses.
"""

import json

import click

from deviceplugin.cli.place_node import DEFAULT_GPU_MEMORY_MIB, allocations_of, named, read_node, with_ill
from deviceplugin.model.pod_request import MOST_PARTS
from deviceplugin.model.preferences import GpuFilter, GpuPolicy
from deviceplugin.model.request import parse_request
from deviceplugin.placement.occupancy import snapshot_for
from deviceplugin.placement.place import Choice
from deviceplugin.placement.place import place as choose


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


@click.command("place")
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
@click.option(
    "--gpus",
    "parts",
    type=click.IntRange(1, MOST_PARTS),
    default=1,
    metavar="N",
    help="A share over so many GPUs, an even part of each; whole GPUs need only --cores.",
)
@click.option(
    "--gpu-policy",
    "policy",
    type=click.Choice([policy.value for policy in GpuPolicy]),
    default=GpuPolicy.BINPACK.value,
    show_default=True,
    help="Of the GPUs that fit: the fullest, the emptiest, or those that are closest to each other.",
)
@click.option("--model", "models", multiple=True, help="Part of a model's name to use; may be repeated.")
@click.option("--avoid-model", "not_models", multiple=True, help="Part of a model's name to avoid; may be repeated.")
@click.option("--use-gpu", "use", multiple=True, metavar="GPU", help="A GPU to use, by minor or UUID; may be repeated.")
@click.option("--avoid-gpu", "avoid", multiple=True, metavar="GPU", help="A GPU to avoid; may be repeated.")
@click.option("--one-numa", is_flag=True, help="All GPUs on one NUMA node.")
@click.option("--cordon", multiple=True, metavar="GPU", help="A GPU that takes nothing new; may be repeated.")
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

    Prints the minor numbers of the chosen GPUs and the reason. Where none can be chosen, one sentence on standard error
    says why, and the exit status is 1.
    """
    node = read_node(file, gpu_memory_mib)
    inventory = with_ill(node.inventory, unhealthy)
    request = parse_request(cores, blocks, parts=parts, share_mode=share_mode)
    uuids, not_uuids = named(inventory, use, "--use-gpu"), named(inventory, avoid, "--avoid-gpu")
    choice = choose(
        request,
        snapshot_for(inventory, allocations_of(inventory, held), processes=node.processes),
        policy=GpuPolicy(policy),
        wanted=GpuFilter(models, not_models, uuids, not_uuids, one_numa),
        cordoned=named(inventory, cordon, "--cordon"),
    )
    click.echo(_as_json(choice, explain) if output == "json" else _as_text(choice, explain))


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
