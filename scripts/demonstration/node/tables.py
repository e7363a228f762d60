"""What people see of the node's half: one table that fills, both ledgers, the agent's own picture, the slices.

In: facts from the play. Out: text on the console.
"""

from collections.abc import Iterable

from rich.text import Text

from deviceplugin.observe.usage import ContainerUsage, Usage
from scripts.demonstration.document import GreedyContainer, SeenPod
from scripts.demonstration.node.cast import BLOCK_MIB, Role
from scripts.demonstration.node.slice_promises import is_near
from scripts.demonstration.show import WIDTH, Show, bars, columns

MIB = 1 << 20
BUSY_S = 0.2


class Tables(Show):
    """The narrator of this half."""

    def shares(self, rows: Iterable[tuple[Role, SeenPod, Usage]]) -> None:
        """One line for each pod, in the order in which they came; the last column is the node after it."""
        wide = self.console.width >= WIDTH
        table = columns("pod", "asks for", "gets", *([""] if wide else []), "all GPUs now")
        for role, pod, usage in rows:
            gets = Text(_gets(pod), style="green" if pod.phase == "Running" else "red")
            shows = [Text(role.shows, style="dim")] if wide else []
            table.add_row(role.name, str(role), gets, *shows, bars(_taken(usage)))
        self.print(table)

    def comparison(self, before: Usage, after: Usage) -> None:
        """Both ledgers side by side, one line for each container."""
        table = columns("container", "before the kill", "", "after the restart")
        old, new = _by_container(before), _by_container(after)
        for name in old | new:
            same = old.get(name) == new.get(name)
            mark = Text("=", style="green") if same else Text("≠", style="yellow")
            table.add_row(name, old.get(name, "nothing"), mark, new.get(name, "given back (refused)"))
        self.print(table)

    def slices(self, greedy: Iterable[GreedyContainer]) -> None:
        """Asked, limit and got, one line for each container."""
        table = columns("container", "asked", "limit", "got", "", flexible=(4,))
        for column in table.columns[1:4]:
            column.justify = "right"
        for each in greedy:
            asked, limit, got = each.blocks * BLOCK_MIB, each.limit_bytes // MIB, each.held_bytes // MIB
            own = (each.held_bytes - each.report.got_bytes) // MIB
            why = Text(f"then {each.report.refusal} ({own} MiB: context)", style="dim")
            name = f"{each.pod}/{each.container}"
            table.add_row(name, f"{asked} MiB", f"{limit} MiB", _got(f"{got} MiB", got <= limit), why)
            what = f"of the GPU's time, over {each.report.seconds:.0f} s"
            if each.cpu_wait_s >= BUSY_S:
                what += f"; for {each.cpu_wait_s:.1f} s this machine had no CPU for it"
            cores = _got(f"{each.got_cores:.1f} %", is_near(each))
            table.add_row("", f"{each.cores} cores", f"{each.limit_cores} %", cores, Text(what, style="dim"))
        self.print(table)

    def bars(self, text: str, usage: Usage) -> None:
        self.print(Text(f"{text}  ") + bars(_taken(usage)))

    def picture(self, graph: str) -> None:
        self.console.print()
        self.print(Text(graph.rstrip(), no_wrap=True, overflow="ellipsis"))


def _taken(usage: Usage) -> list[int]:
    """By minor."""
    return [gpu.cores_allocated for gpu in sorted(usage.gpus, key=lambda gpu: gpu.minor)]


def _got(text: str, right: bool) -> Text:
    return Text(text, style="green" if right else "bold red")


def _by_container(usage: Usage) -> dict[str, str]:
    return {f"{entry.pod}/{entry.container}": _holds(entry) for entry in usage.containers}


def _holds(entry: ContainerUsage) -> str:
    minors = ", ".join(str(share.minor) for share in entry.gpus)
    if len(entry.gpus) > 1 or entry.cores == 100:
        return f"GPU{'s' * (len(entry.gpus) > 1)} {minors}"
    return f"GPU {minors}: {entry.cores} cores, {entry.blocks // 4} GiB"


def _gets(pod: SeenPod) -> str:
    if pod.phase == "Failed":
        return "refused"
    minors = sorted({minor for container in pod.containers for minor in container.gpus})
    if not minors:
        return pod.phase
    return f"GPU {minors[0]}" if len(minors) == 1 else f"GPUs {', '.join(map(str, minors))}"
