"""What people see: short acts with numbers, sentences, tables, the promises.

In: facts from the plays. Out: text on a console: stdout, or stderr when stdout carries the document. As wide as the
terminal, and at most `WIDTH`; no line ends with blanks.
"""

from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from scripts.demonstration.document import Promise

WIDTH = 100
INDENT = 3
LEVELS = " ▁▂▃▄▅▆▇█"


class Show:
    """The narrator; both halves number their acts through."""

    def __init__(self, console: Console, numbers: Iterator[int]) -> None:
        self.console = console
        self._numbers = numbers

    def title(self, text: str, explanations: Iterable[tuple[str, str]]) -> None:
        """`explanations` are pairs of a word and what it is to be said of."""
        table = columns("", "", flexible=(1,))
        for word, what in explanations:
            table.add_row(Text(word, style="dim"), Text(what, style="dim"))
        self._lines(Group(Text(text, style="bold"), Padding(table, (0, 0, 0, INDENT))))

    def act(self, text: str) -> None:
        self.console.print()
        self._lines(Rule(Text(f"{next(self._numbers)}  {text}", style="bold cyan"), align="left", style="cyan"))

    def say(self, text: str) -> None:
        self.print(Text.from_markup(text))

    def promises(self, promises: Iterable[Promise]) -> None:
        table = columns("", "", flexible=(1,))
        for promise in promises:
            mark = Text("✔", style="green") if promise.held else Text("✘", style="bold red")
            table.add_row(mark, Text(f"{promise.promise}  ") + Text(promise.found, style="dim" if promise.held else ""))
        self.print(table)

    def print(self, item: RenderableType) -> None:
        self._lines(Padding(item, (0, 0, 0, INDENT)))

    def _lines(self, item: RenderableType) -> None:
        for line in self.console.render_lines(item, pad=False):
            self.console.print(Segments([*_trimmed(line), Segment.line()]), end="", soft_wrap=True)


def columns(*headings: str, flexible: Iterable[int] = ()) -> Table:
    """A table without lines; only the flexible columns are wrapped where the terminal is narrow."""
    wrapped = set(flexible)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=any(headings))
    for place, heading in enumerate(headings):
        table.add_column(heading, no_wrap=place not in wrapped)
    return table


def bar(cores: int) -> Text:
    """One GPU, as high as its cores are taken."""
    height = -(-cores * (len(LEVELS) - 1) // 100)
    return Text(LEVELS[min(height, len(LEVELS) - 1)], style="green" if cores < 100 else "blue")


def bars(cores: Iterable[int]) -> Text:
    """GPUs side by side."""
    text = Text("│", style="dim")
    for each in cores:
        text += bar(each) + Text("│", style="dim")
    return text


def _trimmed(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style, kept[-1].control)
    return kept
