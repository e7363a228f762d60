"""The characters of pictures on a terminal: box characters, or plain ASCII.

In: amounts and texts. Out: bars and branches of a tree, as wide as asked. A bar is empty only for nothing and full only
when all is taken, so a single core is visible.
"""

import msgspec


class Glyphs(msgspec.Struct, frozen=True):
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
