"""Blocks of code in a page of Markdown.

In: the page, and the language that stands behind the fence. Out: their texts.
"""

import re
from pathlib import Path

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def fenced(page: Path, language: str = "") -> list[str]:
    return [text for named, text in _BLOCK.findall(page.read_text()) if named == language]
