"""The dashboards: current, complete, without overlaps; Prometheus reads their queries, which name what exists."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

from sandbox.prometheus import promtool
from scripts.dashboards.recorded import RECORDED
from tests.monitoring.boards import BOARDS, Json, panels, queries_of
from tests.monitoring.known import unknown_in
from tests.monitoring.scene import substituted

ROOT = Path(__file__).resolve().parents[2]
UNITS = {"none", "percentunit", "bytes", "s", "reqps", "celsius", "watt"}
EVERY = [(board, panel) for board in BOARDS for panel in panels(board)]


def wrong(good: Callable[[Json], bool]) -> list[tuple[str, str]]:
    """The panels of which it does not hold."""
    return [(board, panel["title"]) for board, panel in EVERY if not good(panel)]


def test_there_are_three_and_they_are_current() -> None:
    assert set(BOARDS) == {"cluster", "node", "namespace"}
    command = [sys.executable, "-m", "scripts.dashboards", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_data_source_is_a_choice_and_nothing_names_another() -> None:
    for name, board in BOARDS.items():
        first = board["templating"]["list"][0]
        assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus"), name
        assert set(re.findall(r'"uid": "([^"]*)"', json.dumps(board))) == {board["uid"], "${datasource}"}, name


def _variables(query: str) -> set[str]:
    found = set(re.findall(r"\$(\w+)", query)) - {"__rate_interval"}
    return {name for name in found if not name.isdigit()}  # $1 of label_replace


def test_every_variable_of_a_query_is_defined_and_used() -> None:
    queries = {name: " ".join(query for panel in panels(name) for query in queries_of(panel)) for name in BOARDS}
    defined = {name: {each["name"] for each in board["templating"]["list"]} for name, board in BOARDS.items()}
    assert {name: _variables(query) | {"datasource"} for name, query in queries.items()} == defined


def _overlap(one: Json, other: Json) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    sides = (("x", "w"), ("y", "h"))
    return all(a[at] < b[at] + b[size] and b[at] < a[at] + a[size] for at, size in sides)


def test_panels_do_not_overlap_and_stay_on_the_page() -> None:
    for name, board in BOARDS.items():
        everything = board["panels"]
        assert len({panel["id"] for panel in everything}) == len(everything), name
        assert [(a["title"], b["title"]) for a, b in combinations(everything, 2) if _overlap(a, b)] == [], name
        places = {panel["title"]: panel["gridPos"] for panel in everything}
        assert [title for title, at in places.items() if at["x"] + at["w"] > 24] == [], name


def test_each_dashboard_has_an_address_of_its_own() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    assert all(len(board["uid"]) <= 40 for board in BOARDS.values())


def test_every_panel_has_a_title_a_description_a_unit_and_queries() -> None:
    assert wrong(lambda panel: bool(panel["title"])) == []
    assert wrong(lambda panel: panel["description"].endswith(".")) == []
    assert wrong(lambda panel: panel["fieldConfig"]["defaults"]["unit"] in UNITS) == []
    assert wrong(lambda panel: any(queries_of(panel))) == []


def test_colours_suit_both_themes() -> None:
    """Named colours and palettes are Grafana's, which changes them with the theme; a hex colour is not."""
    assert wrong(lambda panel: not re.search(r"#[0-9a-fA-F]{3,8}\b|rgba?\(", json.dumps(panel))) == []


def test_every_query_names_metrics_and_labels_that_exist() -> None:
    queries = {query: substituted(query) for _, panel in EVERY for query in queries_of(panel)}
    assert {query: found for query, shown in queries.items() if (found := unknown_in(shown))} == {}


def _keeps_what_its_legend_names(target: Json) -> bool:
    named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    lists = re.findall(r"(?:by|group_left) \(([^)]*)\)", target["expr"])
    return " by (" not in target["expr"] or named <= {label for found in lists for label in found.split(", ")}


def test_legends_name_labels_that_the_query_keeps() -> None:
    assert wrong(lambda panel: all(map(_keeps_what_its_legend_names, panel["targets"]))) == []


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
