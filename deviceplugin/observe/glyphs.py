"""The characters that the pictures are drawn with: boxes and blocks, or plain ASCII.

In: numbers. Out: bars, branches and clipped text. A bar shows nothing only for nothing and is full only when all is
taken, so that a single held core can be seen.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of characters; every branch is three columns wide."""

    full: str
    empty: str
    fork: str
    corner: str
    trunk: str
    dot: str
    times: str
    mark: str
    cut: str

    def bar(self, part: int, whole: int, cells: int) -> str:
        filled = 0 if whole <= 0 else round(cells * part / whole)
        if 0 < part < whole:
            filled = min(max(filled, 1), cells - 1)
        filled = min(max(filled, 0), cells)
        return self.full * filled + self.empty * (cells - filled)

    def branch(self, *, last: bool) -> tuple[str, str]:
        """What stands before a child, and before what hangs on that child."""
        return (f"{self.corner} ", "   ") if last else (f"{self.fork} ", f"{self.trunk}  ")

    def clip(self, text: str, width: int) -> str:
        """Cuts what is too long; control characters, which names from outside may hold, become question marks."""
        printable = "".join(character if character.isprintable() else "?" for character in text)
        return printable if len(printable) <= width else printable[: max(0, width - 1)] + self.cut


BOXES = Glyphs(full="█", empty="░", fork="├─", corner="└─", trunk="│", dot="·", times="×", mark="✗", cut="…")
ASCII = Glyphs(full="#", empty=".", fork="|-", corner="`-", trunk="|", dot="-", times="x", mark="!", cut="~")
