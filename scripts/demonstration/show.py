"""What people see: short acts, one table that fills, the agent's own picture, the promises.

In: facts from the play. Out: text on a console: stdout, or stderr when stdout carries the document.
"""

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deviceplugin.observe.usage import ContainerUsage, Usage
from scripts.demonstration.cast import BLOCK_MIB, Role
from scripts.demonstration.document import GreedyContainer, Promise, SeenPod
from scripts.demonstration.promises import POINTS

WIDTH = 110
MIB = 1 << 20
LEVELS = " ▁▂▃▄▅▆▇█"


class Show:
    """The narrator."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def title(self, text: str, explanation: str) -> None:
        self._console.print(Text(text, style="bold"), Text(explanation, style="dim"), sep="\n")

    def act(self, number: int, text: str) -> None:
        self._console.print()
        self._console.print(Rule(Text(f"{number}  {text}", style="bold cyan"), align="left", style="cyan"))

    def say(self, text: str) -> None:
        self._print(Text.from_markup(text))

    def table(self, rows: Iterable[tuple[Role, SeenPod, Usage]]) -> None:
        """One line for each pod, in the order in which they came; the last column is the node after it."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("pod", "asks for", "gets", "", "all GPUs now"):
            table.add_column(heading, no_wrap=True)
        for role, pod, usage in rows:
            gets = Text(_gets(pod), style="green" if pod.phase == "Running" else "red")
            table.add_row(role.name, str(role), gets, Text(role.shows, style="dim"), bars(usage))
        self._print(table)

    def comparison(self, before: Usage, after: Usage) -> None:
        """Both ledgers side by side, one line for each container."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("container", "before the kill", "", "after the restart"):
            table.add_column(heading, no_wrap=True)
        old, new = _by_container(before), _by_container(after)
        for name in old | new:
            same = old.get(name) == new.get(name)
            mark = Text("=", style="green") if same else Text("≠", style="yellow")
            table.add_row(name, old.get(name, "nothing"), mark, new.get(name, "given back, its pod was refused"))
        self._print(table)

    def slices(self, greedy: Iterable[GreedyContainer]) -> None:
        """Asked, limit and got, one line for each container."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("container", no_wrap=True)
        for heading in ("asked", "limit", "got"):
            table.add_column(heading, no_wrap=True, justify="right")
        table.add_column("", no_wrap=True)
        for each in greedy:
            asked, limit, got = each.blocks * BLOCK_MIB, each.limit_bytes // MIB, each.held_bytes // MIB
            own = (each.held_bytes - each.report.got_bytes) // MIB
            why = f"then {each.report.refusal}; {own} MiB are its context"
            name = f"{each.pod}/{each.container}"
            table.add_row(
                name, f"{asked} MiB", f"{limit} MiB", _got(f"{got} MiB", got <= limit), Text(why, style="dim")
            )
            cores, near = f"{each.got_cores:.1f} %", abs(each.got_cores - each.limit_cores) <= POINTS
            what = f"of the GPU's time, over {each.report.seconds:.0f} s"
            table.add_row(
                "", f"{each.cores} cores", f"{each.limit_cores} %", _got(cores, near), Text(what, style="dim")
            )
        self._print(table)

    def bars(self, text: str, usage: Usage) -> None:
        self._print(Text(f"{text}  ") + bars(usage))

    def picture(self, graph: str) -> None:
        self._console.print()
        self._print(Text(graph.rstrip()))

    def promises(self, promises: Iterable[Promise]) -> None:
        lines = []
        for promise in promises:
            mark = Text("✔ " if promise.held else "✘ ", style="green" if promise.held else "bold red")
            lines.append(mark + Text(promise.promise) + Text(f"  {promise.found}", style="dim"))
        self._print(Group(*lines))

    def _print(self, item: RenderableType) -> None:
        self._console.print(Padding(item, (0, 0, 0, 3), expand=False))


def bars(usage: Usage) -> Text:
    """One bar for each GPU by minor, as high as its cores are taken."""
    text = Text("│")
    for gpu in sorted(usage.gpus, key=lambda gpu: gpu.minor):
        height = -(-gpu.cores_allocated * (len(LEVELS) - 1) // 100)
        text.append(LEVELS[min(height, len(LEVELS) - 1)], style="green" if gpu.cores_allocated < 100 else "blue")
        text.append("│", style="dim")
    return text


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
