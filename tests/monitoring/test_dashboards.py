"""The dashboards: current, complete, without overlaps; Prometheus reads their queries, which name what exists."""

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from sandbox.prometheus import promtool
from scripts.dashboards.recorded import RECORDED
from tests.monitoring.boards import BOARDS, Json, panels, queries_of
from tests.monitoring.known import unknown_in
from tests.monitoring.scene import substituted

ROOT = Path(__file__).resolve().parents[2]
UNITS = {"none", "percentunit", "bytes", "s", "reqps", "celsius", "watt"}
EVERY = [(board, panel) for board in BOARDS for panel in panels(board)]
every_board = pytest.mark.parametrize("board", BOARDS)
every_panel = pytest.mark.parametrize(
    ("board", "panel"), EVERY, ids=[f"{board}-{panel['title']}" for board, panel in EVERY]
)


def test_there_are_three_and_they_are_current() -> None:
    assert set(BOARDS) == {"cluster", "node", "namespace"}
    command = [sys.executable, "-m", "scripts.dashboards", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@every_board
def test_the_data_source_is_a_choice_and_nothing_names_another(board: str) -> None:
    first = BOARDS[board]["templating"]["list"][0]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    text = json.dumps(BOARDS[board])
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {BOARDS[board]["uid"], "${datasource}"}


@every_board
def test_every_variable_of_a_query_is_defined_and_used(board: str) -> None:
    defined = {each["name"] for each in BOARDS[board]["templating"]["list"]} - {"datasource"}
    queries = [query for panel in panels(board) for query in queries_of(panel)]
    used = {name for query in queries for name in re.findall(r"\$(\w+)", query)} - {"__rate_interval"}
    used = {name for name in used if not name.isdigit()}  # $1 of label_replace
    assert used == defined


def _overlap(one: Json, other: Json) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    sides = (("x", "w"), ("y", "h"))
    return all(a[at] < b[at] + b[size] and b[at] < a[at] + a[size] for at, size in sides)


@every_board
def test_panels_do_not_overlap_and_stay_on_the_page(board: str) -> None:
    everything = BOARDS[board]["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    assert not [(a["title"], b["title"]) for a, b in combinations(everything, 2) if _overlap(a, b)]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in everything)


def test_each_dashboard_has_an_address_of_its_own() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    assert all(len(board["uid"]) <= 40 for board in BOARDS.values())


@every_panel
def test_every_panel_has_a_title_a_description_a_unit_and_queries(board: str, panel: Json) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert list(queries_of(panel))


@every_panel
def test_colours_suit_both_themes(board: str, panel: Json) -> None:
    """Named colours and palettes are Grafana's, which changes them with the theme; a hex colour is not."""
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgba?\(", json.dumps(panel))


@every_panel
def test_every_query_names_metrics_and_labels_that_exist(board: str, panel: Json) -> None:
    assert [unknown_in(substituted(query)) for query in queries_of(panel) if unknown_in(substituted(query))] == []


@every_panel
def test_legends_name_labels_that_the_query_keeps(board: str, panel: Json) -> None:
    for target in panel["targets"]:
        if " by (" in target["expr"] and (named := set(re.findall(r"{{(\w+)}}", target["legendFormat"]))):
            lists = re.findall(r"(?:by|group_left) \(([^)]*)\)", target["expr"])
            kept = {label for found in lists for label in found.split(", ")}
            assert named <= kept


def test_a_recorded_series_stands_beside_what_it_is_recorded_of() -> None:
    """So a dashboard shows the same with and without the rules."""
    used = set()
    for _, panel in EVERY:
        for query in queries_of(panel):
            for name in re.findall(r"\b(?:node|namespace):\w+:\w+", query):
                assert f"({name} or {RECORDED[name]})" in query
                used.add(name)
    assert len(used) > 5


def test_prometheus_reads_every_query(prometheus_programs: None, tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": substituted(query)}
        for number, query in enumerate(query for _, panel in EVERY for query in queries_of(panel))
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    status, said = promtool("check", "rules", file)
    assert (status, f"{len(rules)} rules found" in said) == (0, True), said
