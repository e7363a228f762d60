"""The tables of the cluster's part: what the webhook changed, who got which GPU, nodes by policy, what survived.

In: the structs of `cluster_inspect`. Out: tables to print.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.table import Table
from rich.text import Text

from scripts.demonstration.cluster_inspect import Gang, Placed, PolicyRun, Share, Simulated, Survivor, WebhookReview
from scripts.demonstration.output import bars, good, table
from scripts.demonstration.pods import BLOCKS_PER_GIB, RACKS, Json

PREFERS = {"binpack": "the fullest node", "spread": "the emptiest node", "fragmentation": "least lost space"}
SHORT = 12


def reviews(reviewed: Iterable[WebhookReview]) -> Table:
    """What was removed on the left, what was added on the right."""
    shown = table("pod", "as the user wrote it", "what the webhook added")
    for each in reviewed:
        before, after = _essence(each.asked), _essence(each.stored)
        left = [Text(f"- {line}", style="red") if line not in after else Text(f"  {line}") for line in before]
        right = [Text(f"+ {line}", style="green") for line in after if line not in before]
        for row, (old, new) in enumerate(zip_longest(left, right, fillvalue=Text(""))):
            shown.add_row("" if row else each.pod, old, new)
    return shown


def placed(containers: Iterable[Placed]) -> Table:
    """One line for each part of a GPU, with the beginning of its UUID."""
    shown = table("pod", "node", "GPU", "the extender chose", "", "the container sees")
    for each in containers:
        minors = iter(each.gpus)
        for row, (share, sees) in enumerate(zip_longest(each.chosen, each.visible)):
            same = share is not None and share.uuid == sees
            mark = good("=" if same else "≠", same)
            name = ("", "") if row else (each.pod, each.node)
            shown.add_row(*name, str(next(minors, "")), _part(share), mark, (sees or "nothing")[:SHORT])
    return shown


def policies(runs: Sequence[PolicyRun]) -> Table:
    """Nodes side by side, as full as they are before the large pod comes."""
    shown = table("", *(run.policy for run in runs))
    shown.add_row("prefers", *(Text(PREFERS[run.policy], style="dim") for run in runs))
    for name, gpus in RACKS.items():
        shown.add_row(f"{name}, {gpus} GPUs", *(bars(run.taken[name]) for run in runs))
    fates = (Text(f"runs on {run.large}", style="green") if run.large else Text("waits", "yellow") for run in runs)
    shown.add_row("then 8 GPUs", *fates)
    return shown


def survivors(pods: Iterable[Survivor], containers: Iterable[Placed]) -> Table:
    gpus = {each.pod: ", ".join(map(str, each.gpus)) for each in containers}
    shown = table("pod", "filter named", "bound to", "times bound", "the container sees")
    for each in pods:
        bound = good(each.bound or "nowhere", each.bound == each.filtered)
        shown.add_row(each.pod, each.filtered, bound, str(each.writes), f"GPU {gpus.get(each.pod, '?')}")
    return shown


def gangs(found: Iterable[Gang]) -> Table:
    shown = table("gang of", "found a node", "reserved meanwhile", "bound", "reserved afterwards")
    for each in found:
        shown.add_row(*map(str, (each.size, each.found, each.reserved, len(each.bound), each.left)))
    return shown


def simulations(runs: Iterable[Simulated]) -> Table:
    shown = table("policy", "allocated when pods ask for 100 %", "when they ask for 130 %")
    for each in runs:
        percents = (each.allocated_percent_at_100, each.allocated_percent_at_130)
        shown.add_row(each.policy, *(f"{percent:.1f} %" for percent in percents))
    return shown


def _essence(pod: Json) -> list[str]:
    """What a user looks at; requests are equal to limits, and what every API server adds is left out."""
    spec, annotations = pod["spec"], pod["metadata"].get("annotations") or {}
    name = spec.get("schedulerName")
    lines = [f"{key}: {text}" for key, text in annotations.items()]
    for container in spec["containers"]:
        lines += [f"{key}: {count}" for key, count in container["resources"]["limits"].items()]
    return lines + ([f"schedulerName: {name}"] if name else [])


def _part(share: Share | None) -> str:
    return f"{share.uuid[:SHORT]}  {share.cores} cores, {share.blocks // BLOCKS_PER_GIB} GiB" if share else "nothing"
