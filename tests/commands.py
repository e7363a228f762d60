"""The commands that the documentation tells people to type.

In: a page of Markdown. Out: its blocks of commands, each with its section, and with a reason where the page says that
no test executes it: <!-- not executed: REASON -->, on the line before the block.
Invariant: a block of a shell's language, or of none, is one of commands if its first word is a program.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?:^<!-- not executed: (?P<reason>.+?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LANGUAGES = ("", "bash", "sh")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_PROGRAM = re.compile(
    r"(?:\$ )?(?:[A-Z]+=\S|scripts/|\.venv/bin/"
    r"|(?:cosign|curl|docker|gcloud|helm|kind|kubectl|oc|pip|sha256sum|umount|uvx|vcuda)\s)"
)


@dataclass(frozen=True, slots=True)
class Block:
    """`heading` is empty before the page's first section. `reason` is empty where a test executes the block."""

    heading: str
    text: str
    reason: str

    @property
    def is_commands(self) -> bool:
        return self.text.isascii() and bool(_PROGRAM.match(self.text))

    @property
    def commands(self) -> list[str]:
        """One each, however many lines it takes; without what follows a `#`."""
        lines = re.sub(r"^[^\n]*<<'EOF'\n.*?^EOF$", _in_one_line, self.text, flags=re.MULTILINE | re.DOTALL)
        return [each for line in lines.replace("\\\n", " ").splitlines() if (each := command_of(line))]


def blocks(page: Path) -> list[Block]:
    """All without a language, or with the shell's: also pictures, and what programs print."""
    text = page.read_text()
    return [
        Block(_section(text[: found.start("text")]), found["text"], found["reason"] or "")
        for found in _BLOCK.finditer(text)
        if found["language"] in _LANGUAGES
    ]


def commands(page: Path) -> list[Block]:
    return [each for each in blocks(page) if each.is_commands]


def command_of(line: str) -> str:
    """A line without its comment, and with single blanks."""
    return " ".join(re.sub(r"(^|\s)#\s.*", "", line).split())


def _section(before: str) -> str:
    headings: list[str] = _HEADING.findall(before)
    return headings[-1] if headings else ""


def _in_one_line(found: re.Match[str]) -> str:
    return found[0].replace("\n", " ")
