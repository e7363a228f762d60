"""What people see of the cluster's half: diffs, who got which GPU, nodes by policy, what survived.

In: findings. Out: text on the console.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from rich.text import Text

from scripts.demonstration.cluster.findings import Gang, Placed, PolicyRun, Reviewed, Share, Simulated, Survivor
from scripts.demonstration.show import Show, bars, columns

BLOCKS_PER_GIB = 4
SHORT = 12
MEANINGS = {"binpack": "that is fullest", "spread": "that is emptiest", "fragmentation": "where least is spoilt"}
Json = dict[str, Any]


class Tables(Show):
    """The narrator of this half."""

    def reviews(self, reviewed: Iterable[Reviewed]) -> None:
        """What was taken away on the left, what was added on the right."""
        table = columns("pod", "as its user wrote it", "what the webhook made of it")
        for each in reviewed:
            before, after = _essence(each.asked), _essence(each.stored)
            left = [Text(f"- {line}", style="red") if line not in after else Text(f"  {line}") for line in before]
            right = [Text(f"+ {line}", style="green") for line in after if line not in before]
            for row, (old, new) in enumerate(zip_longest(left, right, fillvalue=Text(""))):
                table.add_row("" if row else each.pod, old, new)
        self.print(table)

    def placed(self, placed: Iterable[Placed]) -> None:
        """One line for each part of a GPU, by the beginning of its UUID."""
        table = columns("pod", "node", "GPU", "the extender chose", "", "the container sees")
        for each in placed:
            minors = iter(each.gpus)
            for row, (share, sees) in enumerate(zip_longest(each.chosen, each.visible)):
                chose = _chosen(share) if share else "nothing"
                same = share is not None and share.uuid == sees
                mark = Text("=", style="green") if same else Text("≠", style="bold red")
                name = ("", "") if row else (each.pod, each.node)
                table.add_row(*name, str(next(minors, "")), chose, mark, _short(sees or "nothing"))
        self.print(table)

    def policies(self, runs: Sequence[PolicyRun], racks: Mapping[str, int]) -> None:
        """Nodes side by side, as full as they are before the large pod comes."""
        table = columns("", *(run.policy for run in runs))
        table.add_row("takes the node", *(Text(MEANINGS.get(run.policy, ""), style="dim") for run in runs))
        for name, gpus in racks.items():
            table.add_row(f"{name}, {gpus} GPUs", *(bars(run.taken[name]) for run in runs))
        fates = (Text(f"runs on {run.large}", style="green") if run.large else Text("waits", "yellow") for run in runs)
        table.add_row("then 8 GPUs", *fates)
        self.print(table)

    def command(self, line: str, output: str) -> None:
        self.say(f"[dim]$ {line}[/]")
        self.print(Text(output))

    def survivors(self, survivors: Sequence[Survivor], placed: Iterable[Placed]) -> None:
        gpus = {each.pod: ", ".join(map(str, each.gpus)) for each in placed}
        table = columns("pod", "filter said, then SIGKILL", "bound to", "times", "container sees")
        for each in survivors:
            bound = Text(each.bound or "nowhere", style="green" if each.bound == each.filtered else "bold red")
            table.add_row(each.pod, each.filtered, bound, str(each.writes), f"GPU {gpus.get(each.pod, '?')}")
        self.print(table)

    def gangs(self, gangs: Iterable[Gang]) -> None:
        table = columns("gang of", "found a node", "reserved meanwhile", "bound", "reserved afterwards")
        for each in gangs:
            table.add_row(*map(str, (each.size, each.found, each.reserved, len(each.bound), each.left)))
        self.print(table)

    def simulated(self, simulated: Iterable[Simulated], size: Mapping[str, Any]) -> None:
        """One line for each policy."""
        table = columns("policy", "allocated at 100 % asked", "at 130 %")
        for each in simulated:
            table.add_row(
                each.policy, f"{each.allocated_percent_at_100:.1f} %", f"{each.allocated_percent_at_130:.1f} %"
            )
        self.print(table)
        self.say(
            f"[dim]of {size['gpus']} GPUs on {size['nodes']} nodes, while {size['pods']} pods come in random order, "
            "again and again[/]"
        )


def _essence(pod: Json) -> list[str]:
    """What a user would look at; requests are equal to limits, and what every API server adds is left out."""
    spec, annotations = pod["spec"], pod["metadata"].get("annotations") or {}
    name = spec.get("schedulerName")
    lines = [f"{key}: {text}" for key, text in annotations.items()]
    for container in spec["containers"]:
        lines += [f"{key}: {count}" for key, count in container["resources"]["limits"].items()]
    return lines + ([f"schedulerName: {name}"] if name else [])


def _chosen(share: Share) -> str:
    return f"{_short(share.uuid)}  {share.cores} cores, {share.blocks // BLOCKS_PER_GIB} GiB"


def _short(uuid: str) -> str:
    return uuid[:SHORT]
