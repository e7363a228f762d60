"""A hook of mkdocs: links of a page that leave docs/ lead to the repository.

In: the Markdown of a page. Out: the same; a link to a file outside docs/ becomes one to `repo_url`, or its text and the
path where no repository is known. A link to such a file that does not exist ends the build. Links within docs/ stay.
"""

import posixpath
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:)((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


class BrokenLinkError(Exception):
    """A page names a file that the repository does not have."""


def outside(page: str, target: str) -> str | None:
    """The path in the repository, or None where it is in docs/. `page` is relative to docs/."""
    path = posixpath.normpath(str(PurePosixPath("docs", page).parent / target))
    return None if path.startswith("docs/") else path


def rewritten(markdown: str, page: str, repository: str) -> str:
    """`repository`: the address of its pages, or empty."""

    def replace(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = outside(page, target)
        if path is None:
            return found[0]
        if not (_ROOT / path).exists():
            raise BrokenLinkError(f"docs/{page} names {path}, which does not exist")
        if repository:
            return f"[{text}]({repository.rstrip('/')}/blob/main/{path}{anchor})"
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(replace, markdown)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Called by mkdocs for each page."""
    return rewritten(markdown, page.file.src_uri, config.get("repo_url") or "")
