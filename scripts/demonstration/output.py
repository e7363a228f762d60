"""What the demo prints: numbered steps, sentences, tables, and at the end all checks.

In: facts from the steps. Out: text on stdout, as wide as the terminal and at most `WIDTH`; no line ends with blanks.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

WIDTH = 100
INDENT = 3
Step = Callable[[], Awaitable[None]]
LEVELS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, whether it holds, and what was found."""

    promise: str
    passed: bool
    found: str


def check(promise: str, wrong: Sequence[str], found: str) -> Check:
    """Passes if nothing is wrong; then `found` is what it prints."""
    return Check(promise, passed=not wrong, found="; ".join(wrong) if wrong else found)


class Output:
    """The console, the number of the step, and the checks so far."""

    def __init__(self, console: Console, *, steps: int) -> None:
        self.console = console
        self.checks: list[Check] = []
        self._steps = steps
        self._step = 0

    def part(self, title: str, legend: Iterable[tuple[str, str]]) -> None:
        if self._step:
            self.console.print()
        self._lines(Text(title, style="bold"))
        rows = table("", "", wrapped=(1,))
        for word, what in legend:
            rows.add_row(Text(word, style="dim"), Text(what, style="dim"))
        self.print(rows)

    def step(self, title: str) -> None:
        self._step += 1
        self._heading(f"Step {self._step} of {self._steps}: {title}")

    def say(self, text: str, *, style: str = "") -> None:
        self.print(Text(text, style=style))

    def check(self, *checks: Check) -> None:
        self.checks += checks

    def summary(self, seconds: float) -> None:
        passed = sum(check.passed for check in self.checks)
        self._heading(f"{passed} of {len(self.checks)} checks passed, in {seconds:.0f} s")
        rows = table("", "", wrapped=(1,))
        for each in self.checks:
            mark = Text("✔", style="green") if each.passed else Text("✘", style="bold red")
            rows.add_row(mark, Text(f"{each.promise}  ") + Text(each.found, style="dim" if each.passed else ""))
        self.print(rows)

    def print(self, item: RenderableType) -> None:
        self._lines(Padding(item, (0, 0, 0, INDENT)))

    def _heading(self, text: str) -> None:
        self.console.print()
        self._lines(Rule(Text(text, style="bold cyan"), align="left", style="cyan"))

    def _lines(self, item: RenderableType) -> None:
        for line in self.console.render_lines(item, pad=False):
            self.console.print(Segments([*_trimmed(line), Segment.line()]), end="", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the demo: the titles of its steps, and what starts its programs and gives the steps to run."""

    title: str
    legend: tuple[tuple[str, str], ...]
    steps: tuple[str, ...]
    set_up: Callable[[Path, Output], AbstractAsyncContextManager[Sequence[Step]]]


def table(*headings: str, wrapped: Iterable[int] = ()) -> Table:
    """Without lines; only the columns in `wrapped` wrap in a narrow terminal."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=any(headings))
    for place, heading in enumerate(headings):
        made.add_column(heading, no_wrap=place not in set(wrapped))
    return made


def bars(cores: Iterable[int]) -> Text:
    """GPUs side by side, each as high as its allocated cores."""
    text = Text("│", style="dim")
    for each in cores:
        height = min(-(-each * (len(LEVELS) - 1) // 100), len(LEVELS) - 1)
        text += Text(LEVELS[height], style="green" if each < 100 else "blue") + Text("│", style="dim")
    return text


def good(text: str, right: bool) -> Text:
    return Text(text, style="green" if right else "bold red")


def _trimmed(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style, kept[-1].control)
    return kept
