"""The dashboards, which people edit in Grafana: Grafana can load and draw them, and they name what is exported.

That Prometheus evaluates every query is seen in test_scraped.py.
"""

import json
import re
from collections.abc import Callable, Iterator
from itertools import combinations

from tests.monitoring.chart_files import BOARDS, RECORDED, Json, panels, queries_of
from tests.monitoring.known import labels_in, selectors, unknown_in
from tests.monitoring.scene import substituted

UNITS = {"none", "percentunit", "bytes", "s", "reqps", "celsius", "watt"}
GRAFANAS_OWN = {"-- Grafana --"}
"""The data source of the annotations that Grafana adds when it saves a dashboard."""
EVERY = [(board, panel) for board in BOARDS for panel in panels(board)]


def wrong(good: Callable[[Json], bool]) -> list[tuple[str, str]]:
    """The panels of which it does not hold."""
    return [(board, panel["title"]) for board, panel in EVERY if not good(panel)]


def test_each_dashboard_has_an_address_of_its_own() -> None:
    assert set(BOARDS) == {"cluster", "node", "namespace"}
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    assert all(len(board["uid"]) <= 40 for board in BOARDS.values())


def test_the_data_source_is_a_choice_and_nothing_names_another() -> None:
    for name, board in BOARDS.items():
        first = board["templating"]["list"][0]
        assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus"), name
        named = set(re.findall(r'"uid": "([^"]*)"', json.dumps(board)))
        assert named - GRAFANAS_OWN == {board["uid"], "${datasource}"}, name


def _choices(board: str) -> Iterator[tuple[str, str]]:
    """The metric of each variable, with its matchers, and the label whose values are the choice."""
    for variable in BOARDS[board]["templating"]["list"][1:]:
        (found,) = re.findall(r"^label_values\((.+), *(\w+)\)$", variable["query"]["query"])
        assert variable["definition"] == variable["query"]["query"]
        yield found


def _variables(query: str) -> set[str]:
    found = set(re.findall(r"\$(\w+)", query)) - {"__rate_interval"}
    return {name for name in found if not name.isdigit()}  # $1 of label_replace


def test_every_variable_of_a_query_is_defined_and_used() -> None:
    defined = {name: {each["name"] for each in board["templating"]["list"]} for name, board in BOARDS.items()}
    of_panels = {name: " ".join(query for panel in panels(name) for query in queries_of(panel)) for name in BOARDS}
    assert {name: _variables(query) | {"datasource"} for name, query in of_panels.items()} == defined
    of_choices = {name: _variables(" ".join(metric for metric, _ in _choices(name))) for name in BOARDS}
    assert {name: more for name, used in of_choices.items() if (more := used - defined[name])} == {}


def _overlap(one: Json, other: Json) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    sides = (("x", "w"), ("y", "h"))
    return all(a[at] < b[at] + b[size] and b[at] < a[at] + a[size] for at, size in sides)


def test_panels_do_not_overlap_and_stay_on_the_page() -> None:
    for name, board in BOARDS.items():
        everything = board["panels"]
        assert not any(panel.get("panels") for panel in everything), f"{name}: a closed row hides panels from this test"
        assert len({panel["id"] for panel in everything}) == len(everything), name
        assert [(a["title"], b["title"]) for a, b in combinations(everything, 2) if _overlap(a, b)] == [], name
        ends = [(panel["title"], panel["gridPos"]["x"] + panel["gridPos"]["w"]) for panel in everything]
        assert [title for title, end in ends if end > 24] == [], name


def test_every_panel_says_what_it_shows_in_both_themes() -> None:
    """Grafana changes named colours and palettes with the theme, a hex colour not."""
    assert wrong(lambda panel: bool(panel["title"] and panel["description"].endswith("."))) == []
    assert wrong(lambda panel: panel["fieldConfig"]["defaults"]["unit"] in UNITS) == []
    assert wrong(lambda panel: "GPU time" not in panel["title"] or _says_its_unit(panel)) == []
    assert wrong(lambda panel: any(queries_of(panel))) == []
    assert wrong(lambda panel: not re.search(r"#[0-9a-fA-F]{3,8}\b|rgba?\(", json.dumps(panel))) == []


def _says_its_unit(panel: Json) -> bool:
    """A course has no room for a description; a number alone has its unit beside it."""
    title: str = panel["title"]
    return panel["type"] != "timeseries" or title.endswith(("(in GPUs)", "(of each GPU)", "(of one GPU)"))


def test_every_query_and_variable_names_metrics_and_labels_that_exist() -> None:
    shown = [substituted(query) for _, panel in EVERY for query in queries_of(panel)]
    choices = [(substituted(metric), label) for board in BOARDS for metric, label in _choices(board)]
    queries = shown + [metric for metric, _ in choices]
    assert {query: found for query in queries if (found := unknown_in(query))} == {}
    assert [(metric, label) for metric, label in choices if label not in labels_in(metric)] == []
    assert (len(shown) > 50, len(choices)) == (True, 3)


def _keeps_what_its_legend_names(target: Json) -> bool:
    named, query = set(re.findall(r"{{(\w+)}}", target["legendFormat"])), target["expr"]
    if not re.search(r"\bby\s*\(", query):
        return named <= labels_in(substituted(query))
    lists = re.findall(r"\b(?:by|group_left)\s*\(([^)]*)\)", query)
    return named <= {label.strip() for labels in lists for label in labels.split(",")}


def test_legends_name_labels_that_the_query_keeps() -> None:
    assert wrong(lambda panel: all(map(_keeps_what_its_legend_names, panel["targets"]))) == []


def test_a_recorded_series_stands_beside_what_it_is_recorded_of() -> None:
    """So a dashboard shows the same with and without the rules."""
    queries = [query for _, panel in EVERY for query in queries_of(panel)]
    used = {(name, query) for query in queries for name in re.findall(r"\b(?:node|namespace):\w+:\w+", query)}
    assert [(name, query) for name, query in used if f"({name} or {RECORDED[name]})" not in query] == []
    assert len({name for name, _ in used}) > 5


WRONG = {
    "vcuda_gpu_healthy == 0": [],
    "vcuda_gpu_healty == 0": ["vcuda_gpu_healty"],
    'vcuda_gpu_healthy{uid="x"}': ["vcuda_gpu_healthy{uid}"],
    "sum(rate(vcuda_scheduler_request_duration_seconds_bucket[5m]))": [],
    "sum by (node, nod) (vcuda_gpu_healthy)": ["(nod)"],
    "vcuda_gpu_healthy * on (node, uuid) group_left (index) vcuda_gpu_info": [],
    "vcuda_gpu_healthy * on (node, uuid) group_left (indx) vcuda_gpu_info": ["(indx)"],
    'label_replace(vcuda_gpu_info, "UUID", "$1", "uuid", "(.+)") * on (UUID) DCGM_FI_DEV_GPU_TEMP': [],
    'sum(node:vcuda_gpus:count{namespace="x"})': ["node:vcuda_gpus:count{namespace}"],
}


def test_the_reader_of_queries_finds_what_is_not_there() -> None:
    assert {query: unknown_in(query) for query in WRONG} == WRONG
    assert set(selectors('count({__name__=~"a|b",x="1"}) + c{y!~"q|sum(b)"}')) == {
        ("a", frozenset({"x"})),
        ("b", frozenset({"x"})),
        ("c", frozenset({"y"})),
    }
