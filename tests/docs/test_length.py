"""The documentation stays short: all words of docs/, the README, and each sentence of both.

In: README.md and the pages of docs/. A word is what `wc -w` counts. A sentence is prose:
code, tables and headings have none.
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MOST_WORDS = 45_000
MOST_README_LINES = 130
MOST_WORDS_OF_A_SENTENCE = 35
_NO_PROSE = re.compile(r"^ *```.*?^ *```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MARKER = re.compile(r"^\s*(?:[-*]|\d+\.) ")
_END = re.compile(r"(?<=[.!?])[*_)\"']*\s+")


def sentences(page: str) -> Iterator[str]:
    """Of each paragraph and each list item; a link counts as its text."""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", _NO_PROSE.sub("", page)):
        lines = [line for line in block.splitlines() if not line.startswith(("|", "#"))]
        text = _LINK.sub(r"\1", " ".join(lines))
        yield from _END.split(_MARKER.sub("", text).strip())


def too_long(text: str) -> list[str]:
    return [each for each in sentences(text) if len(each.split()) > MOST_WORDS_OF_A_SENTENCE]


def test_all_pages_together_have_few_words(git_pages: list[Path]) -> None:
    words = {page: len(page.read_text().split()) for page in git_pages if DOCS in page.parents}
    assert len(words) > 40
    assert sum(words.values()) <= MOST_WORDS, sorted(words.items(), key=lambda item: -item[1])[:10]


def test_the_readme_is_read_to_its_end() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_README_LINES


def test_no_sentence_is_long(git_pages: list[Path]) -> None:
    pages = [ROOT / "README.md", *(page for page in git_pages if DOCS in page.parents)]
    assert {str(page.relative_to(ROOT)): long for page in pages if (long := too_long(page.read_text()))} == {}


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    long = " ".join(["word"] * MOST_WORDS_OF_A_SENTENCE)
    text = f"# {long} more\n\nShort. {long} [more](x.md). Short.\n\n- {long} item\n- {long}\n\n| {long} cell |\n"
    text += f"\n   ```\n   {long} code\n   ```\n"
    assert [each.split()[-1] for each in too_long(text)] == ["more.", "item"]
