"""Which metrics a query names, and which there are.

In: a query in PromQL. Out: what it names that is not there: metrics, and labels by which it selects, groups and joins.
Known are those of the two `FAMILIES`, of the recording rules, and of the exporters that docs/how-to/monitoring.md
names.
"""

import re
from collections.abc import Iterator, Mapping

from deviceplugin.cluster.http.metrics import FAMILIES as SCHEDULER
from deviceplugin.exposition import Family
from deviceplugin.observe.metrics import FAMILIES as AGENT
from tests.monitoring.chart_files import RECORDED

TARGET = frozenset({"job", "instance", "node"})
FOREIGN: Mapping[str, frozenset[str]] = {
    "up": TARGET,
    "process_start_time_seconds": TARGET,
    "ALERTS": frozenset({"alertname", "alertstate"}),
    "DCGM_FI_DEV_GPU_TEMP": frozenset({"UUID", "gpu", "Hostname", "modelName"}),
    "DCGM_FI_DEV_POWER_USAGE": frozenset({"UUID", "gpu", "Hostname", "modelName"}),
    "kube_pod_owner": frozenset({"namespace", "pod", "owner_kind", "owner_name"}),
    "scheduler_pending_pods": frozenset({"queue"}),
}
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_MADE = re.compile(r'label_replace\(.*?,\s*"(\w+)",')
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "group_left", "group_right", "by", "on"})


def selectors(query: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Each metric with the labels of its matchers. A selector without name gives those that `__name__=~` lists."""
    texts: list[str] = []

    def keep(found: re.Match[str]) -> str:
        texts.append(found[0][1:-1])
        return f'"{len(texts) - 1}"'

    plain = _GROUPING.sub(" ", _STRING.sub(keep, query))
    plain = re.sub(r"\[[^\]]*\]", " ", plain)
    for found in re.finditer(rf"({_NAME})(\s*\()?|(\{{[^}}]*\}})", _inside_out(plain)):
        name, is_function, bare = found[1], found[2], found[3]
        if bare is not None:
            names = _matched_names(bare, texts)
            yield from ((each, _labels(bare) - {"__name__"}) for each in names)
        elif not is_function and name not in _WORDS:
            yield name, _labels(_matchers_after(plain, name))


def _inside_out(plain: str) -> str:
    """Without the matchers that follow a name: their labels are no metrics."""
    return re.sub(rf"({_NAME})\{{[^}}]*\}}", r"\1 ", plain)


def _matchers_after(plain: str, name: str) -> str:
    return "".join(re.findall(rf"(?<![\w:]){re.escape(name)}(\{{[^}}]*\}})", plain))


def _labels(matchers: str) -> frozenset[str]:
    return frozenset(re.findall(rf"({_NAME})\s*(?:=~|!~|!=|=)", matchers))


def _matched_names(matchers: str, texts: list[str]) -> list[str]:
    (place,) = re.findall(r'__name__=~"(\d+)"', matchers)
    return texts[int(place)].split("|")


def _scraped(family: Family) -> Iterator[tuple[str, frozenset[str]]]:
    labels = frozenset(family.labels) | TARGET | {"pod"}
    yield family.name, labels
    if family.type == "histogram":
        for suffix in ("_bucket", "_sum", "_count"):
            yield family.name + suffix, labels | {"le"}


def known() -> dict[str, frozenset[str]]:
    """Metrics and their labels."""
    own = dict(each for family in (*AGENT, *SCHEDULER) for each in _scraped(family))
    recorded = {name: frozenset({name.split(":")[0]}) for name in RECORDED}
    return {**own, **recorded, **FOREIGN}


def labels_in(query: str) -> set[str]:
    """All labels that the series of its metrics have."""
    there = known()
    return {label for name, _ in selectors(query) for label in there[name]}


def groupings(query: str) -> frozenset[str]:
    """The labels by which a query groups and joins."""
    found = (label.strip() for labels in _GROUPING.findall(_STRING.sub('""', query)) for label in labels.split(","))
    return frozenset(label for label in found if label)


def unknown_in(query: str) -> list[str]:
    """What a query names that is not there."""
    there, wrong, labelled = known(), [], frozenset(_MADE.findall(query))
    for name, labels in selectors(query):
        if name not in there:
            wrong.append(name)
            continue
        wrong += [f"{name}{{{label}}}" for label in sorted(labels - there[name])]
        labelled |= there[name]
    return wrong or [f"({label})" for label in sorted(groupings(query) - labelled)]
