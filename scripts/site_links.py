"""Hooks of mkdocs: the chart's README is a page of the site, and links that leave docs/ lead to the repository.

In: the Markdown of a page. Out: the same; a link to a file outside docs/ becomes one to `repo_url`, or its text and the
path where no repository is known. A link to such a file that does not exist ends the build. Links within docs/ stay.
So the table of the chart's values is written once, where Helm shows it too.
"""

import posixpath
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parents[1]
_CHART = "daemonset/chart/README.md"
CHART_PAGE = "reference/chart-values.md"
NOT_SEARCHED = ("image.md", "reference/driver-functions.md")
"""Lists of hundreds of names, which would stand before the pages that explain one of them."""
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
        if path == _CHART:
            return f"[{text}]({posixpath.relpath(CHART_PAGE, posixpath.dirname(page))}{anchor})"
        if not (_ROOT / path).exists():
            raise BrokenLinkError(f"docs/{page} names {path}, which does not exist")
        if repository:
            return f"[{text}]({repository.rstrip('/')}/blob/main/{path}{anchor})"
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(replace, markdown)


def chart_values() -> str:
    """The page: the chart's README with a title of its own, and with links as from docs/reference."""
    text = (_ROOT / _CHART).read_text(encoding="utf-8").partition("\n")[2]
    return f"# Values of the chart\n{text.replace('](../../docs/', '](../')}"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Called by mkdocs when it has found the files of docs/."""
    files.append(File.generated(config, CHART_PAGE, content=chart_values()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Called by mkdocs for each page."""
    if page.file.src_uri in NOT_SEARCHED:
        page.meta["search"] = {"exclude": True}
    return rewritten(markdown, page.file.src_uri, config.get("repo_url") or "")
