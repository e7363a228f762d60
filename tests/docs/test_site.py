"""The documentation's site: mkdocs takes every page without a warning, and a page loads nothing from elsewhere."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from deviceplugin.cli import main
from scripts.manifests import ROOT
from scripts.site_links import CHART_PAGE, NOT_SEARCHED, BrokenLinkError, chart_values, rewritten
from tests.commands import commands

DOCS = ROOT / "docs"
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_POINTS = {"canonical", "prev", "next"}


class _Loads(HTMLParser):
    """The addresses from which a browser would load something for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address = values.get(_LOADED.get(tag, ""))
        if address and values.get("rel") not in _POINTS:
            self.found.add(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_of_docs_is_on_the_site(site: Path) -> None:
    pages = [path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")]
    named = [site / page / "index.html" if page.name != "index" else site / "index.html" for page in pages]
    assert [str(path) for path in named if not path.is_file()] == []


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded: set[str] = set()
    for page in site.rglob("*.html"):
        parser = _Loads()
        parser.feed(page.read_text())
        loaded |= parser.found
    assert any("assets/" in address for address in loaded), "the page has scripts and styles of its own"
    assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []


def test_the_navigation_names_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"[\w/-]+\.md$", text, re.MULTILINE)
    assert sorted(named) == sorted([CHART_PAGE, *(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))])


def test_the_values_of_the_chart_are_a_page(site: Path) -> None:
    assert "](../install.md)" in chart_values()
    page = (site / CHART_PAGE.removesuffix(".md") / "index.html").read_text()
    assert "scheduler.nodePolicy" in page
    assert 'href="../../install/"' in page


def test_long_lists_of_names_are_not_searched(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"install/", "reference/annotations/"} <= found
    assert found.isdisjoint(f"{name.removesuffix('.md')}/" for name in NOT_SEARCHED)


def test_a_link_to_the_chart_s_readme_leads_to_its_page() -> None:
    assert rewritten("[values](../daemonset/chart/README.md#agent)", "install.md", "") == (
        "[values](reference/chart-values.md#agent)"
    )
    assert rewritten("[all](../../daemonset/chart/README.md)", "reference/a.md", "") == "[all](chart-values.md)"


def test_a_link_that_leaves_docs_is_rewritten() -> None:
    below = "[up](../install.md) ![picture](../x.png) [far](https://example.org/../a)"
    assert rewritten(below, "how-to/a.md", "https://git.example.org/v/") == below
    top = "[values](../daemonset/chart/values.yaml#agent) [page](install.md)"
    linked = "[values](https://git.example.org/v/blob/main/daemonset/chart/values.yaml#agent) [page](install.md)"
    assert rewritten(top, "a.md", "https://git.example.org/v/") == linked
    assert rewritten(top, "a.md", "") == "values (`daemonset/chart/values.yaml`) [page](install.md)"
    assert rewritten("[CONTRIBUTING.md](../../CONTRIBUTING.md)", "reference/a.md", "") == "CONTRIBUTING.md"


def test_a_link_to_a_file_that_is_gone_is_told() -> None:
    with pytest.raises(BrokenLinkError, match=r"docs/a\.md names gone\.md, which does not exist"):
        rewritten("[x](../gone.md)", "a.md", "")


WITHOUT_A_CLUSTER = [
    line.removeprefix(".venv/bin/")
    for page in ("docs/first-hour.md", "docs/how-to/multi-gpu.md", "docs/simulate.md")
    for block in commands(ROOT / page)
    for line in block.commands
    if "vcuda place " in line or "vcuda simulate " in line
]


def test_the_commands_that_need_no_cluster_do_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.chdir(ROOT)
    assert len(WITHOUT_A_CLUSTER) > 4
    for line in dict.fromkeys(WITHOUT_A_CLUSTER):
        with subtests.test(line):
            program, *words = line.replace("docs/simulate-example.svg", str(tmp_path / "example.svg")).split()
            assert program == "vcuda"
            done = CliRunner().invoke(main, words)
            if "--cores 150" in line:
                assert (done.exit_code, done.stdout) == (1, "")
                assert "write 100 or 200" in done.stderr
            else:
                assert (done.exit_code, done.stderr) == (0, "")
                assert "GPU" in done.stdout
