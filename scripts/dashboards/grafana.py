"""A dashboard as Grafana reads it, made from few facts.

In: a `Dashboard`: variables, and rows of panels. Out: its JSON text. Panels of a row stand side by side, so none
overlap. Colours are Grafana's named ones and its classic palette, which it adapts to its dark and its light theme.
"""

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_WIDTH = 24
_SCHEMA = 39  # Grafana 10.4; later ones read it
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Json = dict[str, Any]


class Shape(enum.Enum):
    """How a panel shows its values; the value is Grafana's name of it."""

    STAT = "stat"
    LINES = "timeseries"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """`legend` names each series by its labels, as in {{node}}."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`warn` and `alarm` colour a value that reaches them; `stacked`: the series add up to something."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    shape: Shape = Shape.LINES
    stacked: bool = False
    warn: float | None = None
    alarm: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels side by side; all are equally wide."""

    title: str
    height: int
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice of label values above the panels, all of them at first."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`uid` is a part of its address, so it stays."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


def text_of(dashboard: Dashboard) -> str:
    return json.dumps(_document(dashboard), indent=2, ensure_ascii=False) + "\n"


def _document(dashboard: Dashboard) -> Json:
    links = {"type": "dashboards", "title": "vcuda", "tags": ["vcuda"], "asDropdown": True, "includeVars": True}
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["vcuda", "gpu"],
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": _SCHEMA,
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [{**links, "keepTime": True, "icon": "external link", "targetBlank": False, "tooltip": "", "url": ""}],
        "annotations": {"list": []},
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "panels": list(_panels(dashboard.rows)),
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
    }


def _variable(variable: Variable) -> Json:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
        "includeAll": True,
        "allValue": ".+",
        "multi": True,
        "options": [],
        "refresh": 2,
        "regex": "",
        "sort": 1,
    }


def _panels(rows: tuple[Row, ...]) -> Iterator[Json]:
    number, top = 1, 0
    for row in rows:
        at = {"h": 1, "w": _WIDTH, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": at, "panels": []}
        number, top = number + 1, top + 1
        width = _WIDTH // len(row.panels)
        for place, panel in enumerate(row.panels):
            yield _panel(panel, number, {"h": row.height, "w": width, "x": place * width, "y": top})
            number += 1
        top += row.height


def _panel(panel: Panel, number: int, at: Json) -> Json:
    instant = panel.shape is not Shape.LINES
    return {
        "id": number,
        "type": panel.shape.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _OPTIONS[panel.shape],
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": instant,
                "range": not instant,
                "format": "table" if panel.shape is Shape.TABLE else "time_series",
            }
            for place, query in enumerate(panel.queries)
        ],
        **({"transformations": _TABLE} if panel.shape is Shape.TABLE else {}),
    }


def _field(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    steps += [{"color": "orange", "value": panel.warn}] if panel.warn is not None else []
    steps += [{"color": "red", "value": panel.alarm}] if panel.alarm is not None else []
    field: Json = {
        "unit": panel.unit,
        "min": 0,
        "color": {"mode": "palette-classic" if panel.shape is Shape.LINES else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [],
    }
    if panel.most is not None:
        field["max"] = panel.most
    if panel.shape is Shape.LINES:
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        field["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": stacking,
        }
    return field


_OPTIONS: dict[Shape, Json] = {
    Shape.STAT: {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    },
    Shape.LINES: {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    Shape.TABLE: {"cellHeight": "sm", "showHeader": True, "footer": {"show": False, "reducer": ["sum"], "fields": ""}},
}
_TABLE: list[Json] = [{"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True}}}]
