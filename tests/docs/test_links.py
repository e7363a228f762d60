"""Every relative link in the documentation leads to a file, and to a heading of it where it names one."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, spaces become hyphens, other signs go."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def folder(page: Path) -> Path:
    """Where its links begin; what lies in changes/ will stand in CHANGELOG.md."""
    return ROOT if page.parent == ROOT / "changes" and page.name != "README.md" else page.parent


def broken(page: Path) -> Iterator[str]:
    for name, anchor in _LINK.findall(prose(page)):
        target = (folder(page) / name).resolve() if name else page
        if not target.exists():
            yield f"{name} does not exist"
        elif anchor and anchor not in anchors(target):
            yield f"{name} has no heading #{anchor}"


def test_every_relative_link_of_a_page_leads_somewhere(git_pages: list[Path]) -> None:
    assert {str(page.relative_to(ROOT)): wrong for page in git_pages if (wrong := list(broken(page)))} == {}


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here\n\n[a](gone.md) [b](#there) [c](#here)\n")
    assert list(broken(page)) == ["gone.md does not exist", " has no heading #there"]


_PATH = re.compile(
    r"`((?:benchmarks|daemonset|deviceplugin|docs|emulator|library|proto|sandbox|scripts|tests)/[\w./-]*)`"
)
_GUIDES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/design.md",
    "docs/development.md",
    "docs/extending.md",
]


def test_every_path_that_a_guide_names_exists() -> None:
    found = {guide: _PATH.findall((ROOT / guide).read_text()) for guide in _GUIDES}
    named = [(guide, path) for guide, paths in found.items() for path in paths if "/build" not in path]
    assert {guide for guide, _ in named} == set(_GUIDES)
    assert [(guide, path) for guide, path in named if not (ROOT / path).exists()] == []


_NAMED = re.compile(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?")


def test_every_page_that_programs_charts_and_scripts_name_exists() -> None:
    command = ["git", "grep", "--no-color", "-hE", r"docs/[a-zA-Z/-]+\.md", "--", ":!*.md", ":!tests"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = {(name, anchor) for name, anchor in _NAMED.findall(said)}
    assert len(named) > 20
    assert [name for name, _ in named if not (ROOT / name).is_file()] == []
    assert [each for each in named if each[1] and each[1] not in anchors(ROOT / each[0])] == []
