"""What the demo prints: numbered steps, sentences, tables, and each check where it was made.

In: facts from the steps. Out: plain text on stdout; no line is wider than `WIDTH` or ends with blanks.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 100
INDENT = "   "


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
    """The number of the step, and the checks so far."""

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self._step = 0

    def title(self, title: str, *about: str) -> None:
        print(f"\n{title}", flush=True)
        for line in about:
            self.say(line)

    def step(self, title: str) -> None:
        self._step += 1
        self._heading(f"Step {self._step}: {title}")

    def say(self, text: str) -> None:
        """Sentences; line breaks and what a line begins with stay."""
        for line in text.splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            wrapped = textwrap.wrap(line, WIDTH - len(INDENT), subsequent_indent=indent, break_on_hyphens=False)
            print(*(f"{INDENT}{part}".rstrip() for part in wrapped or [""]), sep="\n", flush=True)

    def table(self, *rows: Sequence[str]) -> None:
        """The first row has the headings."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            self.say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))

    def check(self, *checks: Check) -> None:
        self.checks += checks
        for each in checks:
            self.say(f"{'✔' if each.passed else '✘'}  {each.promise}  ({each.found})")

    def summary(self, seconds: float) -> None:
        passed = sum(check.passed for check in self.checks)
        self._heading(f"{passed} of {len(self.checks)} checks passed, in {seconds:.0f} s")

    def _heading(self, text: str) -> None:
        print(f"\n{text} {'─' * (WIDTH - len(text) - 1)}", flush=True)
