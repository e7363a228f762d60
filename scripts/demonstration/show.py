"""What people see: short acts, one table that fills, the agent's own picture, the promises.

In: facts from the play. Out: text on a console: stdout, or stderr when stdout carries the document.
"""

from collections.abc import Iterable

from rich.console import Console, Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deviceplugin.observe.usage import Usage
from scripts.demonstration.cast import Role
from scripts.demonstration.document import Promise, SeenPod

WIDTH = 110
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
        self._console.print(Padding(Text.from_markup(text), (0, 0, 0, 3)))

    def table(self, rows: Iterable[tuple[Role, SeenPod, Usage]]) -> None:
        """One line for each pod, in the order in which they came; the last column is the node after it."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("pod", "asks for", "gets", "all GPUs after it", ""):
            table.add_column(heading, no_wrap=heading != "")
        for role, pod, usage in rows:
            asks = " + ".join(str(ask) for ask in role.asks)
            gets = Text(_gets(pod), style="green" if pod.phase == "Running" else "red")
            table.add_row(role.name, asks, gets, bars(usage), Text(role.shows, style="dim"))
        self._console.print(Padding(table, (0, 0, 0, 3)))

    def picture(self, graph: str) -> None:
        self._console.print(Padding(Text(graph.rstrip()), (1, 0, 0, 3)))

    def promises(self, promises: Iterable[Promise]) -> None:
        lines = []
        for promise in promises:
            mark = Text("✔ " if promise.held else "✘ ", style="green" if promise.held else "bold red")
            lines.append(mark + Text(promise.promise) + Text(f"  {promise.found}", style="dim"))
        self._console.print(Padding(Group(*lines), (0, 0, 0, 3)))


def bars(usage: Usage) -> Text:
    """One bar for each GPU by minor, as high as its cores are taken."""
    text = Text("│")
    for gpu in sorted(usage.gpus, key=lambda gpu: gpu.minor):
        height = -(-gpu.cores_allocated * (len(LEVELS) - 1) // 100)
        text.append(LEVELS[min(height, len(LEVELS) - 1)], style="green" if gpu.cores_allocated < 100 else "blue")
        text.append("│", style="dim")
    return text


def _gets(pod: SeenPod) -> str:
    if pod.phase == "Failed":
        return "refused"
    minors = sorted({minor for container in pod.containers for minor in container.gpus})
    if not minors:
        return pod.phase
    return f"GPU {minors[0]}" if len(minors) == 1 else f"GPUs {', '.join(map(str, minors))}"
